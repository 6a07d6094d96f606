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

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import Algorithm, Clock, Shard, Slot, option, per_rank
from reference_impls.algorithms.lion_update import (
    HYPERPARAMETERS,
    LocalClip,
    SynchronisedMomenta,
    clip,
    mixed_in,
    sign_of,
    step,
    ties,
    zeros,
)
from reference_impls.codecs import signs
from reference_impls.codecs.dithering import levels
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.majority import (
    SUMS,
    Transport,
    balance,
    broken,
    majority,
)


@dataclass(frozen=True)
class Votes:
    """Options that say how votes travel, and what a zero votes."""

    transport: Transport = option(
        "two-phase", "how votes travel: two-phase, all-gather, int8-sum or fp32-sum"
    )
    zero_policy: Literal["hash", "zero"] = option(
        "hash", "vote of a zero update: hash (shared coin) or zero (sums only)"
    )


def check_votes(own: Votes, world: Group) -> None:
    """Raise `UnsupportedError` if votes cannot travel so."""
    if own.zero_policy == "zero" and own.transport not in SUMS:
        raise UnsupportedError(
            f"zero_policy='zero' has no place in one bit: use one of the transports {', '.join(SUMS)}"
        )
    if own.transport in SUMS and own.transport != "fp32-sum":
        levels(SUMS[own.transport], world.size)


def cast(own: Votes, shard: Shard, u: Tensor) -> tuple[Tensor, Tensor | None]:
    """This rank's votes, and where it abstains."""
    if own.zero_policy == "zero":
        positive, abstains = (buffers.empty_like(u, torch.bool) for _ in range(2))
        return torch.gt(u, 0, out=positive), torch.eq(u, 0, out=abstains)
    return signs.positive(u, zeros(shard)), None


def majority_of_signs(own: Votes, shard: Shard, u: Tensor, ties_are_zero: bool = False) -> Exchange[Tensor]:
    """MaVo: -1, 0 and 1; ties alternate unless they are 0, NaN everywhere if `u` is not finite on any rank."""
    positive, abstains = cast(own, shard, u)
    tie = None if ties_are_zero else ties(shard)
    return (yield from majority(shard.world, positive, broken(u), tie, u.dtype, own.transport, abstains))


def average_of_signs(own: Votes, shard: Shard, u: Tensor) -> Exchange[Tensor]:
    """Avg: -1, -1 + 2/n, .., 1; NaN everywhere if `u` is not finite on any rank."""
    positive, abstains = cast(own, shard, u)
    lead = yield from balance(shard.world, positive, broken(u), u.dtype, own.transport, abstains)
    return lead.div_(shard.world.size)


@dataclass(frozen=True)
class DistributedLion(Votes, LocalClip, Algorithm):
    """Distributed Lion but for what the server makes of the votes."""

    defaults: ClassVar[Mapping[str, Any]] = HYPERPARAMETERS
    reduces_gradient: ClassVar[bool] = False

    @property
    def scope(self) -> Literal["bucket", "model"]:  # type: ignore[override]
        """A norm over the whole model needs the whole gradient."""
        return "bucket" if self.local_clip_norm is None else "model"

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"momentum": per_rank()}

    def check(self, world: Group) -> None:
        check_votes(self, world)

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if self.local_clip_norm is not None:
            clip(shard.grads, self.local_clip_norm)
        u = mixed_in(shard, shard.state["momentum"], shard.grads)  # b1 m + (1 - b1) g
        return (yield from self.aggregate(shard, u))

    @abstractmethod
    def aggregate(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        """The direction all ranks agree on, Tensor[d], from the signs of all `u`."""

    def update(self, shard: Shard, reduced: Tensor) -> None:
        m = shard.state["momentum"]
        for part, h in shard.groups():
            m[part].lerp_(shard.grads[part], 1 - h["betas"][1])  # the local gradient
            step(shard.params[part], reduced[part], h)


@dataclass(frozen=True)
class DistributedLionMaVo(DistributedLion):
    """The majority of signs."""

    tie_policy: Literal["alternate", "zero"] = option(
        "alternate", "verdict on ties: alternate by step, or zero (two-phase: a second bit down)"
    )

    def aggregate(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        return majority_of_signs(self, shard, u, self.tie_policy == "zero")


@dataclass(frozen=True)
class DistributedLionAvg(DistributedLion):
    """The average of signs: -1, -1 + 2/n, .., 1."""

    def aggregate(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        return average_of_signs(self, shard, u)


@dataclass(frozen=True)
class LionUpdateMean(SynchronisedMomenta, LocalClip, Algorithm):
    """The sign of the mean of all updates, not quantised: Lion on the mean gradient, in the precision of the message.

    u and m are linear in g, so synchronising momenta changes nothing here; where it helps, it helps a quantiser.
    """

    dtype: Literal["fp32", "bf16"] = option("bf16", "how updates travel")

    defaults: ClassVar[Mapping[str, Any]] = HYPERPARAMETERS
    reduces_gradient: ClassVar[bool] = False

    @property
    def scope(self) -> Literal["bucket", "model"]:  # type: ignore[override]
        """A norm over the whole model needs the whole gradient."""
        return "bucket" if self.local_clip_norm is None else "model"

    @property
    def slots(self) -> Mapping[str, Slot]:
        return self.sync.slots()

    def check(self, world: Group) -> None:
        self.sync  # noqa: B018 - refuses impossible options

    def plan(self, clock: Clock) -> str:
        return self.sync.kind(clock)

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if self.local_clip_norm is not None:
            clip(shard.grads, self.local_clip_norm)
        u = mixed_in(shard, shard.state["momentum"], shard.grads)
        if self.dtype == "fp32":
            return sign_of((yield from shard.world.mean(u, "updates")))
        message = buffers.empty_like(u, torch.bfloat16).copy_(u)
        return sign_of(u.copy_((yield from shard.world.mean(message, "updates"))))

    def update(self, shard: Shard, reduced: Tensor) -> None:
        m = shard.state["momentum"]
        for part, h in shard.groups():
            m[part].lerp_(shard.grads[part], 1 - h["betas"][1])
            step(shard.params[part], reduced[part], h)

    def synchronize(self, shard: Shard) -> Exchange[None]:
        return self.sync.synchronize(shard)
