"""Powers of two of a norm of each block, and zero, rounded at random without bias. Wire format version 2.

Spec: natural dithering, arXiv 1905.10988, and NUQSGD, arXiv 1908.06077. With N the norm of the element's block and k
levels, |x| / N goes to one of 1, 1/2, .. 2^(1-k), 0, to the upper neighbour with the probability that keeps its
expectation. The message (`codecs.blocks`): q + k in `packed_integers.width(2 k)` bits, where q = 0 is zero and |q| in
1 .. k is 2^(|q| - k), then N. E|Q(x) - x|^2 <= (1/8 + t min(1, t)) |x|^2, t = sqrt(B) 2^(1-k), for l2 and blocks of B.

The draw is `randomness.uniform` of the stream's element of the same index: up where it is below the mantissa's fraction,
or, under the lowest level, below |x| / N 2^(k-1). |x| / N is cut at 1. A block of zeros is sent as zeros. Not finite: N is
not finite then, codes are 0 where |x| / N is 0 or NaN, and the whole block decodes to what is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor

from reference_impls.codecs.block_levels import BlockLevels
from reference_impls.codecs.passes import Draw
from reference_impls.kernels import Formula
from reference_impls.randomness import as_uniform

__all__ = ["WIRE_VERSION", "GeometricLevels"]

WIRE_VERSION: Final = 2


@dataclass(frozen=True)
class GeometricLevels(BlockLevels):
    """Codec. levels: k, those above zero, 1 .. 100."""

    most: ClassVar[int] = 100  # 2^(1-k) times a norm is then a normal number for norms from 2^-27 on

    def formula(self) -> Formula:
        return Formula("geometric", self.levels, measure="linf" if self.norm == "linf" else None)

    def code(self, x: Tensor, found: Sequence[Tensor], draw: Draw) -> Tensor:
        y = (x.abs() / found[0]).clamp(max=1.0)
        y = torch.where(y != y, 0.0, y)  # NaN: 0 / 0, or something that is not finite
        pattern = y.view(torch.int32)
        below = (pattern >> 23) - 127 + self.levels
        inner = (pattern & 0x7FFFFF).to(torch.float32) * 2.0**-23
        fraction = torch.where(below >= 1, inner, y * 2.0 ** (self.levels - 1))
        code = below.clamp(min=0) + (as_uniform(draw()) < fraction).to(torch.int32)
        return torch.where(x < 0, -code, code) + self.levels

    def value(self, codes: Tensor, found: Sequence[Tensor]) -> Tensor:
        q = codes - self.levels
        magnitude = ((q.abs() - self.levels + 127) << 23).view(torch.float32)
        return torch.where(q == 0, 0.0, torch.where(q < 0, -magnitude, magnitude)) * found[0]
