"""Stand-ins for a session's surroundings: ranks whose seconds are known, a machine that is as busy as a test says."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from suite.links.link import Link
from suite.runs.spec import resolve_algorithm
from suite.timing.cases import kinds_of
from suite.timing.load import Load, Snapshot
from suite.timing.ranks import RankLostError
from suite.timing.spec import SessionSpec, load_session
from suite.timing.store import Case
from tests.suite.runs.project import write_sweep

SESSION = """\
minutes: 1
sweep: small.yaml
links: [{rate: 100mbit}, {rate: 1gbit}]
rounds_h: [1, 4]
serial_blocks: 3
reference: {buckets_mb: [1, 25], screen_units: 2}
direct: {arms: [local], repeats: 6, steps: 8}
"""
QUIET = Load(0.0, 0.0, 0.01, 0.1)
BUSY = Load(0.5, 0.0, 0.01, 3.0)


def session_spec(folder: Path, more: str = "", text: str = SESSION) -> SessionSpec:
    """A small session of the small sweep, both written into `folder`."""
    write_sweep(folder)
    path = folder / "tiny.yaml"
    path.write_text(text + more, encoding="utf-8")
    return load_session(str(path))


class FakeRanks:
    """`n` ranks. seconds(case, mode): of a unit on rank 0; every further rank takes 10 % more. gpus: of each rank, if any.

    asked: all commands, waits_s: how long an answer to each is waited for.
    """

    def __init__(
        self,
        n: int = 2,
        seconds: Callable[[str, str], float] = lambda case, mode: 0.01,
        lost_at: int = -1,
        gpus: Sequence[Mapping[str, str]] = (),
    ) -> None:
        self.n = n
        self.gpus = gpus
        self.seconds = seconds
        self.lost_at = lost_at
        self.asked: list[dict[str, Any]] = []
        self.waits_s: list[float] = []
        self.stopped = False

    def ask(self, command: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        self.asked.append(dict(command))
        self.waits_s.append(timeout_s)
        if len(self.asked) == self.lost_at:
            raise RankLostError(1, "died: signal SIGKILL")
        return [self._answer(command, 1 + rank / 10, rank) for rank in range(self.n)]

    def stop(self) -> None:
        self.stopped = True

    def blocks(self) -> list[tuple[str, str]]:
        """(case, mode) of every block asked for, in order."""
        return [(c["case"], c["mode"]) for c in self.asked if c["do"] == "block"]

    def _answer(self, command: Mapping[str, Any], slow: float, rank: int) -> dict[str, Any]:
        if command["do"] == "probe":
            return {"measurements": [{"what": "pair", "bytes": 8, "seconds": [0.1], "bits_per_s": 640.0}]}
        if command["do"] == "direct":
            steps = command["spec"]["steps"]
            return {
                "seconds": slow,
                "steps": steps,
                "steps_by_kind": {"step": steps},
                "final": None if rank else {},
            }
        if command["do"] != "block":
            gpu = self.gpus[rank] if self.gpus else None
            return {"congestion_control": "reno", "gpu": gpu}
        k = command["units"]
        unit = self.seconds(command["case"], command["mode"]) * slow
        return {
            "unit_seconds": [unit] * k,
            "phases": {"encode": unit / 2} if command["mode"] == "serial" else None,
            "wire_bytes": 100.0 * slow,
            "received_bytes": 50.0,
            "interface_bytes": 160.0,
            "cpu_s": slow,
            "kinds": {"step": k},
            "path": {"signs": "compiled"},
        }


class FakeMeter:
    """Says of every measured item what `load` says; `load` is told how many were measured before."""

    def __init__(self, load: Callable[[int], Load] = lambda number: QUIET) -> None:
        self.load = load
        self.measured = 0

    def find(self) -> None:
        """Nothing to look for."""

    def snapshot(self) -> Snapshot:
        return Snapshot(0, 0, 0.0, 0.0, 0.0, 1, "")

    def since(self, before: Snapshot) -> Load:
        self.measured += 1
        return self.load(self.measured - 1)


class Loopback:
    """This machine's loopback in place of a cluster: no rate is held, so its seconds say nothing about any link."""

    interface = "lo"
    emulated = False
    machine: Mapping[str, Any] = {}

    def __init__(self, link: Link) -> None:
        self.link = link
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.addresses = ("127.0.0.1",) * link.workers

    def enter(self, rank: int) -> tuple[str, ...]:
        """Nothing stands before a command."""
        return ()

    def shape(self, link: Link) -> None:
        """Remember the link."""
        self.link = link

    def down(self) -> None:
        """There is nothing to take away."""


class FakePlace(Loopback):
    """A cluster that remembers what was done with it."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self.shaped: list[str] = []
        self.is_down = False

    def shape(self, link: Link) -> None:
        super().shape(link)
        self.shaped.append(link.label)

    def down(self) -> None:
        self.is_down = True


def ddp(algorithm: str, **options: Any) -> Case:
    """A DDP case with SGD."""
    return Case("ddp", algorithm, "step", 1, algorithm, {"optimizer": "sgd", "momentum": 0.9, **options})


def method(name: str, kind: str) -> Case:
    """The case of one kind of step of a method."""
    return kinds_of(resolve_algorithm(name, {}, 2, 100), (1, 4))[kind]
