"""DiLoCo: hundreds of local AdamW steps, then a Nesterov step along the mean progress. arXiv 2311.08105.

Each worker takes H = `period` steps from the shared parameters A; D = mean(A - x) is the outer gradient; u <- b u + D,
A <- A - a (D + b u) with a = `outer_lr`, b = `outer_momentum`. AdamW's states stay with the workers. Outer sgd of rate 1
is federated averaging; H = 1 with sgd inside and outside is data-parallel training.

Differences: with `total_steps` the last round ends exactly there (the published training scripts leave a partial round
unsynchronised: as here without `total_steps`). Workers have equal weights. Every worker keeps the anchor and the outer
momentum, on its own device (the published code keeps them on the host). Buffers are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from reference_impls.algorithm import Clock, Shard, option
from reference_impls.algorithms.local_updates import TimedAsLocalSGD
from reference_impls.algorithms.model_averaging import (
    average,
    begin_round,
    outer_step,
    pseudogradient,
    round_kind,
    settle_inner_states,
)
from reference_impls.collectives import Exchange
from reference_impls.optimizers import OuterKind
from reference_impls.schedules.rules import Constant


@dataclass(frozen=True)
class DiLoCo(TimedAsLocalSGD):
    """Local updates with an outer Nesterov momentum. Kinds of step: ``local``, ``average``."""

    period: int = option(500, "H: inner steps in a round, at least 1", ge=1)
    outer: OuterKind = option("nesterov", "outer optimizer")
    outer_lr: float = option(0.7, "learning rate of the outer optimizer", ge=0)
    outer_momentum: float = option(0.9, "momentum of the outer optimizer", ge=0, lt=1)

    def plan(self, clock: Clock) -> str:
        return round_kind(clock, Constant(self.period, total=self.total_steps))

    def reduce(self, shard: Shard) -> Tensor:
        if shard.step == 0:
            begin_round(self, shard)  # A <- x
        return shard.grads  # a step of the inner optimizer

    def synchronize(self, shard: Shard) -> Exchange[None]:
        if shard.kind != "average":
            return
        if self.outer_optimizer.is_average:  # of rate 1 without momentum: federated averaging
            yield from average(self, shard)
            return
        mean = yield from self.compression.mean(shard, pseudogradient(shard), "progress")  # D = mean(A - x)
        outer_step(self, shard, mean)  # u <- b u + D; A <- A - a (D + b u)
        shard.params.copy_(shard.state["anchor"])
        yield from settle_inner_states(self, shard)
