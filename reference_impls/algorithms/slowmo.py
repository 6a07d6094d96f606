"""SlowMo: a slow momentum on top of local or gossiping workers. arXiv 1910.00643.

Workers take `period` steps of a base method from a common anchor A, then average exactly: u <- b u + (A - mean x) / g,
A <- A - a g u, and go on from A; g is the learning rate, a = `outer_lr`, b = `outer_momentum`. Bases: ``local`` (local
steps), ``sgp`` and ``osgp`` (stochastic gradient push, without and with overlap: `reducers.push_sum`). With
`average` = False workers do not average, each keeps an anchor and a slow momentum of its own, and gossip alone holds
them together.

Differences: g is that of the last step of the round, by parameter group, as in the published codes; the paper holds it
constant within a round. Where g is 0 the limit is taken (`optimizers.outer`). A round is `period` steps, the first one
too (torchdistx averages after the first step, so its first round is longer by one); with `total_steps` the last one ends
there. Anchor and slow momentum are part of checkpoints (torchdistx forgets the anchor). Inner states: ``paper`` resets
sgd's momentum and keeps Adam's, as the paper did; the published codes keep all. In the step that averages there is no
gossip, and what is under way arrives first. A message of OSGP is used exactly `overlap` steps later, our reading.
Gradients are not averaged within nodes (fairscale does). While workers gossip, what is not finite spreads along the graph,
in ceil(log2 n) steps to all. Buffers are not touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from reference_impls import wire
from reference_impls.algorithm import Algorithm, Clock, Cost, Shard, Slot, option, per_rank
from reference_impls.algorithms.local_updates import TimedAsLocalSGD
from reference_impls.algorithms.model_averaging import (
    average,
    begin_round,
    outer_step,
    pseudogradient,
    round_kind,
    settle_inner_states,
)
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.optimizers import OuterKind
from reference_impls.reducers.push_sum import PushSum
from reference_impls.schedules.rules import Constant


@dataclass(frozen=True)
class SlowMo(TimedAsLocalSGD):
    """Kinds of step: ``local`` (gossips, where the base does) and ``average``, which ends a round."""

    period: int = option(12, "steps of the base method in a round, at least 1", ge=1)
    outer: OuterKind = option("slowmo", "outer optimizer")
    outer_momentum: float = option(0.5, "b: slow momentum", ge=0, lt=1)
    inner_state: Literal["paper", "keep", "average", "reset"] = option(  # type: ignore[assignment]
        "paper", "states of the local optimizer at the end of a round: paper (reset for sgd, else keep), "
        "keep, average, reset",
    )  # fmt: skip
    base: Literal["local", "sgp", "osgp"] = option("local", "base method: local, sgp or osgp")
    overlap: int = option(
        1, "steps between sending a message and using it (osgp); without overlap is base='sgp'", ge=1
    )
    average: bool = option(True, "average exactly at the end of a round; without, gossip alone (sgp, osgp)")

    @property
    def inner_policy(self) -> str:
        if self.inner_state == "paper":
            return "reset" if self.optimizer == "sgd" else "keep"
        return self.inner_state

    @property
    def gossip(self) -> PushSum | None:
        """The base's gossip, if it has any."""
        return None if self.base == "local" else PushSum(self.overlap if self.base == "osgp" else 0)

    @property
    def slots(self) -> Mapping[str, Slot]:
        found = {**super().slots, **(self.gossip.slots if self.gossip else {})}
        if not self.average:
            found |= {name: per_rank() for name in ("anchor", "outer_momentum") if name in found}
        return found

    def check(self, world: Group) -> None:
        super().check(world)
        if not self.average and (self.base == "local" or self.carrier != "fp32"):
            raise UnsupportedError(
                "average=False is for bases that gossip and carries nothing: choose base='sgp' or 'osgp', carrier='fp32'"
            )

    def plan(self, clock: Clock) -> str:
        kind = round_kind(clock, Constant(self.period, total=self.total_steps))
        if self.gossip:
            self.gossip.count(clock, flush=kind == "average" and self.average)
        return kind

    def reduce(self, shard: Shard) -> Tensor:
        if shard.step == 0:
            if self.gossip:
                self.gossip.begin(shard)
            begin_round(self, shard)  # A <- x
        return shard.grads  # a step of the local optimizer

    def synchronize(self, shard: Shard) -> Exchange[None]:
        ends = shard.kind == "average"
        if self.gossip:
            yield from self.gossip.flush(shard) if ends and self.average else self.gossip.push(shard)
        if not ends:
            return
        if self.average:
            yield from average(self, shard)  # u <- b u + (A - mean x) / g; A <- A - a g u; x <- A
        else:  # the same, of this worker's parameters alone
            outer_step(self, shard, pseudogradient(shard))
            shard.params.copy_(shard.state["anchor"])
            yield from settle_inner_states(self, shard)
        if self.gossip:
            self.gossip.replace(shard)

    def steady(self) -> Mapping[str, Algorithm]:
        return super().steady() if self.base == "local" else self.own_rounds()

    def wire_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Mapping[str, Cost]:
        pushed = 4.0 * wire.elements(shapes) if self.base != "local" and n > 1 else 0.0
        averaged = self.average_bytes(shapes, n)
        return {"local": pushed, "average": averaged if self.average else pushed}
