"""NoLoCo: local AdamW, and pairs of workers instead of an average over all. arXiv 2506.10911.

After `period` local steps workers are paired at random and exchange their slow weights A and their progress A - x:
m <- b m + a mean_pair(x - A) + a (mean_pair(A) - A), A <- A + m, x <- A, with a = `outer_lr`, b = `outer_momentum`. The
pairs' differences cancel over all workers, so the mean of A moves as under DiLoCo with heavy-ball; the last term draws
the workers together, and they are never quite equal.

Differences: the paper could not be read; its authors' code was. Pairs are drawn from the seed and the step, the same for
all buckets; with an odd number of workers one stays alone and takes its own values for the pair's. Evaluate any worker, or
their mean. Inner states stay local. Progress travels in full precision. What is not finite spreads from pair to pair, not
to all at once. Buffers are not touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import Algorithm, Clock, Cost, Shard, Slot, option, per_rank
from reference_impls.algorithms.model_averaging import (
    ModelAveraging,
    round_kind,
    settle_inner_states,
)
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.optimizers import OuterKind
from reference_impls.randomness import Key
from reference_impls.schedules.rules import Constant


@dataclass(frozen=True)
class NoLoCo(ModelAveraging):
    """Kinds of step: ``local`` and ``average``, which ends a round in pairs."""

    period: int = option(50, "inner steps in a round, at least 1", ge=1)
    outer: OuterKind = option("heavy-ball", "outer optimizer")
    outer_lr: float = option(0.7, "a: learning rate of the outer step", ge=0)
    outer_momentum: float = option(0.5, "b: momentum of the outer step", ge=0, lt=1)

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"anchor": per_rank(), "outer_momentum": per_rank()}

    def check(self, world: Group) -> None:
        super().check(world)
        if self.carrier != "fp32" or self.inner_policy == "average" or self.outer != "heavy-ball":
            raise UnsupportedError(
                "pairs exchange in full precision, average nothing and step by heavy-ball: carrier='fp32', "
                "inner_state='keep', outer='heavy-ball'"
            )

    def plan(self, clock: Clock) -> str:
        return round_kind(clock, Constant(self.period, total=self.total_steps))

    def reduce(self, shard: Shard) -> Tensor:
        if shard.step == 0:
            shard.state["anchor"].copy_(shard.params)
        return shard.grads  # a step of the local optimizer

    def synchronize(self, shard: Shard) -> Exchange[None]:
        if shard.kind != "average":
            return
        anchor, momentum = shard.state["anchor"], shard.state["outer_momentum"]
        own = buffers.empty(2 * shard.d, anchor.dtype, anchor.device)
        torch.sub(shard.params, anchor, out=own[: shard.d])
        own[shard.d :] = anchor
        other, partner = own, self.partner(shard.clock)
        came = yield from shard.world.send_recv(own, "pair", to=partner, source=partner)
        if came is not None:
            other = came
        both = torch.add(own, other, out=buffers.empty_like(own)).div_(2)
        progress, slow = both.view(2, shard.d)
        momentum.mul_(self.outer_momentum).add_(progress, alpha=self.outer_lr)
        momentum.add_(slow.sub_(anchor), alpha=self.outer_lr)
        anchor.add_(momentum)
        shard.params.copy_(anchor)
        yield from settle_inner_states(self, shard)

    def partner(self, clock: Clock) -> int | None:
        """The rank with which this one exchanges in this step; None if it stays alone."""
        draws = Key.of(seed=clock.seed, step=clock.step, stage="pairs").bits(clock.world.size)
        order: list[int] = draws.argsort(stable=True).tolist()
        place = order.index(clock.world.rank) ^ 1
        return order[place] if place < len(order) else None

    def steady(self) -> Mapping[str, Algorithm]:
        return self.own_rounds()

    def wire_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Mapping[str, Cost]:
        return {"local": 0.0, "average": 8 * wire.elements(shapes) * (n // 2 * 2) / n}
