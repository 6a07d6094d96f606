"""Ranks that disagree on the next collective: an error that names both, simulated and on gloo."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import DataParallelOptimizer, SimulatedCluster
from reference_impls.algorithm import Algorithm, Clock, Shard, option
from reference_impls.collectives import Exchange
from reference_impls.errors import ExchangeError, MismatchError, UsageError
from reference_impls.registry import Method
from tests.reference_impls.gloo import run_ranks

ODD = 1  # the rank that does something else, in step 1
DISAGREEMENTS = ("size", "dtype", "stage", "collective", "silent", "kind")


@dataclass(frozen=True)
class Disagreeing(Algorithm):
    """All-reduce, but rank 1 asks for something else in step 1."""

    how: str = option("size", "what it does otherwise")

    def plan(self, clock: Clock) -> str:
        return "odd" if self.how == "kind" and clock.world.rank == ODD and clock.step == 1 else "step"

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        x, stage, world = shard.grads.clone(), "gradient", shard.world
        if world.rank == ODD and shard.step == 1:
            if self.how == "silent":
                return shard.grads
            if self.how == "size":
                x = x[:-1]
            elif self.how == "dtype":
                x = x.to(torch.bfloat16)
            elif self.how == "stage":
                stage = "momentum"
            elif self.how == "collective":
                return (yield from world.gather(x, stage))[0]
        return (yield from world.sum(x, stage))

    def update(self, shard: Shard, reduced: Tensor) -> None:
        shard.params.sub_(reduced[0] * shard.clock.lr)

    defaults = {"lr": 0.1}  # noqa: RUF012 - a class attribute, like the hyper-parameters of any method


def method(how: str) -> Method:
    return Method("disagreeing", Disagreeing(how=how), {})


@pytest.mark.parametrize("how", DISAGREEMENTS)
def test_simulated_ranks_that_disagree_are_named(how: str) -> None:
    cluster = SimulatedCluster(method(how), [torch.zeros(10)], world_size=3)
    grads = [[torch.ones(10)] for _ in range(3)]
    cluster.step(grads)
    with pytest.raises(MismatchError) as caught:
        cluster.step(grads)
    message = str(caught.value)
    if how == "kind":
        assert "odd" in message
    else:
        assert "rank 0" in message
        assert "rank 1" in message
        assert "step 1" in message
    with pytest.raises(UsageError, match="broke off"):
        cluster.step(grads)


def _disagree(rank: int, size: int, how: str, timeout_s: float) -> Any:
    parameter = torch.nn.Parameter(torch.zeros(10))
    optimizer = DataParallelOptimizer([("x", parameter)], method(how), lr=0.1, timeout_s=timeout_s)
    for _ in range(3):
        optimizer.zero_grad()
        parameter.sum().backward()
        optimizer.step()
    return "no error"


def _disagree_in_each_way(rank: int, size: int, ways: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    found = {}
    for how in ways:
        try:
            found[how] = ("no error", str(_disagree(rank, size, how, 20.0)))
        except ExchangeError as error:
            found[how] = (type(error).__name__, str(error))
    return found


@pytest.mark.gloo
def test_gloo_ranks_that_disagree_are_named_by_all() -> None:
    ways = ("size", "dtype", "stage", "collective")
    for result in run_ranks(_disagree_in_each_way, 3, ways):
        for how in ways:
            name, message = result[how]
            assert name == "MismatchError", (how, message)
            assert "rank 0" in message
            assert "rank 1" in message
            assert "gradient" in message


@pytest.mark.gloo
@pytest.mark.full
def test_a_rank_that_falls_silent_on_gloo_is_named_after_the_timeout() -> None:
    results = run_ranks(_disagree, 3, "silent", 2.0)
    for rank in (0, 2):
        assert results[rank][:2] == ("error", "PeerError"), results[rank]
        assert "rank 1" in results[rank][2]


def _die(rank: int, size: int) -> Any:
    parameter = torch.nn.Parameter(torch.zeros(10))
    optimizer = DataParallelOptimizer([("x", parameter)], "allreduce-sgd", lr=0.1, timeout_s=5.0)
    for step in range(6):
        if rank == ODD and step == 4:  # beyond the steps that are compared
            os._exit(7)
        optimizer.zero_grad()
        parameter.sum().backward()
        optimizer.step()
    return "no error"


@pytest.mark.gloo
@pytest.mark.full
def test_a_rank_that_dies_on_gloo_ends_the_others_with_a_clear_error() -> None:
    results = run_ranks(_die, 3, joins=False)
    assert results[ODD] is None
    for rank in (0, 2):
        assert results[rank][:2] == ("error", "PeerError"), results[rank]
        assert "checkpoint" in results[rank][2]
