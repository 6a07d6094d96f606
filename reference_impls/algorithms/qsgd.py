"""QSGD: each worker rounds its gradient at random onto s levels of a norm of each block. arXiv 1610.02132.

q = sign(g) sr(s |g| / N), N the norm of the element's block of B; everybody gathers all messages (codes and norms) and
averages what they decode to. Unbiased, no state. ``linf`` is the paper's practical variant. ``natural-dithering`` (arXiv
1905.10988) and ``nuqsgd`` (arXiv 1908.06077) are the same with powers of two of N as levels.

Differences: messages have a fixed length, b bits a coordinate (s = 2^(b-1) - 1 and its negatives, 2 s + 1 values; with
`levels` s is given, and b is what 2 s needs): the paper's own GPU code does not use its Elias coding either, and here
the bits that it would save are not saved. The last block of a bucket is shorter. Gather is the paper's form; two-phase
codes the mean once more. GRACE's code divides by zero on a zero block; here it is zeros. The paper sends tensors of fewer
than 10,000 elements uncompressed: ``smallest`` does that, and is off.

``qsgd-published`` is not QSGD: it is what Global-QSGD's repository compares itself with. It divides by n before rounding
onto 127 levels of one maximum a bucket, though it gathers, and so uses 127 / n levels. It exists to measure what that
costs.

NUQSGD's and natural dithering's bodies: the first could not be read, its code was; that has no level at zero, here there
is one, as in the theorem. Both take k = 2^(b-1) - 1 levels above zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reference_impls.algorithm import option
from reference_impls.algorithms.compressed_gradient import CompressedGradient
from reference_impls.codecs.codec import Codec
from reference_impls.codecs.levels import GeometricLevels, UniformLevels
from reference_impls.errors import UnsupportedError

_GEOMETRIC_BITS = 7  # 63 powers of two


@dataclass(frozen=True)
class Levels(CompressedGradient):
    """Options of a codec that rounds onto levels of a norm of each block."""

    smallest: int = option(
        0, "tensors of fewer elements, or of one dimension, stay in fp32; 0: none do", ge=0
    )
    bits: int = option(4, "bits of a code, with its sign: 2 to 16", ge=2, le=16)
    levels: int = option(0, "s, levels above zero; 0: as many as bits hold, 2^(bits-1) - 1", ge=0)
    norm: Literal["l2", "linf"] = option("l2", "what scales a block: l2, or linf (its largest magnitude)")
    block_size: int = option(512, "elements of a block; 0: one block a message", ge=0)

    def _levels(self, widest: int) -> int:
        if self.levels:
            return self.levels
        if not 2 <= self.bits <= widest:
            raise UnsupportedError(
                f"bits must be 2 to {widest} (a sign and at least one level), got {self.bits}"
            )
        return int(2 ** (self.bits - 1)) - 1


@dataclass(frozen=True)
class QSGD(Levels):
    """g <- mean of N sign(g_i) sr(s |g_i| / N) / s: the composition of QSGD's quantiser and any form."""

    divide_first: bool = option(False, "divide by n before rounding (a published defect, for comparison)")

    def codec(self, n: int) -> Codec:
        return UniformLevels(self._levels(16), self.norm, self.block_size, n if self.divide_first else 1)


@dataclass(frozen=True)
class GeometricQSGD(Levels):
    """g <- mean of the workers' gradients, rounded to powers of two of N: the same composition with these levels."""

    def codec(self, n: int) -> Codec:
        return GeometricLevels(self._levels(_GEOMETRIC_BITS), self.norm, self.block_size)
