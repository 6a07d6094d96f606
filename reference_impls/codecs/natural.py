"""Natural compression: a float32 becomes its sign and a power of two, 9 bits, without bias. Wire format version 2.

Spec: arXiv 1905.10988. The 23 bits of the mantissa, m, are replaced by one draw: the exponent goes up by one with
probability m / 2^23. The message is ``sign * 256 + exponent`` (the biased one of IEEE 754) of each element, packed in 9
bits (`codecs.packed_integers`); there are no scales. r = the lowest 23 bits of the stream's element of the same index; up
where r < m. E|C(x) - x|^2 <= |x|^2 / 8.

* Exponent 0 is zero. Subnormal numbers are rounded without bias to zero or 2^-126, which is 1 / 8 no more.
* From 2^127 on there is no power of two above: magnitudes are rounded down to 2^127, which is biased.
* Infinities and NaN have exponent 255, are sent as such and decode to infinities of their sign.
* A zero of either sign decodes to 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from torch import Tensor

from reference_impls.codecs.block_codec import BlockCodec
from reference_impls.codecs.blocks import BlockMessage
from reference_impls.codecs.passes import Draw
from reference_impls.kernels import Formula

__all__ = ["BITS", "WIRE_VERSION", "Natural"]

WIRE_VERSION: Final = 2
BITS: Final = 9
_MANTISSA: Final = 0x7FFFFF


@dataclass(frozen=True)
class Natural(BlockCodec):
    """Codec: sign and exponent."""

    apart: ClassVar[bool] = True
    by_pattern: ClassVar[bool] = True

    @property
    def unbiased(self) -> bool:
        return True

    def message(self) -> BlockMessage:
        return BlockMessage(BITS, 0, numbers=0)

    def measure(self, x: Tensor, size: int) -> Tensor:
        return x.new_empty(*x.shape[:-1], 1, 0)

    def formula(self) -> Formula:
        return Formula("natural")

    def code(self, x: Tensor, found: Sequence[Tensor], draw: Draw) -> Tensor:
        return self.field(x, found, draw, 8, 0) | (((x >> 31) & 1) << 8)

    def field(self, x: Tensor, found: Sequence[Tensor], draw: Draw, size: int, lowest: int) -> Tensor:
        if lowest == 8:  # the sign, which needs no draw
            return (x >> 31) & 1
        exponent = (x >> 23) & 255
        up = ((draw() & _MANTISSA) - (x & _MANTISSA)) >> 31  # -1 where the draw is below
        return (exponent - up).minimum(exponent.clamp(min=254))  # 254 and 255 stay

    def value(self, codes: Tensor, found: Sequence[Tensor]) -> Tensor:
        exponent = codes & 255
        magnitude = (exponent << 23).view(torch.float32)  # exponent 0: zero; 255: infinity
        return torch.where(exponent == 0, 0.0, torch.where(codes > 255, -magnitude, magnitude))
