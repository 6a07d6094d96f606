"""Faults of a training: every other rank names the one that died, hangs, failed, is elsewhere or differs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer, SimulatedCluster
from reference_impls.core.algorithm import Algorithm, Bucket, TrainState, option
from reference_impls.core.collectives import Exchange
from reference_impls.core.errors import ExchangeError, MismatchError, UsageError
from reference_impls.core.registry import Method
from reference_impls.runtime.checks import Agreement, of_a_peer
from tests.reference_impls.gloo import Ranks, outcome, run_ranks, told

ODD, AT, TIMEOUT_S = 1, 5, 4.0
"""The rank that is at fault, in which step: after the first, before which settings are compared."""


# ---- ranks that ask for other collectives --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disagreeing(Algorithm):
    """All-reduce, but rank 1 asks for something else in step 1."""

    how: str = option("size", "what it does otherwise")

    def plan(self, train_state: TrainState) -> str:
        return (
            "odd"
            if self.how == "kind" and train_state.world.rank == ODD and train_state.step == 1
            else "step"
        )

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        x, stage, world = bucket.grads.clone(), "gradient", bucket.world
        if world.rank == ODD and bucket.step == 1:
            if self.how == "silent":
                return bucket.grads
            if self.how == "size":
                x = x[:-1]
            elif self.how == "dtype":
                x = x.to(torch.bfloat16)
            elif self.how == "stage":
                stage = "momentum"
            elif self.how == "collective":
                return (yield from world.gather(x, stage))[0]
        return (yield from world.sum(x, stage))

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        bucket.params.sub_(reduced[0] * bucket.train_state.lr)

    defaults = {"lr": 0.1}  # noqa: RUF012 - a class attribute, like the hyper-parameters of any method


def method(how: str) -> Method:
    return Method("disagreeing", Disagreeing(how=how), {})


@pytest.mark.parametrize("how", ["size", "dtype", "stage", "collective", "silent", "kind"])
def test_simulated_ranks_that_disagree_are_named(how: str) -> None:
    cluster = SimulatedCluster(method(how), [torch.zeros(10)], world_size=3)
    grads = [[torch.ones(10)] for _ in range(3)]
    cluster.step(grads)
    with pytest.raises(MismatchError, match="odd" if how == "kind" else "step 1: rank 0 .*rank 1"):
        cluster.step(grads)
    with pytest.raises(UsageError, match="broke off"):
        cluster.step(grads)


def _disagree_in_each_way(rank: int, size: int, ways: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # type: ignore[attr-defined]  # as TORCH_DISTRIBUTED_DEBUG does
    group = dist.new_group(list(range(size)))
    dist.set_debug_level(dist.DebugLevel.OFF)  # type: ignore[attr-defined]

    def train(how: str) -> None:
        parameter = nn.Parameter(torch.zeros(10))
        optimizer = DataParallelOptimizer(
            [("x", parameter)], method(how), lr=0.1, group=group, timeout_s=20.0
        )
        for _ in range(3):
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()

    return {how: outcome(lambda how=how: train(how)) for how in ways}


@pytest.mark.gloo
def test_gloo_ranks_that_disagree_are_named_where_torch_compares(ranks: Callable[[int], Ranks]) -> None:
    ways = {"size": "shapes", "dtype": "dtypes", "collective": "Op type"}
    for rank, result in enumerate(ranks(2).run(_disagree_in_each_way, tuple(ways))):
        for how, differs in ways.items():
            name, message = result[how]
            assert name == "MismatchError", (how, message)
            assert f"rank {rank} asks for step 1 (step): (" in message
            assert differs in message


def test_what_torch_says_of_an_absent_rank_is_a_fault_of_a_peer() -> None:
    """Seen on rank 0 with TORCH_DISTRIBUTED_DEBUG=DETAIL after the timeout of the process group."""
    assert of_a_peer(RuntimeError("[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 8000 ms"))


# ---- ranks with other settings, or in other steps ------------------------------------------------------------------------


def _different(rank: int, size: int) -> Any:
    """Ranks with other hyper-parameters, from the start or later, in other steps, or with other models."""

    def train(what: str) -> None:
        shapes = (10, 4) if what == "model" and rank == ODD else (10, 3)
        parameters = [(name, nn.Parameter(torch.zeros(n))) for name, n in zip("xy", shapes, strict=True)]
        lr = 0.2 if what == "lr" and rank == ODD else 0.1
        optimizer = DataParallelOptimizer(parameters, "allreduce-adamw", lr=lr, timeout_s=20.0)
        for step in range(40):
            if rank == ODD and step == AT:
                if what == "step":
                    optimizer._worker.train_state.step += 1
                if what == "betas":
                    optimizer.param_groups[0]["betas"] = (0.5, 0.999)
            optimizer.zero_grad()
            sum(p.sum() for _, p in parameters).backward()  # type: ignore[union-attr]
            optimizer.step()

    return {what: outcome(lambda what=what: train(what)) for what in DIFFERENCES}


DIFFERENCES = {
    "lr": ("step 0", "lr of parameter group 0 = 0.1", "lr of parameter group 0 = 0.2"),
    "betas": ("step 15", "[0.9, 0.999]", "[0.5, 0.999]"),
    "step": ("step 15", "step = step 15", "step = step 16"),
    "model": ("construction", "trained 'y' = float32[3]", "trained 'y' = float32[4]"),
}


@pytest.mark.gloo
def test_ranks_with_other_settings_are_named_with_both_values(ranks: Callable[[int], Ranks]) -> None:
    """At construction, in the first step, or within the sixteen steps between two comparisons."""
    for found in ranks(2).run(_different):
        for what, parts in DIFFERENCES.items():
            kind, message = found[what]
            assert kind == "MismatchError", (what, message)
            for part in ("rank 0", f"rank {ODD}", *parts):
                assert part in message, (what, message)


# ---- ranks that do not come ----------------------------------------------------------------------------------------------


def _loses_one(rank: int, size: int, fault: str) -> Any:
    """The error's type, its words, and the seconds since the step began."""
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))
    dist.barrier()  # processes that start late are no fault
    group = dist.new_group([1, 2]) if fault == "of a group" else None
    if group is not None and rank == 0:
        return "elsewhere"
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, timeout_s=TIMEOUT_S, group=group)
    started = 0.0
    try:
        for step in range(20):
            started = time.monotonic()
            if rank == ODD and step == AT:
                if fault in ("dies", "of a group"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if fault == "hangs":
                    time.sleep(100)
                if fault == "ends":
                    optimizer.release()
                    return "left"
            optimizer.zero_grad()
            model(torch.ones(4, 6)).square().mean().backward()
            if rank == ODD and step == AT:
                model[0].weight.grad.mul_(0.5)
            optimizer.step()
    except ExchangeError as error:
        return type(error).__name__, str(error), time.monotonic() - started
    return "no error"


FAULTS = {
    "dies": ("rank 1 (", "has died or is cut off, last seen at "),
    "of a group": ("rank 0 (", "rank 1 of the world) has died"),
    "hangs": ("rank 1 (", "is alive and behind, at code outside of the optimizer", f"after {AT} steps"),
    "fails": ("rank 1 has stopped (UsageError: the gradient of '0.weight' was changed", f"after {AT} steps"),
    "ends": (f"rank 1 has ended its training after {AT} steps",),
}


@pytest.mark.gloo
@pytest.mark.parametrize("fault", FAULTS)
def test_a_rank_that_does_not_come_is_named_in_time_with_what_to_do(fault: str) -> None:
    results = run_ranks(_loses_one, 3, fault, joins=False, awaited=(0, 2))
    for rank in (2,) if fault == "of a group" else (0, 2):
        kind, message, seconds = results[rank]
        assert kind == "PeerError", message
        own = 1 if fault == "of a group" else rank
        for part in (*FAULTS[fault], "drop_last=True", "from the last checkpoint", f"rank {own} is at step "):
            assert part in message, message
        assert seconds < 12


def test_an_error_that_was_caught_is_not_held_against_a_rank_that_goes_on() -> None:
    store = dist.HashStore()
    first, second = (Agreement(store, rank, 2, timeout_s=0.5) for rank in range(2))
    first.begin_step(3, "step")
    second.completed(3)
    second.leave("has stopped")
    assert first._noted() == "rank 1 has stopped after 3 steps"
    second.completed(4)
    assert first._noted() == ""
    second.leave("has ended its training")
    assert first._noted() == ""  # it has completed the step that rank 0 is at
    first.begin_step(4, "step")
    assert first._noted() == "rank 1 has ended its training after 4 steps"


def test_numbers_that_are_equal_are_no_difference_however_they_are_written() -> None:
    store = dist.HashStore()

    def compared(rank: int, rate: float, name: str) -> str:
        agreement = Agreement(store, rank, 2, timeout_s=5.0)
        agreement.compare_settings({"rate": rate})
        return told(lambda: agreement.compare_settings({"rate": rate, "name": name}))

    with ThreadPoolExecutor() as pool:
        first, second = pool.map(compared, (0, 1), (1, 1.0), "ab")
    assert first == second
    assert "rank 0 has name = a, but rank 1 has name = b" in first


SCRIPT = """
import os, signal, sys
import torch
from reference_impls import DataParallelOptimizer
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, timeout_s=15.0)
for step in range(8):
    if torch.distributed.get_rank() == 0 and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.gloo
@pytest.mark.full  # interpreters of their own, each with torch: where the store's host goes with its process
def test_processes_name_the_one_that_is_lost_with_the_store() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3"}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT]
    running = [
        subprocess.Popen(command, env={**common, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        for rank in (1, 2):
            log = running[rank].communicate(timeout=200)[1]
            assert "PeerError: the store is gone: rank 0" in log, (rank, log)
    finally:
        for process in running:
            process.kill()
            process.communicate()
