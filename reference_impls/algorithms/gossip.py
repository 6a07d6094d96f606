"""Local updates whose workers gossip: SlowMo's push-sum bases, and NoLoCo's pairs.

Push-sum on the one-peer exponential graph: half of what a rank has goes to one other rank. arXiv 1811.10792.
At step k rank r sends to rank r + 2^(k mod ceil(log2 n)). With n a power of two, log2 n steps without gradients give
everybody the exact mean. `overlap` = 0 (SGP): what was sent in a step arrives in it. `overlap` = s > 0 (OSGP): a message
is used s steps after it was sent and travels in the background until then. What is under way is missing, so a rank
holds a numerator x and a push-sum weight w, and works with z = x / w; the local step moves x by as much as it moved z.

Every rank sends one message and hears one, so all ranks have the same weight at all times; it is computed from the
clock instead of being sent, and is 1 throughout for SGP, which then needs no numerator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from reference_impls.algorithms.local_updates import TIMED_ROUNDS, OuterKind, PeriodicAveraging
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket, StateSpec, Timed, TrainState, option, per_rank
from reference_impls.core.collectives import Exchange, Group, finish, start
from reference_impls.core.compute import Key
from reference_impls.core.errors import UnsupportedError


@dataclass(frozen=True)
class PushSum:
    """`overlap`: steps between sending a message and using it."""

    overlap: int = 0

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {"numerator": per_rank()} if self.overlap else {}

    def count(self, train_state: TrainState, flush: bool) -> None:
        """Move the weights on for this step; called by `plan`. flush: all that is under way arrives, none is sent."""
        counters = train_state.counters
        own = counters.get("weight", 1.0)
        counters["weight_before"] = own
        sent = [counters.pop(f"sent-{age}", 0.0) for age in range(1, self.overlap + 1)]  # weights under way
        if flush or train_state.world.size == 1:
            counters["weight"] = 1.0  # n equal weights, and n is their sum
            return
        flying = [own / 2, *sent]
        counters["weight"] = own / 2 + flying.pop()
        counters.update({f"sent-{age}": weight for age, weight in enumerate(flying, start=1)})

    def begin(self, bucket: Bucket) -> None:
        """Before the first local step: the numerator is what the rank starts with."""
        if self.overlap:
            bucket.state["numerator"].copy_(bucket.params)

    def push(self, bucket: Bucket) -> Exchange[None]:
        """After the local step: send half, add what arrives; the bucket's parameters become z."""
        world = bucket.world
        if world.size == 1:
            return
        x = self._numerator(bucket).mul_(0.5)
        half = compute.empty_like(x).copy_(x)
        hop = 1 << bucket.train_state.choice(lambda now: now.step % (world.size - 1).bit_length())
        sending = world.send_recv(
            half, "push", to=(world.rank + hop) % world.size, source=(world.rank - hop) % world.size
        )
        if not self.overlap:
            came = yield from sending
            assert came is not None  # everybody sends and hears
            x.add_(came)
            return
        bucket.pending[f"push-{bucket.step}"] = yield from start(sending)
        yield from self._arrive(bucket, x, bucket.step - self.overlap)
        self.settle(bucket)

    def flush(self, bucket: Bucket) -> Exchange[None]:
        """Instead of `push`: all that is under way arrives, so weights are 1 and the parameters are the numerator."""
        if not self.overlap or bucket.world.size == 1:
            return
        x = self._numerator(bucket)
        for step in range(bucket.step - self.overlap, bucket.step):
            yield from self._arrive(bucket, x, step)
        bucket.params.copy_(x)

    def settle(self, bucket: Bucket) -> None:
        """Parameters z = x / w from the numerator."""
        bucket.params.copy_(bucket.state["numerator"]).div_(_counted(bucket, "weight"))

    def replace(self, bucket: Bucket) -> None:
        """The parameters were moved: the numerator follows, x = w z."""
        if self.overlap:
            bucket.state["numerator"].copy_(bucket.params).mul_(_counted(bucket, "weight"))

    def _numerator(self, bucket: Bucket) -> Tensor:
        """x after the local step; the parameters themselves where there is no numerator."""
        if not self.overlap:
            return bucket.params
        x: Tensor = bucket.state["numerator"]
        moved = torch.div(x, _counted(bucket, "weight_before"), out=compute.empty_like(x))
        return x.add_(torch.sub(bucket.params, moved, out=moved))

    @staticmethod
    def _arrive(bucket: Bucket, x: Tensor, step: int) -> Exchange[None]:
        """Add what was sent in `step`, if anything was."""
        name = f"push-{step}"
        if name in bucket.pending:
            x.add_((yield from finish(bucket.pending.pop(name))))


def _counted(bucket: Bucket, counter: str) -> float | Tensor:
    return bucket.train_state.number(lambda now: now.counters[counter])


@dataclass(frozen=True)
class SlowMo(PeriodicAveraging):
    """SlowMo: a slow momentum on top of local or gossiping workers. arXiv 1910.00643.

    Workers take `period` steps of a base method from a common anchor A, then average exactly: u <- b u + (A - mean x) / g,
    A <- A - a g u, and go on from A; g is the learning rate, a = `outer_lr`, b = `outer_momentum`. Bases: ``local`` (local
    steps), ``sgp`` and ``osgp`` (stochastic gradient push, without and with overlap: `PushSum`). With
    `average` = False workers do not average, each keeps an anchor and a slow momentum of its own, and gossip alone holds
    them together.

    Differences: g is that of the last step of the round, by parameter group, as in the published codes; the paper holds it
    constant within a round. Where g is 0 the limit is taken (`local_updates.Outer`). A round is `period` steps, the first one
    too (torchdistx averages after the first step, so its first round is longer by one); with `total_steps` the last one ends
    there. Anchor and slow momentum are part of checkpoints (torchdistx forgets the anchor). Inner states: ``paper`` resets
    sgd's momentum and keeps Adam's, as the paper did; the published codes keep all. In the step that averages there is no
    gossip, and what is under way arrives first. A message of OSGP is used exactly `overlap` steps later, our reading.
    Gradients are not averaged within nodes (fairscale does). While workers gossip, what is not finite spreads along the graph,
    in ceil(log2 n) steps to all. Buffers are not touched.
    """

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
    def meets_locally(self) -> bool:  # type: ignore[override]
        return self.base != "local"

    @property
    def inner_policy(self) -> str:
        if self.inner_state == "paper":
            return "reset" if self.optimizer == "sgd" else "keep"
        return self.inner_state

    @property
    def gossip(self) -> PushSum | None:
        """The base's gossip, if it has any."""
        return None if self.base == "local" else PushSum(self.overlap if self.base == "osgp" else 0)

    def behind(self, kind: str) -> int:
        return 1 + self.overlap if self.base == "osgp" and kind == "local" else 1

    @property
    def state(self) -> Mapping[str, StateSpec]:
        found = {**super().state, **(self.gossip.state if self.gossip else {})}
        if not self.average:
            found |= {name: per_rank() for name in ("anchor", "outer_momentum") if name in found}
        return found

    def check(self, world: Group) -> None:
        super().check(world)
        if not self.average and (self.base == "local" or self.carrier != "fp32"):
            raise UnsupportedError(
                "average=False is for bases that gossip and carries nothing: choose base='sgp' or 'osgp', carrier='fp32'"
            )

    def plan(self, train_state: TrainState) -> str:
        kind = self.rule.plan(train_state)
        if self.gossip:
            self.gossip.count(train_state, flush=kind == "average" and self.average)
        return kind

    def begin_round(self, bucket: Bucket) -> None:
        if self.gossip:
            self.gossip.begin(bucket)
        super().begin_round(bucket)

    def synchronize(self, bucket: Bucket) -> Exchange[None]:
        ends = bucket.kind == "average"
        if self.gossip:
            yield from self.gossip.flush(bucket) if ends and self.average else self.gossip.push(bucket)
        yield from super().synchronize(bucket)
        if ends and self.gossip:
            self.gossip.replace(bucket)

    def meet(self, bucket: Bucket) -> Exchange[None]:
        """u <- b u + (A - mean x) / g; A <- A - a g u; x <- A; or the same of this worker's parameters alone."""
        if self.average:
            yield from super().meet(bucket)
            return
        self.outer_step(bucket, self.progress(bucket))
        bucket.params.copy_(bucket.state["anchor"])
        yield from self.settle_inner_states(bucket)

    @property
    def timed(self) -> Timed:  # type: ignore[override]
        return {} if self.base == "local" else TIMED_ROUNDS


@dataclass(frozen=True)
class NoLoCo(PeriodicAveraging):
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

    period: int = option(50, "inner steps in a round, at least 1", ge=1)
    outer: OuterKind = option("heavy-ball", "outer optimizer")
    outer_lr: float = option(0.7, "a: learning rate of the outer step", ge=0)
    outer_momentum: float = option(0.5, "b: momentum of the outer step", ge=0, lt=1)

    def check(self, world: Group) -> None:
        super().check(world)
        if self.carrier != "fp32" or self.inner_policy == "average" or self.outer != "heavy-ball":
            raise UnsupportedError(
                "pairs exchange in full precision, average nothing and step by heavy-ball: carrier='fp32', "
                "inner_state='keep', outer='heavy-ball'"
            )

    def meet(self, bucket: Bucket) -> Exchange[None]:
        """m <- b m + a mean_pair(x - A) + a (mean_pair(A) - A); A <- A + m; x <- A."""
        anchor, momentum = bucket.state["anchor"], bucket.state["outer_momentum"]
        own = compute.empty(2 * bucket.d, anchor.dtype, anchor.device)
        torch.sub(bucket.params, anchor, out=own[: bucket.d])
        own[bucket.d :] = anchor
        other, partner = own, bucket.train_state.choice(self.partner)
        came = yield from bucket.world.send_recv(own, "pair", to=partner, source=partner)
        if came is not None:
            other = came
        both = torch.add(own, other, out=compute.empty_like(own)).div_(2)
        progress, slow = both.view(2, bucket.d)
        momentum.mul_(self.outer_momentum).add_(progress, alpha=self.outer_lr)
        momentum.add_(slow.sub_(anchor), alpha=self.outer_lr)
        anchor.add_(momentum)
        bucket.params.copy_(anchor)
        yield from self.settle_inner_states(bucket)

    def partner(self, train_state: TrainState) -> int | None:
        """The rank with which this one exchanges in this step; None if it stays alone."""
        draws = Key.of(seed=train_state.seed, step=train_state.step, stage="pairs").bits(
            train_state.world.size
        )
        order: list[int] = draws.argsort(stable=True).tolist()
        place = order.index(train_state.world.rank) ^ 1
        return order[place] if place < len(order) else None

    state: ClassVar[Mapping[str, StateSpec]] = {"anchor": per_rank(), "outer_momentum": per_rank()}
    timed: ClassVar[Timed] = TIMED_ROUNDS
