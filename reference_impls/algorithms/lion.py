"""Lion and its relatives by votes of one bit: Lion Cub, Distributed Lion, Signum, signSGD; and the mean that they stand in for.

u_i = b1 m_i + (1 - b1) g_i on worker i (`mixed_in`); the workers agree on a direction from all u_i (`Lion.direction`);
x <- (1 - lr wd) x - lr direction (`step`); m_i <- b2 m_i + (1 - b2) g_i with the local gradient. arXiv 2302.06675,
2404.00438. The direction is the majority of the signs of all u_i (`aggregators.majority`), their average, or the sign of the mean
of u. Momenta drift apart; `SynchronisedMomenta` may bring them together. Weighted votes, in integers: `algorithms.lion_integers`.

Differences of all: decay comes before the step, which is equal up to rounding. Learning rate, betas and weight decay are those
of the parameter groups at every step. The local gradient may be clipped by its norm over the whole model, which the
papers do not say; the method then waits for the whole gradient.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import torch
from torch import Tensor

from reference_impls.aggregators.coded_mean import joined, spread
from reference_impls.aggregators.majority import (
    SUMS,
    Transport,
    balance,
    majority,
    nonfinite,
)
from reference_impls.compressors import signs
from reference_impls.compressors.dithering import levels
from reference_impls.compressors.sums import fixed_mean, fixed_sum, largest
from reference_impls.core import compute
from reference_impls.core.algorithm import (
    DEFAULT,
    Algorithm,
    Bucket,
    StateSpec,
    Timed,
    TrainState,
    option,
    per_rank,
    replicated,
)
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError

MODES: Final = ("never", "periodic", "doubling", "selective")
_WHEN: Final = ("sync_every", "sync_doubling", "sync_measure_every")
_SYNC: Final = (*_WHEN, "sync_fraction")


@dataclass(frozen=True)
class Lion(Algorithm):
    """Lion with a momentum a worker, but for the direction that workers agree on."""

    local_clip_norm: float | None = option(
        None,
        "clip the local gradient to this norm over the whole model (waits for all of it); None: do not",
        gt=0,
    )

    clipping: ClassVar[str] = "local_clip_norm"
    defaults: ClassVar[Mapping[str, Any]] = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0}
    reduces_gradient: ClassVar[bool] = False

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {"momentum": per_rank()}

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if self.local_clip_norm is not None:
            clip(bucket.grads, self.local_clip_norm)
        return (yield from self.direction(bucket, self.voted_on(bucket)))

    def voted_on(self, bucket: Bucket) -> Tensor:
        """u_i = b1 m_i + (1 - b1) g_i."""
        return mixed_in(bucket, bucket.state["momentum"], bucket.grads)

    @abstractmethod
    def direction(self, bucket: Bucket, u: Tensor) -> Exchange[Tensor]:
        """What all ranks agree on from all u_i, Tensor[d]; may consume `u`."""

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        m = bucket.state["momentum"]
        for part, h in bucket.groups():
            m[part].lerp_(bucket.grads[part], 1 - h["betas"][1])  # the local gradient
            step(bucket.params[part], reduced[part], h)


# ---- votes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Votes(Lion):
    """Options that say how votes travel, and what a zero votes."""

    transport: Transport = option(
        "two-phase", "how votes travel: two-phase, all-gather, int8-sum or fp32-sum"
    )
    zero_policy: Literal["hash", "zero"] = option(
        "hash", "vote of a zero update: hash (shared coin) or zero (sums only)"
    )

    def check(self, world: Group) -> None:
        if self.zero_policy == "zero" and self.transport not in SUMS:
            raise UnsupportedError(
                f"zero_policy='zero' has no place in one bit: use one of the transports {', '.join(SUMS)}"
            )
        if self.transport in SUMS and self.transport != "fp32-sum":
            levels(SUMS[self.transport], world.size)

    def cast(self, bucket: Bucket, u: Tensor) -> tuple[Tensor, Tensor | None]:
        """This rank's votes, and where it abstains."""
        if self.zero_policy == "zero":
            positive, abstains = (compute.empty_like(u, torch.bool) for _ in range(2))
            return torch.gt(u, 0, out=positive), torch.eq(u, 0, out=abstains)
        return positive_or_coin(bucket, u), None

    def majority(self, bucket: Bucket, u: Tensor, ties_are_zero: bool = False) -> Exchange[Tensor]:
        """MaVo: -1, 0 and 1; ties alternate unless they are 0, NaN everywhere if `u` is not finite on any rank."""
        positive, abstains = self.cast(bucket, u)
        tie = None if ties_are_zero else tie_of(bucket)
        return (
            yield from majority(bucket.world, positive, nonfinite(u), tie, u.dtype, self.transport, abstains)
        )

    def average(self, bucket: Bucket, u: Tensor) -> Exchange[Tensor]:
        """Avg: -1, -1 + 2/n, .., 1; NaN everywhere if `u` is not finite on any rank."""
        positive, abstains = self.cast(bucket, u)
        lead = yield from balance(bucket.world, positive, nonfinite(u), u.dtype, self.transport, abstains)
        return lead.div_(bucket.world.size)


@dataclass(frozen=True)
class DistributedLion(Votes):
    """Distributed Lion: workers send the sign of Lion's update; the majority or the average is applied. arXiv 2404.00438.

    delta_i = sign(b1 m_i + (1 - b1) g_i), one bit; S = sum of all delta_i; MaVo steps along sign(S), Avg along S / n. Momenta
    take the local gradient and are never synchronised. The paper's server is every worker, for its piece of the vector (two
    phases: 2 (n-1)/n bits for MaVo, (1 + b)(n-1)/n for Avg, whose count of + votes takes b = ceil(log2(n+1)) bits; exact).

    Differences: the paper applies the last direction at the beginning of the next step, which is the same trajectory. It is
    silent about zeros and ties: a zero follows a coin that all ranks share, and where votes are added on the way may abstain;
    ties alternate by step (in the code of the authors' group zeros and ties count as -1, and momenta of ranks are voted on
    tensor by tensor in an all-gather, which is the transport `all-gather` here). An update that is not finite on any rank
    makes the direction NaN everywhere, for which one more vote is sent. The tables of the paper could not be read.
    """


@dataclass(frozen=True)
class DistributedLionMaVo(DistributedLion):
    """The majority of signs."""

    tie_policy: Literal["alternate", "zero"] = option(
        "alternate", "verdict on ties: alternate by step, or zero (two-phase: a second bit down)"
    )

    def direction(self, bucket: Bucket, u: Tensor) -> Exchange[Tensor]:
        return self.majority(bucket, u, self.tie_policy == "zero")


@dataclass(frozen=True)
class DistributedLionAvg(DistributedLion):
    """The average of signs: -1, -1 + 2/n, .., 1."""

    def direction(self, bucket: Bucket, u: Tensor) -> Exchange[Tensor]:
        return self.average(bucket, u)


@dataclass(frozen=True)
class SignSGD(Votes):
    """signSGD and Signum with majority vote, and D-Signum's average. arXiv 1802.04434, 1810.05291, 2404.00438.

    Votes on the sign of the gradient; no state.

    signSGD: x <- (1 - lr wd) x - lr majority(sign(g_i)). Signum: m_i <- b m_i + (1 - b) g_i, and the majority of sign(m_i). With
    ``vote="average"`` the mean of signs is applied instead, which Distributed Lion's paper calls D-Signum (Avg). Signum is
    Lion with both betas equal; votes travel, and zeros, ties and values that are not finite are treated, as in
    `DistributedLion`.

    Differences: the abstracts could be read, and code of others. There zeros and ties count as +1 (a stored sign bit), and a
    parameter that never has a gradient drifts; here a zero follows a coin that all ranks share and ties alternate by step.
    The server of the paper is every worker, for its piece of the vector.
    """

    vote: Literal["majority", "average"] = option("majority", "what is applied: the majority or the average")

    defaults: ClassVar[Mapping[str, Any]] = {"lr": 1e-4, "weight_decay": 0.0}
    state: ClassVar[Mapping[str, StateSpec]] = {}

    def voted_on(self, bucket: Bucket) -> Tensor:
        """g_i."""
        return bucket.grads

    def direction(self, bucket: Bucket, u: Tensor) -> Exchange[Tensor]:
        return self.average(bucket, u) if self.vote == "average" else self.majority(bucket, u)

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        for part, h in bucket.groups():
            step(bucket.params[part], reduced[part], h)


@dataclass(frozen=True)
class Signum(SignSGD):
    """Votes on the sign of each worker's own momentum."""

    defaults: ClassVar[Mapping[str, Any]] = {"lr": 1e-4, "momentum": 0.9, "weight_decay": 0.0}
    state: ClassVar[Mapping[str, StateSpec]] = {"momentum": per_rank()}

    def voted_on(self, bucket: Bucket) -> Tensor:
        """m_i <- b m_i + (1 - b) g_i."""
        m: Tensor = bucket.state["momentum"]
        for part, h in bucket.groups():
            m[part].lerp_(bucket.grads[part], 1 - h["momentum"])
        return m


# ---- momenta that are brought together -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SynchronisedMomenta(Lion):
    """Lion whose momenta are averaged: never, periodically, at doubling gaps, or selectively.

    Lion Cub's third factor (arXiv 2411.16462). Periodic and doubling rules are those of its author's code, index 0
    included. *Selective* is our definition, since the paper's was not readable and the code parses its flag without using
    it: at every `sync_measure_every`-th step tensors are ranked by the disagreement of workers,
    V = mean over elements of (E[m^2] - E[m]^2) / (E[m^2] + 1e-30), from fp32 means of m and m^2. Those of largest V are
    averaged then and there, and at every `sync_every`-th step until the next measurement: as many as stay within the share
    `sync_fraction` of the bucket's elements, at least one, so a tensor that fills a bucket of its own is always averaged.

    Kinds of step: ``step``, ``sync`` and, for selective, ``measure``.
    """

    momentum_sync: str = option(
        "never", "when momenta are averaged: never, periodic, doubling or selective", choices=MODES
    )
    sync_every: int = option(100, "steps between synchronisations (periodic, selective)", ge=1)
    sync_doubling: float = option(1.0, "gaps double every this many synchronisations (doubling)", gt=0)
    sync_fraction: float = option(0.25, "share of the elements that is synchronised (selective)", gt=0, le=1)
    sync_measure_every: int = option(1000, "steps between measurements of disagreement (selective)", ge=1)

    @property
    def state(self) -> Mapping[str, StateSpec]:
        """The momentum, and for selective which elements are averaged."""
        chosen = {"selected": replicated()} if self.momentum_sync == "selective" else {}
        return {"momentum": per_rank(), **chosen}

    def plan(self, train_state: TrainState) -> str:
        if self.momentum_sync == "never":
            return "step"
        if self.momentum_sync == "selective" and train_state.step % self.sync_measure_every == 0:
            return "measure"
        if self.momentum_sync == "doubling":
            if train_state.step < train_state.counters.get("next_sync", 0):
                return "step"
            done = int(train_state.counters.get("syncs", 0))
            train_state.counters["syncs"] = done + 1
            train_state.counters["next_sync"] = int(
                train_state.step + 2 ** min(done / self.sync_doubling, 62)
            )
            return "sync"
        return "sync" if train_state.step % self.sync_every == 0 else "step"

    def synchronize(self, bucket: Bucket) -> Exchange[None]:
        momentum = bucket.state["momentum"]
        if bucket.kind == "measure":
            square = torch.square(momentum, out=compute.empty_like(momentum))
            square = yield from bucket.world.mean(square, "momentum-square")
            mean = yield from bucket.world.mean(compute.empty_like(momentum).copy_(momentum), "momentum")
            self._select(bucket, mean, square)
            for part in _selected(bucket):
                momentum[part] = mean[part]
        elif bucket.kind == "sync" and self.momentum_sync == "selective":
            parts = _selected(bucket)
            spread(momentum, parts, (yield from bucket.world.mean(joined(momentum, parts), "momentum")))
        elif bucket.kind == "sync":
            yield from bucket.world.mean(momentum, "momentum")

    def _select(self, bucket: Bucket, mean: Tensor, square: Tensor) -> None:
        """Choose from reduced values alone, hence alike on all ranks. Consumes `square`."""
        disagreement = torch.square(mean, out=compute.empty_like(mean))
        torch.sub(square, disagreement, out=disagreement).div_(square.add_(1e-30))
        ranking = [(float(fixed_mean(disagreement[v.part])), v) for v in bucket.views]
        order = [v for _, v in sorted(ranking, key=lambda pair: pair[0], reverse=True)]
        selected, budget = bucket.state["selected"].zero_(), self.sync_fraction * bucket.d
        for place, view in enumerate(order):
            budget -= view.part.stop - view.part.start
            if place > 0 and budget < 0:
                break
            selected[view.part] = 1.0

    @property
    def timed(self) -> Timed:  # type: ignore[override]
        when, all_of_them = dict.fromkeys(_WHEN, DEFAULT), dict.fromkeys(_SYNC, DEFAULT)
        often = {**all_of_them, "momentum_sync": "periodic", "sync_every": 1}
        if self.momentum_sync == "selective":  # at every step after 0, which measures
            often = {**when, "sync_every": 1}
        return {
            "measure": {**when, "sync_measure_every": 1},
            "step": {**all_of_them, "momentum_sync": "never"},
            "sync": often,
        }


def _selected(bucket: Bucket) -> list[slice]:
    """The tensors chosen at the last measurement; step 0 is one, so there is always something."""
    return [view.part for view in bucket.views if bucket.state["selected"][view.part.start] > 0]


@dataclass(frozen=True)
class LionCub(SynchronisedMomenta):
    """Lion Cub: workers agree on the sign of Lion's update through all-reduces made for it. arXiv 2411.16462.

    u_i = b1 m_i + (1 - b1) g_i on every worker; `1bit` takes the majority of sign(u_i), `p-bit` the sign of an integer sum
    of votes weighted by |u_i|; x <- (1 - lr wd) x - lr direction; m_i <- b2 m_i + (1 - b2) g_i with the local gradient.
    Momenta drift apart and may be synchronised. The body of the paper could not be read; its author's code was.

    Differences: a zero update has no place in one bit, so it follows a coin that all ranks share (the author's code masks
    it on each rank alone, and replicas drift apart), also single elements of a parameter in use (rows that no batch
    reads); ties alternate by step as there. Learning rate and weight decay come
    from the parameter groups at every step (there, in the 1-bit and one 4-bit variant, from the defaults, which ignores
    schedules). 4-bit codes carry weighted votes (there a count of + votes, biased for odd n, in one variant by all that
    rounds to 0, too). Momenta are averaged every 100 steps unless said, as in an example of theirs (the code's default:
    never); doubling gaps go on after the first epoch, where theirs end. Where even the maximum of |u| would round to no
    vote, the options are refused (there nothing moves any more); a tensor of one element votes in full. An update that is not
    finite on any rank makes the direction NaN on all ranks; one more vote is sent to say so. Buckets are padded one by one,
    there the model once. Selective synchronisation, shared scales, both two-phase forms of the integer sum, full resolution of
    a rank's own codes in them are ours. Error feedback is left out.
    """


@dataclass(frozen=True)
class LionCub1Bit(LionCub):
    """Majority of signs, one bit up and one down: 2 (n-1)/n bits a parameter, and 64 (n-1)/(n sync_every) for momenta."""

    momentum_sync: str = option(
        "periodic", "when momenta are averaged: never, periodic, doubling or selective", choices=MODES
    )

    def direction(self, bucket: Bucket, u: Tensor) -> Exchange[Tensor]:
        positive = positive_or_coin(bucket, u)
        return (yield from majority(bucket.world, positive, nonfinite(u), tie_of(bucket), u.dtype))


@dataclass(frozen=True)
class LionUpdateMean(SynchronisedMomenta):
    """The sign of the mean of all updates, not quantised: Lion on the mean gradient, in the precision of the message. 2411.16462.

    u and m are linear in g, so synchronising momenta changes nothing here; where it helps, it helps a quantiser.

    Differences: an update that is not finite on any rank makes the direction NaN there on all ranks.
    """

    dtype: Literal["fp32", "bf16"] = option("bf16", "how updates travel")

    def direction(self, bucket: Bucket, u: Tensor) -> Exchange[Tensor]:
        if self.dtype == "fp32":
            return sign_of((yield from bucket.world.mean(u, "updates")))
        message = compute.empty_like(u, torch.bfloat16).copy_(u)
        return sign_of(u.copy_((yield from bucket.world.mean(message, "updates"))))


# ---- arithmetic ----------------------------------------------------------------------------------------------------


def positive_or_coin(bucket: Bucket, u: Tensor) -> Tensor:
    """bool [d]: which elements are positive; for a zero a coin that all ranks share decides."""
    return signs.positive(u, bucket.key("zero", shared=True))


def tie_of(bucket: Bucket) -> bool:
    """Whether a tie is for + at this step; every other one is."""
    return bucket.train_state.choice(lambda now: now.step % 2 == 0)


def mixed_in(bucket: Bucket, momentum: Tensor, gradient: Tensor) -> Tensor:
    """b1 m + (1 - b1) g, group by group, in a buffer of the pool."""
    u = compute.empty_like(momentum)
    for part, h in bucket.groups():
        torch.lerp(momentum[part], gradient[part], 1 - h["betas"][0], out=u[part])
    return u


def sign_of(x: Tensor) -> Tensor:
    """-1, 0 and 1 in a buffer of the pool; NaN where x is not finite, which a sign alone would lose."""
    return torch.sign(x, out=compute.empty_like(x)).add_(x, alpha=0)


def step(x: Tensor, direction: Tensor, h: Mapping[str, Any]) -> None:
    """x <- (1 - lr wd) x - lr direction, in place."""
    if h["weight_decay"]:
        x.mul_(1 - h["lr"] * h["weight_decay"])
    compute.add_scaled(x, direction, -h["lr"])


def norm_of(x: Tensor) -> Tensor:
    """2-norm over the last axis, of what has been divided by its largest magnitude, so that no square over- or underflows."""
    top = largest(x)
    scaled = torch.div(x, torch.where(top > 0, top, 1.0).unsqueeze(-1), out=compute.empty_like(x))
    return fixed_sum(scaled, "square").sqrt() * top


def clip(gradient: Tensor, norm: float) -> None:
    """Scale `gradient` so that its 2-norm is at most `norm`; not finite stays not finite."""
    own = norm_of(gradient)
    gradient.mul_((norm / torch.where(own == 0, 1.0, own)).clamp(max=1.0))
