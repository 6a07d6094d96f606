"""Natural compression: gradients travel as signs and powers of two, 9 bits a coordinate. arXiv 1905.10988.

Every number goes to one of its two neighbouring powers of two, at random and without bias: E|C(x) - x|^2 <= |x|^2 / 8.
``two-phase`` is the paper's bidirectional form: whoever holds the mean compresses it once more. No scale, no state.

Differences: 9 bits are really sent (GRACE's variant sends 8, with exponents clipped to 2^-108 .. 2^18). Subnormal numbers
are rounded without bias to 0 or 2^-126, numbers from 2^127 on down to 2^127. The master is spread over all ranks, piece
by piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reference_impls.algorithm import option
from reference_impls.algorithms.compressed_gradient import CompressedGradient
from reference_impls.codecs.codec import Codec
from reference_impls.codecs.levels import Natural


@dataclass(frozen=True)
class NaturalCompression(CompressedGradient):
    """g <- C(mean of C(g_i)), C rounding each number to a power of two: the composition of that codec and any form."""

    form: Literal["gather", "two-phase"] = option(
        "two-phase", "two-phase (bidirectional, the paper's) or gather (all messages to everybody)"
    )

    def codec(self, n: int) -> Codec:
        return Natural()
