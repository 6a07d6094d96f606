"""CGX: equal steps between the least and greatest value of each block, summed by scatter, reduce, gather. arXiv 2111.08617.

Rank r averages what it receives of the r-th piece, codes the mean once more, and everybody, rank r included, takes the
decoded codes. Vectors and tensors under 1024 elements travel in fp32. Metadata: two float32 a block.

Differences: the paper could not be read; its code (torch_cgx) was. Rounding is at random and unbiased by default, which
is a build flag there (default: to nearest, biased; ``rounding="nearest"``). Rank r's own piece is coded like the others'
before it is added (there it stays in full precision). Blocks of 512 count within a piece of the joined large tensors,
not within one layer. Means are divided by n after the sum, there before. Optional error feedback is off, as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reference_impls.algorithm import option
from reference_impls.algorithms.compressed_gradient import CompressedGradient
from reference_impls.codecs.codec import Codec
from reference_impls.codecs.levels import MinMax
from reference_impls.errors import UnsupportedError


@dataclass(frozen=True)
class CGX(CompressedGradient):
    """g <- mean of the workers' gradients, coded between the ends of each block, twice."""

    form: Literal["gather", "two-phase"] = option(
        "two-phase", "two-phase (scatter, reduce, gather) or gather (all messages to everybody)"
    )
    smallest: int = option(
        1024, "tensors of fewer elements, or of one dimension, stay in fp32; 0: none do", ge=0
    )
    bits: int = option(4, "bits of a code: 1 to 8; for more see allreduce-bf16", ge=1, le=8)
    block_size: int = option(512, "elements of a block; 0: one block a message", ge=0)
    rounding: Literal["nearest", "stochastic"] = option(
        "stochastic", "stochastic (unbiased) or nearest (biased, the published default)"
    )

    def codec(self, n: int) -> Codec:
        if not 1 <= self.bits <= 8:
            raise UnsupportedError(f"bits must be 1 to 8, got {self.bits}; uncompressed is allreduce")
        return MinMax(self.bits, self.block_size, self.rounding)
