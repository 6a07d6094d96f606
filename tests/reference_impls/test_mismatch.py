"""Ranks that disagree on the next collective: an error that names both, simulated and on gloo."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from reference_impls import DataParallelOptimizer, SimulatedCluster
from reference_impls.algorithm import Algorithm, Clock, Shard, option
from reference_impls.collectives import Exchange
from reference_impls.drivers.checks import of_a_peer
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
def test_gloo_ranks_that_disagree_are_named_where_torch_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")  # which torch reads when it is imported
    ways = {"size": "shapes", "dtype": "dtypes", "collective": "Op type"}
    for rank, result in enumerate(run_ranks(_disagree_in_each_way, 3, tuple(ways), fresh=True)):
        for how, differs in ways.items():
            name, message = result[how]
            assert name == "MismatchError", (how, message)
            assert f"rank {rank} asks for step 1 (step): (" in message
            assert "but Rank 1 is" in message or rank == ODD
            assert differs in message


def test_what_torch_says_of_an_absent_rank_is_a_fault_of_a_peer() -> None:
    """Seen on rank 0 with TORCH_DISTRIBUTED_DEBUG=DETAIL after the timeout of the process group."""
    assert of_a_peer(RuntimeError("[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 8000 ms"))


def _different(rank: int, size: int, what: str) -> Any:
    """Ranks with other hyper-parameters, from the start or later, or with other models."""
    shapes = (10, 4) if what == "model" and rank == ODD else (10, 3)
    parameters = [(name, torch.nn.Parameter(torch.zeros(n))) for name, n in zip("xy", shapes, strict=True)]
    lr = 0.2 if what == "lr" and rank == ODD else 0.1
    optimizer = DataParallelOptimizer(parameters, "allreduce-adamw", lr=lr, timeout_s=20.0)
    for step in range(40):
        if what == "later lr" and rank == ODD and step == 5:
            optimizer.param_groups[0]["lr"] = 0.25
        if what == "betas" and rank == ODD and step == 5:
            optimizer.param_groups[0]["betas"] = (0.5, 0.999)
        optimizer.zero_grad()
        sum(p.sum() for _, p in parameters).backward()
        optimizer.step()
    return "no error"


DIFFERENCES = {
    "lr": ("step 0", "lr of parameter group 0 = 0.1", "lr of parameter group 0 = 0.2"),
    "later lr": ("step 15", "lr of parameter group 0 = 0.1", "lr of parameter group 0 = 0.25"),
    "betas": ("step 15", "[0.9, 0.999]", "[0.5, 0.999]"),
    "model": ("construction", "trained 'y' = float32[3]", "trained 'y' = float32[4]"),
}


@pytest.mark.gloo
@pytest.mark.parametrize("what", DIFFERENCES)
def test_ranks_with_other_settings_are_named_with_both_values(what: str) -> None:
    """At construction, in the first step, or within the sixteen steps between two comparisons."""
    for result in run_ranks(_different, 2, what):
        assert result[:2] == ("error", "MismatchError"), result
        for part in ("rank 0", f"rank {ODD}", *DIFFERENCES[what]):
            assert part in result[2], result[2]


def _leave_early(rank: int, size: int, how: str, timeout_s: float) -> Any:
    """Rank 1 takes no part in the last steps, long after those that are compared."""
    parameter = torch.nn.Parameter(torch.zeros(10))
    dist.barrier()  # the optimizer's own patience is for ranks that are there
    optimizer = DataParallelOptimizer([("x", parameter)], "allreduce-sgd", lr=0.1, timeout_s=timeout_s)
    started = 0.0
    try:
        for step in range(6):
            started = time.monotonic()
            if rank == ODD and step == 4:
                if how == "skips":
                    time.sleep(timeout_s + 3)
                    continue
                if how == "releases":
                    optimizer.release()
                if how == "fails":
                    parameter.sum().backward()
                    parameter.grad.mul_(0.5)
                    optimizer.step()
                return "left"
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()
    except ExchangeError as error:
        return type(error).__name__, str(error), time.monotonic() - started
    return "no error"


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("how", "timeout_s", "within_s", "match"),
    [
        ("skips", 3.0, 5.0, "is alive and behind: for"),
        ("releases", 60.0, 10.0, "rank 1 has ended its training after 4 steps"),
        pytest.param(
            "returns", 60.0, 10.0, "rank 1 has ended its training after 4 steps", marks=pytest.mark.full
        ),
        ("fails", 60.0, 10.0, "rank 1 has stopped (UsageError: the gradient of"),
    ],
)
def test_a_rank_that_takes_no_further_part_is_named_in_time_with_what_to_do(
    how: str, timeout_s: float, within_s: float, match: str
) -> None:
    awaited = (0, 2) if how == "skips" else None  # the other one sleeps on
    results = run_ranks(_leave_early, 3, how, timeout_s, fresh=how == "returns", awaited=awaited)
    for rank in (0, 2):
        assert results[rank][0] == "PeerError", results[rank]
        _, message, seconds = results[rank]
        assert match in message
        assert "drop_last=True" in message
        assert "Join" in message
        assert seconds < within_s
