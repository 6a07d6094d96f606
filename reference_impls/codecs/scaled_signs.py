"""One bit an element and one scale a message: sign compression as signSGD with error feedback and 1-bit Adam use it.

Message of d elements: the signs (`codecs.signs`, zeros of either sign as +1), then the scale as little-endian float32.
Wire format version 1. Scales, over the d elements (sums by the fixed tree): ``l1`` = |x|_1 / d, the least squares choice
and always a contraction (EF-signSGD, arXiv 1901.09847); ``l2`` = |x|_2 / sqrt(d), which keeps the norm (1-bit Adam,
arXiv 2102.02888). Biased: use error feedback. A value that is not finite makes the scale, and so all that is decoded, not
finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.codecs import signs
from reference_impls.codecs.sums import fixed_mean, root_mean_square
from reference_impls.errors import one_of
from reference_impls.randomness import Key

__all__ = ["WIRE_VERSION", "ScaledSigns"]

WIRE_VERSION: Final = 1
_SCALE_BYTES: Final = 4


@dataclass(frozen=True)
class ScaledSigns:
    """Codec: sign(x) times a scale."""

    norm: Literal["l1", "l2"] = "l1"

    def __post_init__(self) -> None:
        one_of("norm", self.norm, ("l1", "l2"))

    @property
    def unbiased(self) -> bool:
        return False

    def wire_bytes(self, numel: int) -> int:
        return signs.wire_bytes(numel) + _SCALE_BYTES if numel else 0

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        if x.shape[-1] == 0:
            return
        body = signs.wire_bytes(x.shape[-1])
        signs.pack_signs(x, wire[..., :body], zero=True)
        scale = fixed_mean(x, "abs") if self.norm == "l1" else root_mean_square(x)
        wire[..., body:] = scale.to(torch.float32).unsqueeze(-1).view(torch.uint8)

    def decode(self, wire: Tensor, out: Tensor, *, add: bool = False) -> None:
        """As in the protocol; add: `out` += what is decoded."""
        if out.shape[-1] == 0:
            return
        body = signs.wire_bytes(out.shape[-1])
        scale = wire[..., body:].clone(memory_format=torch.contiguous_format).view(torch.float32)
        if not add:
            out.zero_()
        signs.decode_accumulate(wire[..., :body].unsqueeze(-2), scale.to(out.dtype), out)
