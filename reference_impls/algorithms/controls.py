"""Negative controls: methods that must lose. A study in which they look equal cannot tell anything apart.

Each stands for a mistake that would look like a free speed-up: not communicating, using a share of the data, dropping
almost all of the gradient, listening to one rank. No paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from reference_impls import compute
from reference_impls.algorithm import Algorithm, Shard, Slot, option, per_rank
from reference_impls.algorithms.lion import mixed_in, step
from reference_impls.algorithms.local_updates import LocalUpdates
from reference_impls.codecs import signs
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.optimizers import WithLocalOptimizer
from reference_impls.reducers.majority import broken, voided
from reference_impls.schedules import Constant


@dataclass(frozen=True)
class NoCommunication(LocalUpdates):
    """Every worker trains alone; parameters are averaged once, at the end."""

    def check(self, world: Group) -> None:
        super().check(world)
        if self.total_steps is None:
            raise UnsupportedError("this control averages once, at the end of training: give total_steps")

    @property
    def rule(self) -> Constant:
        assert self.total_steps is not None  # check() has refused it
        return Constant(self.total_steps, self.total_steps)


@dataclass(frozen=True)
class OneWorker(NoCommunication):
    """Rank 0 trains alone on its 1/n of the data; at the end everybody takes its parameters."""

    def meet(self, shard: Shard) -> Exchange[None]:
        if shard.world.rank != 0:
            shard.params.zero_()
        yield from shard.world.sum(shard.params, "parameters")


@dataclass(frozen=True)
class RandomK(WithLocalOptimizer):
    """The mean of a random share of the coordinates, the same on all ranks; the others count as 0. No error feedback."""

    fraction: float = option(0.01, "probability with which a coordinate is sent", gt=0, le=1)

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        chosen = shard.key("coordinates", shared=True).uniform(shard.d, shard.grads.device) < self.fraction
        chosen[0] |= ~chosen.any()  # a collective has at least one element
        values = yield from shard.world.mean(shard.grads[chosen], "values")
        return torch.zeros_like(shard.grads).masked_scatter_(chosen, values)


@dataclass(frozen=True)
class OneRankSign(Algorithm):
    """Lion whose direction is the sign of rank 0's update, sent as one packed bit a parameter.

    Zeros are + and - by turns. One more byte says that the update is not finite: the direction is then NaN.
    """

    defaults: ClassVar[Mapping[str, Any]] = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0}
    reduces_gradient: ClassVar[bool] = False

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"momentum": per_rank()}

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        u = mixed_in(shard, shard.state["momentum"], shard.grads)
        body = signs.wire_bytes(shard.d)
        wire = compute.zeros(body + 1, torch.uint8, u.device)
        if shard.world.rank == 0:
            signs.pack_signs(u, wire[:body], zero=shard.step % 2 == 0)
            wire[body] = broken(u)
        wire = yield from shard.world.sum(wire, "signs")  # the others add zeros
        direction = compute.empty_like(u)
        signs.unpack_signs(wire[:body], direction)
        return voided(direction, wire[body] > 0)

    def update(self, shard: Shard, reduced: Tensor) -> None:
        for part, h in shard.groups():
            step(shard.params[part], reduced[part], h)
            shard.state["momentum"][part].lerp_(shard.grads[part], 1 - h["betas"][1])
