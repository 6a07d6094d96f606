"""Rank processes of a timing session on loopback, driven by hand."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from suite.runs.spec import resolve_algorithm
from suite.timing.cases import kinds_of
from suite.timing.store import Case

ROOT = Path(__file__).resolve().parents[3]
WORKLOAD = {"name": "digits-mlp", "options": {}}
PATIENCE_S = 120.0


class RankProcesses:
    """`python -m suite.timing.rank` once a rank; `tell` sends all of them a command and answers their answers."""

    def __init__(self, size: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        environment = {
            **os.environ,
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "BANDWISE_COMPILE": "0",
        }
        self.processes = [start({**environment, "RANK": str(rank)}) for rank in range(size)]

    def send(self, **command: Any) -> None:
        """Give all ranks a command."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()

    def answer(self, rank: int) -> dict[str, Any]:
        """The next line of a rank, which must come and must be JSON."""
        process = self.processes[rank]
        assert process.stdout is not None
        overdue = threading.Timer(PATIENCE_S, process.kill)
        overdue.start()
        try:
            line = process.stdout.readline()
        finally:
            overdue.cancel()
        assert line, f"rank {rank} ended without an answer (exit code {process.wait()})"
        return dict(json.loads(line))

    def tell(self, **command: Any) -> list[dict[str, Any]]:
        """Send, and wait for all answers."""
        self.send(**command)
        return [self.answer(rank) for rank in range(len(self.processes))]

    def build(self, *cases: Case, **changes: Any) -> list[dict[str, Any]]:
        """Build the cases on digits-mlp."""
        given = {
            "workload": WORKLOAD,
            "world_size": len(self.processes),
            "batch_size": 8,
            "bucket_bytes": 1 << 20,
            "sharding": "iid",
            "seed": 0,
        }
        return self.tell(do="build", cases=[case.as_dict() for case in cases], **{**given, **changes})


def start(environment: dict[str, str]) -> subprocess.Popen[str]:
    """One rank process."""
    return subprocess.Popen(
        [sys.executable, "-m", "suite.timing.rank"],
        cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@contextmanager
def rank_processes(size: int = 2) -> Iterator[RankProcesses]:
    """Ranks for the length of a block; what is left of them is killed."""
    ranks = RankProcesses(size)
    try:
        yield ranks
    finally:
        for process in ranks.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None and not pipe.closed:
                    with suppress(BrokenPipeError):
                        pipe.close()


def ddp(algorithm: str, **options: Any) -> Case:
    """A DDP case with SGD."""
    return Case("ddp", algorithm, "step", 1, algorithm, {"optimizer": "sgd", "momentum": 0.9, **options})


def method(name: str, kind: str, **options: Any) -> Case:
    """The case of one kind of step of a method."""
    return kinds_of(resolve_algorithm(name, options, 2, 100), (1, 4))[kind]
