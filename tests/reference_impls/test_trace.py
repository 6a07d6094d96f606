"""Phases of a step, measured with a clock that only the method and the backend move."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from reference_impls.core.algorithm import Algorithm, Bucket, TrainState
from reference_impls.core.collectives import Exchange, finish, start
from reference_impls.core.registry import Method
from reference_impls.runtime.engine import SerialBackend, SimulatedBackend, Trace
from reference_impls.runtime.step import LocalWorkers
from tests.reference_impls import exchanges

BUCKETS = 3
HAND = SimpleNamespace(now=0.0)
"""A clock that is moved by hand."""


class Slow(SimulatedBackend):
    """A launch takes no time of its own, an answer 1000 s."""

    def wait(self, handle: list[Any]) -> list[Any]:
        HAND.now += 1000
        return super().wait(handle)


@dataclass(frozen=True)
class Spends(Algorithm):
    """Says in every phase how long it computed; every number occurs once."""

    defaults = {"lr": 0.1}  # noqa: RUF012 - a class attribute, like the hyper-parameters of any method

    def plan(self, clock: TrainState) -> Exchange[str]:
        HAND.now += 0.25
        yield from clock.world.sum(torch.ones(1), "plan")
        HAND.now += 0.5
        return "step"

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        HAND.now += 1
        yield from bucket.world.max(torch.ones(1), "scale")
        HAND.now += 2
        yield from bucket.world.sum(bucket.grads, "gradient")
        HAND.now += 4
        return bucket.grads

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        HAND.now += 8

    def synchronize(self, bucket: Bucket) -> Exchange[None]:
        HAND.now += 16
        yield from bucket.world.mean(bucket.params, "parameters")
        HAND.now += 32


@dataclass(frozen=True)
class InBackground(Algorithm):
    """Starts an exchange in one step that is finished in the next."""

    defaults = {"lr": 0.1}  # noqa: RUF012

    def synchronize(self, bucket: Bucket) -> Exchange[None]:
        waiting = bucket.pending.pop("mean", None)
        bucket.pending["mean"] = yield from start(self._mean(bucket))
        if waiting is not None:
            yield from finish(waiting)

    @staticmethod
    def _mean(bucket: Bucket) -> Exchange[Tensor]:
        HAND.now += 1
        yield from bucket.world.mean(bucket.params.clone(), "first")
        HAND.now += 2
        mean = yield from bucket.world.mean(bucket.params.clone(), "second")
        HAND.now += 4
        return mean


def local_workers(algorithm: Algorithm) -> tuple[LocalWorkers, Trace]:
    """One worker with three buckets of one parameter each, traced as an optimizer does it."""
    names = [str(i) for i in range(BUCKETS)]
    group = {"params": [torch.zeros(4) for _ in names], "param_names": names, "lr": 0.1}
    found = exchanges.local_workers(Method("own", algorithm, {}), [group], 1, bucket_bytes=16)
    assert found.buckets == BUCKETS
    trace = Trace(lambda: HAND.now)
    found.engine.backend, found.engine.trace = SerialBackend(Slow(1), trace), trace
    return found, trace


def step(members: LocalWorkers) -> None:
    """A step with 64 s of forward and backward before each bucket."""
    for index in range(members.buckets):
        HAND.now += 64
        if index == 0:
            members.plan()
        members.submit_next()
    members.complete()


def test_every_second_is_counted_where_it_belongs() -> None:
    members, trace = local_workers(Spends())
    began = HAND.now
    for _ in range(2):
        step(members)
    assert {name: seconds / 2 for name, seconds in trace.seconds.items()} == {
        "plan": 0.25 + 0.5,
        "encode": BUCKETS * (1 + 2),  # up to a collective
        "communication": 1000 * (1 + 3 * BUCKETS),
        "decode": BUCKETS * 4,  # what leads to the result
        "update": BUCKETS * (8 + 16 + 32),
    }
    assert HAND.now - began - trace.total == 2 * BUCKETS * 64  # what is left is forward and backward


def test_exchanges_in_the_background_are_part_of_the_update() -> None:
    members, trace = local_workers(InBackground())
    step(members)
    assert trace.seconds["update"] == BUCKETS * 1
    assert trace.seconds["communication"] == BUCKETS * 1000
    step(members)
    assert trace.seconds["update"] == BUCKETS * (1 + 2 + 4 + 1)
    assert trace.seconds["communication"] == BUCKETS * 3000
    assert trace.seconds["encode"] == trace.seconds["decode"] == 0
