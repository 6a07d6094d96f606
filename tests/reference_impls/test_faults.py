"""Faults of a real training on gloo: every other rank names the one that died, hangs, failed, skipped a step or differs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from reference_impls import DataParallelOptimizer, ddp_hook
from reference_impls.attached import attach
from reference_impls.drivers import checks
from reference_impls.errors import ExchangeError
from tests.reference_impls.gloo import run_ranks

CULPRIT, AT, STEPS, TIMEOUT_S = 1, 5, 40, 6.0
"""The rank that is at fault, in which step: after the first, before which settings are compared."""
pytestmark = pytest.mark.gloo


def _interface(stack: ExitStack, name: str, model: nn.Module) -> tuple[nn.Module, Any]:
    """The module to call forward on, and the optimizer to step."""
    if name == "optimizer":
        return model, DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, timeout_s=TIMEOUT_S)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    if name == "attach":
        stack.enter_context(attach(own, model, "local-sgd", period=2, timeout_s=TIMEOUT_S))
        return model, own
    ddp = DistributedDataParallel(model)
    state, hook = ddp_hook("qsgd", ddp, timeout_s=TIMEOUT_S)
    ddp.register_comm_hook(state, hook)
    return ddp, own


def _where_it_hangs() -> None:
    time.sleep(TIMEOUT_S + 6)


def _commit(fault: str, model: nn.Module) -> None:
    """What the culprit does before a step; the rest is up to the loop."""
    if fault == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "hangs":
        _where_it_hangs()
    if fault == "parameters":
        next(model.parameters()).data.flatten()[0] += 1e-3


def _train(rank: int, size: int, interface: str, fault: str, culprit: int = CULPRIT) -> Any:
    """The error's type, its words, the step in which it came, and the seconds since this step began."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))
    started, step = time.monotonic(), -1
    try:
        with ExitStack() as stack:
            dist.barrier()  # processes that start late are no fault
            module, optimizer = _interface(stack, interface, model)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
            for step in range(STEPS):
                if step:
                    schedule.step()
                started = time.monotonic()
                generator = torch.Generator().manual_seed(100 * step + rank)
                x = torch.randn(4, 6, generator=generator)
                if rank == culprit and step == AT:
                    _commit(fault, model)
                    if fault == "skips":
                        continue
                optimizer.zero_grad()
                module(x).square().mean().backward()
                optimizer.step()
            return "no error", "", step, 0.0
    except ExchangeError as error:
        return type(error).__name__, str(error), step, time.monotonic() - started


def _survivors(
    interface: str, fault: str, size: int = 3, **options: Any
) -> Iterator[tuple[str, Any, int, float]]:
    others = [rank for rank in range(size) if rank != CULPRIT]
    results = run_ranks(_train, size, interface, fault, joins=False, awaited=others, **options)
    for rank in others:
        assert results[rank] is not None
        yield results[rank]


def _named(message: str) -> list[int]:
    """The ranks whose fault an error says it is: those before its first full stop or semicolon's end."""
    head = message.partition(". rank ")[0]
    return [rank for rank in range(8) if f"rank {rank} " in head]


INTERFACES = ["optimizer", *(pytest.param(name, marks=pytest.mark.full) for name in ("attach", "ddp"))]


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_rank_that_dies_is_named_with_its_last_step(interface: str) -> None:
    for kind, message, step, seconds in _survivors(interface, "dies"):
        assert kind == "PeerError", message
        assert _named(message) == [CULPRIT], message
        assert f"rank {CULPRIT} (" in message
        assert "has died or is cut off: its last sign of life came from step" in message
        assert "checkpoint" in message
        assert step in (AT, AT + 1)  # local SGD communicates in every other step
        assert seconds < TIMEOUT_S + 4


@pytest.mark.parametrize("interface", INTERFACES)
def test_a_rank_that_hangs_is_named_with_the_line_where_it_stands(interface: str) -> None:
    for kind, message, step, seconds in _survivors(interface, "hangs"):
        assert kind == "PeerError", message
        assert _named(message) == [CULPRIT], message
        assert f"it has been in step {AT}, {checks.OUTSIDE}" in message
        assert f"{Path(__file__).name}:" in message
        assert "in _where_it_hangs" in message
        assert step in (AT, AT + 1)
        assert TIMEOUT_S < seconds < TIMEOUT_S + 4


def test_parameters_that_have_become_different_are_named() -> None:
    for kind, message, step, _ in _survivors("optimizer", "parameters"):
        assert kind == "MismatchError", message
        assert message.startswith("step 15 (step): rank 1 differs from the 2 others: "), message
        assert "parameter '0.weight' (sum of bits)" in message
        assert step < 32


@pytest.mark.full
def test_a_rank_that_skips_a_step_is_named_by_its_learning_rate() -> None:
    """Its messages are taken for those of another step, until what the ranks have is compared."""
    for kind, message, step, _ in _survivors("optimizer", "skips"):
        assert kind == "MismatchError", message
        assert "rank 1 differs from the 2 others: rank 0 has lr of parameter group 0" in message
        assert step < 32


@pytest.mark.full
def test_where_nothing_but_steps_are_counted_a_rank_that_skipped_one_is_named_in_the_last() -> None:
    """A hook knows neither the loop's steps nor the optimizer."""
    for kind, message, step, _ in _survivors("ddp", "skips", fresh=True):
        assert (kind, step) == ("PeerError", STEPS - 1), message
        assert message.startswith(f"rank {CULPRIT} has ended its training after {STEPS - 1} steps"), message


# ---- whole processes, with the store in that of rank 0 -------------------------------------------------------------------

SCRIPT = """
import os, signal, sys, time
import torch
from reference_impls import DataParallelOptimizer
fault, culprit = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, group = torch.distributed.get_rank(), None
if fault == "of a group":
    first, second = (torch.distributed.new_group(ranks) for ranks in ((1, 2), (0, 3)))
    group = first if rank in (1, 2) else second
torch.distributed.barrier()
model = torch.nn.Linear(4, 4)
timeout_s = {"is cut off": 3.0}.get(fault, 6.0 if "hangs" in fault else 15.0)
optimizer = DataParallelOptimizer(
    model, "allreduce-sgd", lr=0.1, timeout_s=timeout_s, group=group, end_hung="then ends" in fault
)
torch.distributed.barrier()
for step in range(8):
    if rank == culprit and step == 5:
        if fault == "raises":
            raise FileNotFoundError("no shard 17 of the data")
        if "hangs" in fault:
            time.sleep(1000)
        os.kill(os.getpid(), signal.SIGSTOP if fault == "is cut off" else signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
if fault == "of a group":
    time.sleep(20)
"""


@contextmanager
def _running(fault: str, culprit: int, size: int) -> Iterator[list[Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    common |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, fault, str(culprit)],
            env={**common, "RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _processes(fault: str, culprit: int, size: int, survivors: Iterable[int]) -> dict[int, str]:
    """The last line that each survivor wrote to its log."""
    with _running(fault, culprit, size) as running:
        return {rank: _fault_in(running[rank].stderr) for rank in survivors}


def _fault_in(log: Any) -> str:
    """Not the end of the process, which gloo delays where a collective with a rank that is stopped has not timed out."""
    lines: list[str] = []
    for line in log:
        lines.append(line)
        if "PeerError: " in line:
            return line
    return "".join(lines)


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "culprit", "words"),
    [
        (
            "raises",
            1,
            "PeerError: rank 1 has stopped (FileNotFoundError: no shard 17 of the data) after 5 steps. ",
        ),
        (
            "raises",
            0,
            "PeerError: rank 0 has stopped (FileNotFoundError: no shard 17 of the data) after 5 steps. ",
        ),
        ("dies", 2, "PeerError: rank 2 ("),
        ("dies", 0, "PeerError: rank 0 of the world has died or has ended: its process hosts the store"),
        ("is cut off", 2, "has died or is cut off: its last sign of life came from step "),
        ("of a group", 2, "PeerError: rank 1 of its group, 2 of the world, ("),
    ],
)
def test_processes_name_the_one_that_is_lost(fault: str, culprit: int, words: str) -> None:
    survivors = [1] if fault == "of a group" else [rank for rank in range(3) if rank != culprit]
    for rank, last in _processes(fault, culprit, 4 if fault == "of a group" else 3, survivors).items():
        assert words in last, (rank, last)


def _told_to_end(rank: int, size: int, end_hung: bool) -> tuple[str, bool]:
    """What was raised because of the culprit, which sleeps, and whether its process is gone within some seconds."""
    model = nn.Linear(4, 4)
    dist.barrier()
    optimizer = DataParallelOptimizer(model, "allreduce-sgd", lr=0.1, timeout_s=TIMEOUT_S, end_hung=end_hung)
    pids = [torch.tensor([0]) for _ in range(size)]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    if rank == CULPRIT:
        time.sleep(1000)
    try:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    except ExchangeError as error:
        deadline = time.monotonic() + TIMEOUT_S + 6
        while time.monotonic() < deadline:
            try:
                os.kill(int(pids[CULPRIT]), 0)
            except ProcessLookupError:
                return str(error), True
            time.sleep(0.1)
        return str(error), False
    return "no error", False


@pytest.mark.parametrize("end_hung", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_process_that_hangs_ends_itself_only_where_it_was_told_to(end_hung: bool) -> None:
    results = run_ranks(_told_to_end, 3, end_hung, joins=False, awaited=(0, 2))
    for message, gone in (results[0], results[2]):
        assert _named(message) == [CULPRIT], message
        assert gone == end_hung


@pytest.mark.full
@pytest.mark.parametrize("culprit", [0, 2])
def test_a_process_that_hangs_says_why_it_ends_itself(culprit: int) -> None:
    with _running("hangs, then ends", culprit, 3) as running:
        assert running[culprit].wait(timeout=200) == checks.EXIT_HUNG
        log = running[culprit].stderr.read()
        assert (
            f"rank {culprit} ends its process (end_hung=True), since others have stopped because of it" in log
        )
        assert "It stands at <string>:" in log
        others = [rank for rank in range(3) if rank != culprit]
        assert all(f"PeerError: rank {culprit} (" in _fault_in(running[rank].stderr) for rank in others)
