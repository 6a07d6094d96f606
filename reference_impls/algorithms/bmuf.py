"""BMUF: blockwise model-update filtering, a momentum on the progress of whole rounds. Chen & Huo, ICASSP 2016.

After each round of `period` local steps: D = mean progress, u <- b u + a D, A <- A - u with b = `outer_momentum` (block
momentum) and a = `outer_lr` (block learning rate); with Nesterov block momentum the next round begins at the look-ahead
point A - u - b u, which becomes the anchor. b = 0 and a = 1 is local SGD.

Differences: the paper could not be read; fairseq's code was. That code lets workers train apart for the first 500
updates, then takes rank 0's model, throws the others' work away and resets the optimizers; here the first round is like
all others. Inner states stay local unless `inner_state` says otherwise, as there. Buffers are not touched.
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
class BMUF(TimedAsLocalSGD):
    """Local updates with block momentum. Kinds of step: ``local``, ``average``."""

    period: int = option(50, "local steps in a round, at least 1", ge=1)
    outer: OuterKind = option("bmuf", "bmuf (classic block momentum) or bmuf-nesterov")
    outer_momentum: float = option(0.875, "block momentum", ge=0, lt=1)

    def plan(self, clock: Clock) -> str:
        return round_kind(clock, Constant(self.period, total=self.total_steps))

    def reduce(self, shard: Shard) -> Tensor:
        if shard.step == 0:
            begin_round(self, shard)  # A <- x
        return shard.grads  # a step of the local optimizer

    def synchronize(self, shard: Shard) -> Exchange[None]:
        if shard.kind != "average":
            return
        if self.outer_optimizer.is_average:  # of rate 1 without momentum: local SGD
            yield from average(self, shard)
            return
        mean = yield from self.compression.mean(shard, pseudogradient(shard), "progress")  # D = mean(A - x)
        outer_step(self, shard, mean)  # u <- b u + a D; A <- A - u, for Nesterov - b u as well
        shard.params.copy_(shard.state["anchor"])
        yield from settle_inner_states(self, shard)
