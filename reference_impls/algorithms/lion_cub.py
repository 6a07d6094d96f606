"""Lion Cub: workers agree on the sign of Lion's update through all-reduces made for it. arXiv 2411.16462.

u_i = b1 m_i + (1 - b1) g_i on every worker; `1bit` takes the majority of sign(u_i), `p-bit` the sign of an integer sum
of votes weighted by |u_i|; x <- (1 - lr wd) x - lr direction; m_i <- b2 m_i + (1 - b2) g_i with the local gradient.
Momenta drift apart and may be synchronised. The body of the paper could not be read; its author's code was.

Differences: a zero update has no place in one bit, so it follows a coin that all ranks share (the author's code masks
it on each rank alone, and replicas drift apart); ties alternate by step as there. Learning rate and weight decay come
from the parameter groups at every step (there, in 1-bit and 4-bit variants, from the defaults, which ignores
schedules). 4-bit codes carry weighted votes (there a count of + votes, biased for odd n). An update that is not finite
on any rank makes the direction NaN on all ranks; one more vote is sent to say so. Buckets are padded one by one, there
the model once. Selective synchronisation is our definition. The stochastic quantiser and error feedback are left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reference_impls.algorithm import Algorithm, Clock, Shard, Slot, option
from reference_impls.codecs import lion_integers, signs
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError, nearest
from reference_impls.randomness import Key
from reference_impls.reducers.integer_sum import integer_sum
from reference_impls.reducers.majority import broken, majority
from reference_impls.reducers.momentum_sync import MomentumSync

_WHEN = ("sync_every", "sync_until", "sync_doubling", "sync_measure_every")
_SYNC = (*_WHEN, "sync_fraction", "sync_dtype")


@dataclass(frozen=True)
class LionCub(Algorithm):
    """What both transports share. Kinds of step: ``step``, ``sync``, ``measure``."""

    momentum_sync: str = option(
        "periodic", "when momenta are averaged: never, periodic, doubling or selective"
    )
    sync_every: int = option(100, "steps between synchronisations (periodic, selective)")
    sync_until: int | None = option(None, "last step at which momenta are synchronised")
    sync_doubling: float = option(1.0, "gaps double every this many synchronisations (doubling)")
    sync_fraction: float = option(0.25, "share of the elements that is synchronised (selective)")
    sync_measure_every: int = option(1000, "steps between measurements of disagreement (selective)")
    sync_dtype: Literal["fp32", "bf16"] = option("fp32", "how momenta travel")

    defaults: ClassVar[Mapping[str, Any]] = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0}
    reduces_gradient: ClassVar[bool] = False

    @abstractmethod
    def aggregate(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        """The direction all ranks agree on, Tensor[d] of -1, 0, +1."""

    @property
    def sync(self) -> MomentumSync:
        """The rule of momentum synchronisation that the options describe."""
        return MomentumSync(
            self.momentum_sync, self.sync_every, self.sync_until, self.sync_doubling,
            self.sync_fraction, self.sync_measure_every, self.sync_dtype,
        )  # fmt: skip

    @property
    def slots(self) -> Mapping[str, Slot]:
        return self.sync.slots()

    def check(self, world: Group) -> None:
        self.sync  # noqa: B018 - refuses impossible options

    def plan(self, clock: Clock) -> str:
        return self.sync.kind(clock)

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        u = shard.state["momentum"].clone()
        for part, h in shard.groups():
            u[part].lerp_(shard.grads[part], 1 - h["betas"][0])
        return (yield from self.aggregate(shard, u))

    def update(self, shard: Shard, reduced: Tensor) -> None:
        m = shard.state["momentum"]
        for part, h in shard.groups():
            m[part].lerp_(shard.grads[part], 1 - h["betas"][1])
            shard.params[part].mul_(1 - h["lr"] * h["weight_decay"]).add_(reduced[part], alpha=-h["lr"])

    def synchronize(self, shard: Shard) -> Exchange[None]:
        return self.sync.synchronize(shard)

    def steady(self) -> Mapping[str, Algorithm]:
        plain = self.at_defaults(*_SYNC, momentum_sync="never")
        if self.momentum_sync == "selective":  # at every step after 0, which measures
            often = self.at_defaults(*_WHEN, sync_every=1)
        else:
            often = self.at_defaults(
                *_SYNC, momentum_sync="periodic", sync_every=1, sync_dtype=self.sync_dtype
            )
        measuring = self.at_defaults(*_WHEN, "sync_dtype", sync_measure_every=1)
        found = {"step": plain, "sync": often, "measure": measuring}
        return {kind: found[kind] for kind in self.sync.kinds()}


_POLICIES = ("hash", "alternate", "plus", "minus")


@dataclass(frozen=True)
class LionCub1Bit(LionCub):
    """Majority of signs, one bit up and one down: 2 (n-1)/n bits a parameter."""

    zero_policy: str = option("hash", "bit of a zero update: hash (shared coin), alternate, plus or minus")
    tie_policy: str = option(
        "alternate", "verdict on ties: alternate, plus, minus, hash or zero (a second bit down)"
    )

    def check(self, world: Group) -> None:
        super().check(world)
        for name, value, known in (
            ("zero_policy", self.zero_policy, _POLICIES),
            ("tie_policy", self.tie_policy, (*_POLICIES, "zero")),
        ):
            if value not in known:
                raise UnsupportedError(
                    f"{name} must be one of {', '.join(known)}; got {value!r}{nearest(value, known)}"
                )

    def aggregate(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        positive = signs.positive(u, self._verdict(self.zero_policy, shard, "zero"))
        tie = None if self.tie_policy == "zero" else self._verdict(self.tie_policy, shard, "tie")
        return (yield from majority(shard.world, positive, broken(u), tie, u.dtype))

    @staticmethod
    def _verdict(policy: str, shard: Shard, stage: str) -> bool | Key:
        if policy == "hash":
            return shard.key(stage, shared=True)
        return shard.step % 2 == 0 if policy == "alternate" else policy == "plus"


@dataclass(frozen=True)
class LionCubPBit(LionCub):
    """Sign of an integer sum of weighted votes: p x 2 (n-1)/n bits a parameter. Scales are local, a tensor each."""

    momentum_sync: str = option("never", "when momenta are averaged: never, periodic, doubling or selective")
    bits: int = option(8, "p: width of the sum, 4, 8 or 16")
    scale: Literal["l1", "l0", "linf"] = option(
        "l1", "scale of a tensor: mean, geometric mean or maximum of |u|"
    )
    gain: float = option(0.5, "a value equal to the scale votes gain x (levels)")

    def check(self, world: Group) -> None:
        super().check(world)
        if self.bits not in (4, 8, 16):
            raise UnsupportedError(f"bits must be 4, 8 or 16, got {self.bits}")
        if self.scale not in lion_integers.SCALES:
            raise UnsupportedError(
                f"scale must be one of {', '.join(lion_integers.SCALES)}, got {self.scale!r}"
            )
        if not self.gain > 0:
            raise UnsupportedError(f"gain must be positive, got {self.gain}")
        lion_integers.levels(self.bits, world.size)

    def aggregate(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        levels = lion_integers.levels(self.bits, shard.world.size)
        codes = torch.empty(
            shard.d + 1, dtype=torch.int16 if self.bits == 16 else torch.int8, device=u.device
        )
        parts = [view.part for view in shard.views]
        codes[-1] = lion_integers.encode(
            u, parts, self.scale, levels, codes[:-1], gain=self.gain
        )  # not finite?
        total = yield from integer_sum(shard.world, codes, self.bits, levels, "votes")
        return total[:-1].sign().to(u.dtype).add_(torch.where(total[-1] > 0, torch.nan, 0.0))
