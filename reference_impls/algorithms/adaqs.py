"""AdaQS: one bit more a coordinate whenever the gradient's mean has halved against its deviation (Guo et al., 2020).

m and v are running means of the mean gradient and of its square; the ratio is |m| / sqrt(sum(v - m^2)) over the whole
model. At the start gradients agree from step to step and few levels do; near an optimum they are noise around little,
and coarse levels would be noise upon it. QSGD's quantiser, levels doubled when the ratio has fallen by `fall` from
its highest since the last time, looked at every `interval` steps; never fewer again.

Differences: neither the paper (IEEE ICASSP 2020) nor its code could be read. That precision follows the ratio of mean to
standard deviation and doubles is known from others' comparisons; how the ratio is taken (over steps, with the decay
here, without the newest gradient), when, and by how much it must fall are our own reading.
No claim of the paper can be held against this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import Clock, Shard, Slot, option, replicated
from reference_impls.algorithms.adaptive_bits import WIDEST, AdaptiveBits
from reference_impls.codecs.sums import fixed_sum
from reference_impls.collectives import Exchange
from reference_impls.schedules import doubled

_WHEN = ("decay", "fall", "interval", "min_bits", "max_bits", "warmup_steps")


@dataclass(frozen=True)
class AdaQS(AdaptiveBits):
    """g <- mean of g_i, from min_bits a coordinate upwards."""

    min_bits: int = option(4, "bits a coordinate at the start, sign included", ge=2, le=WIDEST)
    max_bits: int = option(8, "most bits a coordinate", ge=2, le=WIDEST)
    decay: float = option(0.9, "of the running means of the gradient and its square", gt=0, lt=1)
    fall: float = option(2.0, "factor by which the ratio must fall for one bit more", gt=1)
    interval: int = option(100, "steps between two looks at the ratio", ge=1)

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {**super().slots, "mean": replicated(), "square": replicated()}

    def plan(self, clock: Clock) -> str:
        return "warm-up" if clock.step < self.warmup_steps else f"{self.width_at(clock)}-bit"

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        return (yield from self.of_kind(shard.kind).reduce(shard))  # QSGD in as many bits

    def width_at(self, clock: Clock) -> int:
        """Bits of this step, min_bits .. max_bits; writes ``clock.counters``."""
        counters = clock.counters
        bits = int(counters.get("bits", self.min_bits))
        ratio = counters.get("ratio", math.nan)
        if (clock.step - self.warmup_steps) % self.interval == 0 and 0 < ratio < math.inf:
            reference = counters.get("reference", 0.0)
            bits, counters["reference"] = doubled(bits, ratio, reference, self.fall)
        counters["bits"] = min(bits, self.max_bits)
        return int(counters["bits"])

    def update(self, shard: Shard, reduced: Tensor) -> None:
        own = buffers.empty_like(shard.params).copy_(reduced)
        shard.state["mean"].lerp_(own, 1 - self.decay)
        shard.state["square"].lerp_(own.square_(), 1 - self.decay)
        super().update(shard, reduced)

    def remember(self, shards: Sequence[Shard], reduced: Sequence[Tensor]) -> Mapping[str, int | float]:
        clock = shards[0].clock
        if (clock.step + 1 - self.warmup_steps) % self.interval:
            return {}
        means = [_wide(s.state["mean"]).square_() for s in shards]
        squares = [_wide(s.state["square"]) for s in shards]
        signal = float(sum(fixed_sum(m) for m in means))
        noise = float(sum(fixed_sum(v.sub_(m)) for v, m in zip(squares, means, strict=True)))
        return {"ratio": math.sqrt(signal / noise) if noise > 0 else math.nan}

    when: ClassVar[Sequence[str]] = _WHEN


def _wide(x: Tensor) -> Tensor:
    return buffers.empty_like(x, torch.float64).copy_(x)
