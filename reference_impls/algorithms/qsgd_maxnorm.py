"""QSGD-MaxNorm: levels of the largest magnitude over all workers, s of them to each worker, summed. arXiv 2109.12497.

M = largest |g| over all ranks (a max all-reduce); q = sign(g) sr(s |g| / M) with s = 2^bits - 1, whatever n is; codes are
added as integers and decoded as sum(q) M / (s n). It came before Global-QSGD, whose standard dithering is the same with s
= floor((2^(b-1) - 1) / n), to the bit where the two agree on s. Here a worker's precision is fixed and the width of the
sum grows with n; there it is the other way round. Unbiased, no state.

With `fine_bits` there are two grids (their multi-scale form): s' = 2^fine_bits - 1 levels where the codes of all ranks
then still fit -s .. s, else s. Which one it is travels as one bit a coordinate, in two phases.

Differences: the paper could not be read; its code was. There, codes of 7 bits travel as int8, and two of them overflow.
Here sums have the bits that they need: packed, in two phases, or an all-reduce of 4, 8, 16 or 32 bits, the least that
holds n s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from reference_impls.algorithm import Shard, option
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs import dithering
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.integer_sum import (
    WIDTHS,
    Scaling,
    code_sum,
    shared_scale,
    standard_mean,
)
from reference_impls.reducers.majority import unanimous

FORMS = ("two-phase", "all-reduce")
SCALES = ("bucket", "tensor")


@dataclass(frozen=True)
class QSGDMaxNorm(WithLocalOptimizer):
    """g <- M / (s n) times the sum of codes."""

    bits: int = option(4, "q: 2^q - 1 levels above zero, the sign not counted; 1 to 15", ge=1, le=15)
    fine_bits: int = option(
        0, "q' > q: levels where all codes then still fit q bits; 0: one grid", ge=0, le=20
    )
    form: Literal["two-phase", "all-reduce"] = option("two-phase", "two-phase (packed) or all-reduce")
    scale: Literal["bucket", "tensor"] = option("bucket", "one maximum a bucket, or a tensor")

    def check(self, world: Group) -> None:
        if 0 < self.fine_bits <= self.bits:
            raise UnsupportedError(f"fine_bits must be above bits, {self.bits}, or 0; got {self.fine_bits}")

    @property
    def _levels(self) -> int:
        return (1 << self.bits) - 1

    def _width(self, n: int) -> int:
        """Bits of a sum over n ranks: what is needed, and for an all-reduce what can be had."""
        needed = (n * self._levels).bit_length() + 1
        return needed if self.form == "two-phase" else next(w for w in WIDTHS if w >= needed)

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        n, scaling = shard.world.size, Scaling("linf", self.scale)
        width = self._width(n)
        if not self.fine_bits:
            return (
                yield from standard_mean(
                    shard, shard.grads, "gradient", bits=width, levels=self._levels, scaling=scaling,
                    transport=self.form,
                )
            )  # fmt: skip
        x = shard.grads.to(torch.float32)
        largest = yield from shared_scale(shard, x, "gradient", scaling)
        fine = (1 << self.fine_bits) - 1
        fits = yield from unanimous(shard.world, x.abs() / largest * fine <= self._levels, "gradient-grid")
        # s levels of M s / s' are the fine grid where it fits
        step = torch.where(fits, largest * (self._levels / fine), largest)
        codes = torch.empty(shard.d, dtype=torch.int32, device=x.device)
        dithering.encode(x, step, self._levels, shard.key("gradient-dither"), codes)
        total = yield from code_sum(
            shard.world, codes, width, self._levels, "gradient-codes", self.form
        )  # fmt: skip
        mean = shard.scratch("gradient-mean", shard.d, torch.float32)
        dithering.decode(total, step, self._levels, n, mean)
        return mean
