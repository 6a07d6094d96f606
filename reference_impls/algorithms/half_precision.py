"""All-reduce of the gradient in 16-bit floats: bf16 as it is, or fp16 under a shared power of two.

``all-reduce``: the collective adds the 16-bit numbers, and rounds each partial sum. ``two-phase``: the owner of a piece
adds what it receives in fp32 in the order of ranks, divides, and rounds once more: 2 roundings whatever n is, at the same
2 (n-1)/n x 16 bits, and the same bits on every backend.

fp16: all numbers are first multiplied by 2^k, k such that the largest magnitude over all ranks (4 bytes in a max
all-reduce) times n stays within 2^15, so no sum can overflow; multiplying by powers of two loses nothing. Numbers below
n 2^-29 of the largest lose precision, and below about n 2^-40 they are lost.

Differences from torch's DDP hooks: those divide by n before the sum and do not scale, so fp16 overflows from 65520 on
and gradients under 6e-8 are lost. The power of two is a bucket's. Biased, as rounding to nearest is. One worker rounds
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import Shard, option
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs import halves
from reference_impls.codecs.halves import FORMATS, Halves
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.coded_mean import two_phase_mean


@dataclass(frozen=True)
class HalfPrecision(WithLocalOptimizer):
    """g <- mean over workers of g, through 16-bit floats."""

    format: Literal["bf16", "fp16"] = option("bf16", "bf16 or fp16 (scaled)")
    form: Literal["all-reduce", "two-phase"] = option(
        "all-reduce", "all-reduce (sums in 16 bits) or two-phase (sums in fp32)"
    )

    def check(self, world: Group) -> None:
        if self.format == "fp16" and world.size > 1 << 10:
            raise UnsupportedError("fp16 has room for sums over 1024 ranks: use bf16")

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if shard.world.size == 1:
            return shard.grads
        x = shard.grads.to(torch.float32)
        power = (yield from self._power(shard, x)) if self.format == "fp16" else 0
        scaled = torch.mul(x, 2.0**power, out=buffers.empty_like(x))
        if self.form == "two-phase":
            mean = yield from two_phase_mean(shard, scaled, Halves(self.format), "gradient")
        else:
            message = buffers.empty_like(scaled, FORMATS[self.format]).copy_(scaled)
            total = yield from shard.world.sum(message, "gradient")
            mean = scaled.copy_(total).div_(shard.world.size)
        return mean.mul_(2.0**-power)

    def _power(self, shard: Shard, x: Tensor) -> Exchange[int]:
        largest = torch.stack(x.aminmax()).abs().amax().view(1)
        return halves.power_for(float((yield from shard.world.max(largest, "scale"))), shard.world.size)
