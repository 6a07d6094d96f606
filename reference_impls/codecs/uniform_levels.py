"""QSGD's quantiser: equal levels of a norm of each block, rounded at random without bias. Wire format version 1.

Spec: QSGD, arXiv 1610.02132. With N the norm of the element's block, ``q = sign(x) sr(s |x| / N)`` in -s .. s, decoded
as ``q N / s``. E|Q(x) - x|^2 <= min(B / s^2, sqrt(B) / s) |x|^2 for l2 and blocks of B elements, B N^2 / (4 s^2) for linf.
The message (`codecs.blocks`): q + s in `packed_integers.width(2 s)` bits, and N. Rounding is `codecs.dithering`'s, on the
stream's element of the same index; its policies for zero, for a norm that was rounded down and for what is not finite
hold, block by block.

divisor: x is divided by it before it is rounded, and what is decoded is multiplied by it: s / divisor levels are in use.
It is there for measuring what that costs; unbiased all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from torch import Tensor

from reference_impls.codecs import dithering
from reference_impls.codecs.block_levels import BlockLevels
from reference_impls.randomness import Key

__all__ = ["WIRE_VERSION", "UniformLevels"]

WIRE_VERSION: Final = 1


@dataclass(frozen=True)
class UniformLevels(BlockLevels):
    """Codec. levels: s, 1 .. 32767."""

    divisor: int = 1

    most: ClassVar[int] = (1 << 15) - 1

    def round(self, x: Tensor, norm: Tensor, key: Key, codes: Tensor) -> None:
        dithering.encode(x, norm * self.divisor, self.levels, key, codes)
        codes.add_(self.levels)

    def restore(self, codes: Tensor, norm: Tensor, out: Tensor) -> None:
        dithering.decode(codes.sub_(self.levels), norm * self.divisor, self.levels, 1, out)
