"""Lion Cub: workers agree on the sign of Lion's update through all-reduces made for it. arXiv 2411.16462.

u_i = b1 m_i + (1 - b1) g_i on every worker; `1bit` takes the majority of sign(u_i), `p-bit` the sign of an integer sum
of votes weighted by |u_i|; x <- (1 - lr wd) x - lr direction; m_i <- b2 m_i + (1 - b2) g_i with the local gradient.
Momenta drift apart and may be synchronised. The body of the paper could not be read; its author's code was.

Differences: a zero update has no place in one bit, so it follows a coin that all ranks share (the author's code masks
it on each rank alone, and replicas drift apart), also single elements of a parameter in use (rows that no batch
reads); ties alternate by step as there. Learning rate and weight decay come
from the parameter groups at every step (there, in 1-bit and 4-bit variants, from the defaults, which ignores
schedules). 4-bit codes carry weighted votes (there a count of + votes, biased for odd n). Where even the maximum of |u|
would round to no vote, the options are refused (there nothing moves any more). An update that is not finite on any rank
makes the direction NaN on all ranks; one more vote is sent to say so. Buckets are padded one by one, there the model
once. Selective synchronisation, shared scales, both two-phase forms of the integer sum, full resolution of a rank's own
codes in them are ours. Error feedback is left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import Algorithm, Clock, Shard, Slot, option
from reference_impls.algorithms.lion_update import (
    HYPERPARAMETERS,
    LocalClip,
    SynchronisedMomenta,
    clip,
    mixed_in,
    step,
    ties,
    zeros,
)
from reference_impls.codecs import lion_integers, signs
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers import integer_sum
from reference_impls.reducers.majority import broken, majority, voided
from reference_impls.reducers.momentum_sync import MODES


@dataclass(frozen=True)
class LionCub(SynchronisedMomenta, LocalClip, Algorithm):
    """Lion Cub but for the vote, of which there are two. Kinds of step: ``step``, ``sync``, ``measure``."""

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
        u = mixed_in(shard, shard.state["momentum"], shard.grads)  # b1 m + (1 - b1) g
        return (yield from self.vote(shard, u))

    @abstractmethod
    def vote(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        """The direction all ranks agree on, Tensor[d] of -1, 0, +1; may consume `u`."""

    def update(self, shard: Shard, reduced: Tensor) -> None:
        m = shard.state["momentum"]
        for part, h in shard.groups():
            m[part].lerp_(shard.grads[part], 1 - h["betas"][1])  # the local gradient
            step(shard.params[part], reduced[part], h)

    def synchronize(self, shard: Shard) -> Exchange[None]:
        return self.sync.synchronize(shard)


@dataclass(frozen=True)
class LionCub1Bit(LionCub):
    """Majority of signs, one bit up and one down: 2 (n-1)/n bits a parameter."""

    momentum_sync: str = option(
        "periodic", "when momenta are averaged: never, periodic, doubling or selective", choices=MODES
    )

    def vote(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        positive = signs.positive(u, zeros(shard))
        return (yield from majority(shard.world, positive, broken(u), ties(shard), u.dtype))


@dataclass(frozen=True)
class LionCubPBit(LionCub):
    """Sign of an integer sum of weighted votes. Scales are a tensor's, and each worker's own unless shared.

    ``all-reduce`` adds p-bit codes on the way: p x 2 (n-1)/n bits a parameter (16 bits: in two phases, the same bytes).
    ``two-phase`` packs each way in as few bits as its range needs, with the same result; ``two-phase-sign`` sends two
    bits down, the sign. In two phases a code need not leave room for the sum: ``levels = code`` gives it all p bits.
    """

    bits: int = option(
        8, "p: width of the sum (or of a code, see levels): 4, 8 or 16; in two phases 2 to 16", ge=2, le=16
    )
    scale: Literal["l1", "l0", "linf", "l2-stochastic"] = option(
        "l1", "scale of a tensor: mean, geometric mean, maximum or 2-norm (rounded at random) of |u|"
    )
    gain: float | None = option(
        None, "a value equal to the scale votes gain x (levels); None: 0.5, for l2-stochastic 1", gt=0
    )
    form: Literal["all-reduce", "two-phase", "two-phase-sign"] = option(
        "all-reduce", "all-reduce (added on the way), two-phase (packed), two-phase-sign (two bits down)"
    )
    levels: Literal["sum", "code"] = option(
        "sum", "what p bits hold: the sum over all ranks, or one rank's code (two phases only)"
    )
    shared_scale: bool = option(
        False, "ranks share scales: one more all-reduce, mean (l1, l0) or maximum (linf, l2)"
    )

    def check(self, world: Group) -> None:
        super().check(world)
        if self.form == "all-reduce" and self.bits not in (4, 8, 16):
            raise UnsupportedError(
                f"bits must be 4, 8 or 16 where codes are added on the way, got {self.bits}; "
                "form='two-phase' takes 2 to 16"
            )
        if self.form == "all-reduce" and self.levels == "code":
            raise UnsupportedError(
                "levels='code' leaves no room for a sum on the way: use form='two-phase' or 'two-phase-sign'"
            )
        self.limit(world.size)

    def limit(self, n: int) -> int:
        """Largest code of one of n voters."""
        limit = lion_integers.levels(self.bits, n if self.levels == "sum" else 1)
        if self.scale == "linf" and round(limit * (0.5 if self.gain is None else self.gain)) == 0:
            raise UnsupportedError(
                f"with {limit} levels and this gain even the maximum of |u| rounds to no vote, so nothing would ever "
                "move: use more bits, a gain above 0.5, or scale='l1'"
            )
        return limit

    def vote(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        group = shard.world
        limit, parts = self.limit(group.size), [view.part for view in shard.views]
        scales = lion_integers.scales_of(u, parts, self.scale)
        if self.shared_scale:
            share = group.max if self.scale in ("linf", "l2-stochastic") else group.mean
            scales = yield from share(scales, "scales")
        codes = buffers.empty(shard.d + 1, torch.int8 if self.bits <= 8 else torch.int16, u.device)
        codes[-1] = lion_integers.encode(
            u, parts, self.scale, limit, codes[:-1],
            gain=self.gain, scales=scales, key=shard.key("rounding"),
        )  # not finite?  # fmt: skip
        if self.form == "two-phase-sign":
            total = yield from integer_sum.sign_of_sum(group, codes, limit, "votes")
        else:
            total = yield from integer_sum.integer_sum(
                group, codes, self._sum_bits, limit, "votes", self._sum_form
            )
        return voided(u.copy_(total[:-1].sign_()), total[-1] > 0)

    @property
    def _sum_form(self) -> integer_sum.Form:
        return "all-reduce" if self.form == "all-reduce" else "two-phase"

    @property
    def _sum_bits(self) -> int:
        return 32 if self.levels == "code" else self.bits
