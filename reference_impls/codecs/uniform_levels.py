"""QSGD's quantiser: equal levels of a norm of each block, rounded at random without bias. Wire format version 2.

Spec: QSGD, arXiv 1610.02132. With N the norm of the element's block, ``q = sign(x) sr(s |x| / N)`` in -s .. s, decoded
as ``q N / s``. E|Q(x) - x|^2 <= min(B / s^2, sqrt(B) / s) |x|^2 for l2 and blocks of B elements, B N^2 / (4 s^2) for linf.
The message (`codecs.blocks`): q + s in `packed_integers.width(2 s)` bits, and N. Rounding is `codecs.dithering`'s, on the
stream's element of the same index; its policies for zero, for a norm that was rounded down and for what is not finite
hold, block by block.

divisor: x is divided by it before it is rounded, and what is decoded is multiplied by it: s / divisor levels are in use.
It is there for measuring what that costs; unbiased all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from torch import Tensor

from reference_impls.codecs import dithering
from reference_impls.codecs.block_levels import BlockLevels
from reference_impls.codecs.passes import Draw
from reference_impls.kernels import Formula
from reference_impls.randomness import as_uniform

__all__ = ["WIRE_VERSION", "UniformLevels"]

WIRE_VERSION: Final = 2


@dataclass(frozen=True)
class UniformLevels(BlockLevels):
    """Codec. levels: s, 1 .. 32767."""

    divisor: int = 1

    most: ClassVar[int] = (1 << 15) - 1

    def formula(self) -> Formula:
        return Formula("uniform", self.levels, self.divisor, "linf" if self.norm == "linf" else None)

    def code(self, x: Tensor, found: Sequence[Tensor], draw: Draw) -> Tensor:
        return dithering.rounded(x, found[0] * self.divisor, self.levels, as_uniform(draw())) + self.levels

    def value(self, codes: Tensor, found: Sequence[Tensor]) -> Tensor:
        return dithering.restored(codes - self.levels, found[0] * self.divisor, self.levels)
