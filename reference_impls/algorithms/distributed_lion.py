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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import Shard, Traits, option
from reference_impls.algorithms.lion_update import POLICIES, LionUpdate, SynchronisedLion, sign_of, verdict
from reference_impls.codecs import signs
from reference_impls.codecs.dithering import levels
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.majority import (
    SUMS,
    Transport,
    balance,
    balance_bytes,
    broken,
    majority,
    majority_bytes,
)


@dataclass(frozen=True)
class DistributedLion(LionUpdate):
    """What MaVo and Avg share: how votes travel, and what a zero votes."""

    transport: Transport = option(
        "two-phase", "how votes travel: two-phase, all-gather, int4-sum, int8-sum or fp32-sum"
    )
    zero_policy: str = option(
        "hash",
        "vote of a zero update: hash (shared coin), alternate, plus, minus or zero (sums only)",
        choices=(*POLICIES, "zero"),
    )

    def check(self, world: Group) -> None:
        super().check(world)
        if self.zero_policy == "zero" and self.transport not in SUMS:
            raise UnsupportedError(
                f"zero_policy='zero' has no place in one bit: use one of the transports {', '.join(SUMS)}"
            )
        if self.transport in SUMS and self.transport != "fp32-sum":
            levels(SUMS[self.transport], world.size)

    def votes(self, shard: Shard, u: Tensor) -> tuple[Tensor, Tensor | None]:
        """This rank's votes, and where it abstains."""
        if self.zero_policy == "zero":
            positive, abstains = (buffers.empty_like(u, torch.bool) for _ in range(2))
            return torch.gt(u, 0, out=positive), torch.eq(u, 0, out=abstains)
        return signs.positive(u, verdict(self.zero_policy, shard, "zero")), None

    def bits_a_parameter(self, counts: str) -> str:
        """What `traits` says; `counts`: bits of the way down in two phases, with those of the way up."""
        return {
            "two-phase": f"{counts} (n-1)/n",
            "all-gather": "n-1",
            "int4-sum": "8 (n-1)/n",
            "int8-sum": "16 (n-1)/n",
            "fp32-sum": "64 (n-1)/n",
        }[self.transport]


@dataclass(frozen=True)
class DistributedLionMaVo(DistributedLion):
    """The majority of signs."""

    tie_policy: str = option(
        "alternate",
        "verdict on ties: alternate, plus, minus, hash or zero (two-phase: a second bit down)",
        choices=(*POLICIES, "zero"),
    )

    def aggregate(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        positive, abstains = self.votes(shard, u)
        tie = None if self.tie_policy == "zero" else verdict(self.tie_policy, shard, "tie")
        return (yield from majority(shard.world, positive, broken(u), tie, u.dtype, self.transport, abstains))

    def direction_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> float:
        return majority_bytes(wire.elements(shapes), n, self.transport, self.tie_policy == "zero")

    def traits(self) -> Traits:
        bits = self.bits_a_parameter("3" if self.tie_policy == "zero" else "2")
        return Traits(bits=bits, unbiased=None, sums=self.transport in SUMS)


@dataclass(frozen=True)
class DistributedLionAvg(DistributedLion):
    """The average of signs: -1, -1 + 2/n, .., 1."""

    def aggregate(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        positive, abstains = self.votes(shard, u)
        lead = yield from balance(shard.world, positive, broken(u), u.dtype, self.transport, abstains)
        return lead.div_(shard.world.size)

    def direction_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> float:
        return balance_bytes(wire.elements(shapes), n, self.transport)

    def traits(self) -> Traits:
        bits = self.bits_a_parameter("(1 + ceil(log2(n+1)))")
        return Traits(bits=bits, unbiased=None, sums=self.transport in SUMS)


@dataclass(frozen=True)
class LionUpdateMean(SynchronisedLion):
    """The sign of the mean of all updates, not quantised: Lion on the mean gradient, in the precision of the message.

    u and m are linear in g, so synchronising momenta changes nothing here; where it helps, it helps a quantiser.
    """

    dtype: Literal["fp32", "bf16"] = option("bf16", "how updates travel")

    def aggregate(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        if self.dtype != "bf16":
            return sign_of((yield from shard.world.mean(u, "updates")))
        message = buffers.empty_like(u, torch.bfloat16).copy_(u)
        return sign_of(u.copy_((yield from shard.world.mean(message, "updates"))))

    def direction_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> float:
        return wire.all_reduce((2 if self.dtype == "bf16" else 4) * wire.elements(shapes), n)

    def traits(self) -> Traits:
        bits = f"{32 if self.dtype == 'bf16' else 64} (n-1)/n"
        return Traits(bits=bits + self.sync_bits(), unbiased=None, sums=True)
