"""Powers of two of a norm of each block, and zero, rounded at random without bias. Wire format version 1.

Spec: natural dithering, arXiv 1905.10988, and NUQSGD, arXiv 1908.06077. With N the norm of the element's block and k
levels, |x| / N goes to one of 1, 1/2, .. 2^(1-k), 0, to the upper neighbour with the probability that keeps its
expectation. The message (`codecs.blocks`): q + k in `packed_integers.width(2 k)` bits, where q = 0 is zero and |q| in
1 .. k is 2^(|q| - k), then N. E|Q(x) - x|^2 <= (1/8 + t min(1, t)) |x|^2, t = sqrt(B) 2^(1-k), for l2 and blocks of B.

The draw is `randomness.uniform` of the stream's element of the same index: up where it is below the mantissa's fraction,
or, under the lowest level, below |x| / N 2^(k-1). |x| / N is cut at 1. A block of zeros is sent as zeros. Not finite: N is
not finite then, codes are 0 where |x| / N is 0 or NaN, and the whole block decodes to what is not finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor

from reference_impls.codecs.block_levels import BlockLevels
from reference_impls.compilation import compiled
from reference_impls.randomness import Key, uniform

__all__ = ["WIRE_VERSION", "GeometricLevels"]

WIRE_VERSION: Final = 1


@compiled
def _encode(x: Tensor, norm: Tensor, levels: int, lowest: Tensor, words: Tensor, codes: Tensor) -> None:
    y = (x.abs() / norm).clamp(max=1.0)
    y = torch.where(y != y, 0.0, y)  # NaN: 0 / 0, or something that is not finite
    pattern = y.view(torch.int32)
    below = (pattern >> 23) - 127 + levels
    fraction = torch.where(below >= 1, (pattern & 0x7FFFFF).to(torch.float32) * 2.0**-23, y * lowest)
    code = below.clamp(min=0) + (uniform(words, x.shape[-1]) < fraction).to(torch.int32)
    codes.copy_(torch.where(x < 0, -code, code) + levels)


@compiled
def _decode(codes: Tensor, norm: Tensor, levels: int, out: Tensor) -> None:
    q = codes - levels
    magnitude = ((q.abs() - levels + 127) << 23).view(torch.float32)
    out.copy_(torch.where(q == 0, 0.0, torch.where(q < 0, -magnitude, magnitude)) * norm)


@dataclass(frozen=True)
class GeometricLevels(BlockLevels):
    """Codec. levels: k, those above zero, 1 .. 100."""

    most: ClassVar[int] = 100  # 2^(1-k) times a norm is then a normal number for norms from 2^-27 on

    def round(self, x: Tensor, norm: Tensor, key: Key, codes: Tensor) -> None:
        lowest = torch.tensor(2.0 ** (self.levels - 1), device=x.device)
        _encode(x, norm, self.levels, lowest, key.words.to(x.device), codes)

    def restore(self, codes: Tensor, norm: Tensor, out: Tensor) -> None:
        _decode(codes, norm, self.levels, out)
