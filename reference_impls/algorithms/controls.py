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

from reference_impls.aggregators.majority import nonfinite, poisoned
from reference_impls.algorithms.lion import Lion, mixed_in, step, tie_of
from reference_impls.algorithms.local_updates import LocalUpdates
from reference_impls.compressors import signs
from reference_impls.core import compute
from reference_impls.core.algorithm import Algorithm, Bucket, StateSpec, option, per_rank
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.optimizers import WithLocalOptimizer
from reference_impls.core.schedules import Constant


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

    def meet(self, bucket: Bucket) -> Exchange[None]:
        if bucket.world.rank != 0:
            bucket.params.zero_()
        yield from bucket.world.sum(bucket.params, "parameters")


@dataclass(frozen=True)
class RandomK(WithLocalOptimizer):
    """The mean of a random share of the coordinates, the same on all ranks; the others count as 0. No error feedback."""

    fraction: float = option(0.01, "probability with which a coordinate is sent", gt=0, le=1)

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        chosen = bucket.key("coordinates", shared=True).uniform(bucket.d, bucket.grads.device) < self.fraction
        chosen[0] |= ~chosen.any()  # a collective has at least one element
        values = yield from bucket.world.mean(bucket.grads[chosen], "values")
        return torch.zeros_like(bucket.grads).masked_scatter_(chosen, values)


@dataclass(frozen=True)
class OneRankSign(Algorithm):
    """Lion whose direction is the sign of rank 0's update, sent as one packed bit a parameter.

    Zeros are + and - by turns. One more byte says that the update is not finite: the direction is then NaN.
    """

    defaults: ClassVar[Mapping[str, Any]] = Lion.defaults
    reduces_gradient: ClassVar[bool] = False
    state: ClassVar[Mapping[str, StateSpec]] = {"momentum": per_rank()}

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        u = mixed_in(bucket, bucket.state["momentum"], bucket.grads)
        body = signs.wire_bytes(bucket.d)
        wire = compute.zeros(body + 1, torch.uint8, u.device)
        if bucket.world.rank == 0:
            signs.pack_signs(u, wire[:body], zero=tie_of(bucket))
            wire[body] = nonfinite(u)
        wire = yield from bucket.world.sum(wire, "signs")  # the others add zeros
        direction = compute.empty_like(u)
        signs.unpack_signs(wire[:body], direction)
        return poisoned(direction, wire[body] > 0)

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        for part, h in bucket.groups():
            step(bucket.params[part], reduced[part], h)
            bucket.state["momentum"][part].lerp_(bucket.grads[part], 1 - h["betas"][1])
