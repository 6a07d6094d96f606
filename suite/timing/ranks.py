"""The rank processes of a session: started on the workers of a cluster, told what to do, and ended by their ids.

Every command goes to all ranks, and every rank answers one line. A rank that dies, faults or does not answer ends the
session: `RankLostError` names the one that went first. Standard error of each rank goes to a file of its own, whose last line is
part of that message.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol

from suite.links.link import Link
from suite.runs.provenance import THREAD_VARIABLES
from suite.training.processes import exit_text

THREADS: Final = 1
GRACE_S: Final = 3.0
"""After the first fault the others get this long to say theirs: a rank that died tells more than one that lost a peer."""
STOP_S: Final = 5.0
PORT: Final = 29500
"""Of the meeting point inside a worker's own namespace, where every port is free."""
WARNING: Final = "[W"
"""So begin lines in which torch warns of what does no harm."""
MODULE: Final = "suite.timing.rank"


class RankLostError(RuntimeError):
    """A rank has died, faulted or fallen silent. rank: which; how: in words."""

    def __init__(self, rank: int, how: str) -> None:
        super().__init__(f"rank {rank} {how}")
        self.rank = rank
        self.how = how


class Place(Protocol):
    """Where ranks run: an emulated cluster (`suite.links.cluster.Cluster`), or `Loopback`."""

    @property
    def link(self) -> Link:
        """The link as it is now."""

    @property
    def addresses(self) -> Sequence[str]:
        """Of every rank."""

    def enter(self, rank: int) -> tuple[str, ...]:
        """What stands before a command that is to run on the worker of a rank."""

    def shape(self, link: Link) -> None:
        """Make the link another one."""

    def down(self) -> None:
        """Take it away."""


class Loopback:
    """This machine's loopback in place of a cluster: no rate is held, so its seconds say nothing about any link."""

    interface = "lo"
    emulated = False

    def __init__(self, link: Link) -> None:
        self.link = link
        self.addresses = ("127.0.0.1",) * link.workers

    def enter(self, rank: int) -> tuple[str, ...]:
        """Nothing stands before a command."""
        return ()

    def shape(self, link: Link) -> None:
        """Remember the link."""
        self.link = link

    def down(self) -> None:
        """There is nothing to take away."""


class Ranks:
    """The processes. Use as a context manager, or call `stop`.

    logs: folder for standard error; by default in the cluster's own folder, which goes with it, else a temporary one.
    """

    def __init__(self, place: Place, logs: Path | None = None, module: str = MODULE) -> None:
        state_dir: Path | None = getattr(place, "state_dir", None)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if logs is None and state_dir is not None:
            logs = state_dir / "ranks"
        elif logs is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="bandwise-ranks-")
            logs = Path(self._temporary.name)
        self._logs = logs
        self._logs.mkdir(parents=True, exist_ok=True)
        self._members: list[subprocess.Popen[bytes]] = []
        self._partial: list[bytes] = []
        interface = getattr(place, "interface", "eth0")
        port = _free_port() if interface == "lo" else PORT
        try:
            for rank in range(len(place.addresses)):
                self._members.append(self._start(place, rank, interface, port, module))
                self._partial.append(b"")
        except OSError as error:
            self.stop()
            raise RankLostError(rank, f"could not be started: {error}") from error

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [member.pid for member in self._members]

    def ask(self, command: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        """Tell all ranks the same and collect their answers, by rank. Raises `RankLostError`."""
        line = json.dumps(command, allow_nan=False).encode() + b"\n"
        for rank, member in enumerate(self._members):
            try:
                _pipe(member.stdin).write(line)
                _pipe(member.stdin).flush()
            except OSError:
                raise self._lost({rank: None}) from None
        return self._collect(str(command.get("do")), timeout_s)

    def stop(self) -> None:
        """End the processes: politely, then by their ids. Can be called twice."""
        for member in self._members:
            try:
                if member.stdin and not member.stdin.closed:
                    member.stdin.write(b'{"do": "stop"}\n')
                    member.stdin.close()
            except OSError:  # it has gone already
                pass
        deadline = time.monotonic() + STOP_S
        for member in self._members:
            try:
                member.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()
            if member.stdout:
                member.stdout.close()
        if self._temporary:
            self._temporary.cleanup()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(
        self, place: Place, rank: int, interface: str, port: int, module: str
    ) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            **dict.fromkeys(THREAD_VARIABLES, str(THREADS)),
            "RANK": str(rank),
            "WORLD_SIZE": str(len(place.addresses)),
            "MASTER_ADDR": place.addresses[0],
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": interface,
        }
        with self._log(rank).open("wb") as log:
            return subprocess.Popen(
                [*place.enter(rank), sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=Path(__file__).resolve().parents[2],
                start_new_session=True,  # the terminal's interrupt is the session's affair
            )

    def _collect(self, what: str, timeout_s: float) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any] | None] = {}
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            for rank, member in enumerate(self._members):
                selector.register(_pipe(member.stdout), selectors.EVENT_READ, rank)
            while len(answers) < len(self._members):
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready and time.monotonic() >= deadline:
                    break
                for key, _ in ready:
                    line = self._line(key.data)
                    if line is None:
                        continue
                    selector.unregister(key.fileobj)
                    answers[key.data] = json.loads(line) if line else None
                    if not line or not answers[key.data]["ok"]:  # type: ignore[index]
                        deadline = min(deadline, time.monotonic() + GRACE_S)
        faults = {rank: answer for rank, answer in answers.items() if answer is None or not answer["ok"]}
        if faults:
            raise self._lost(faults)
        if len(answers) < len(self._members):
            silent = min(set(range(len(self._members))) - answers.keys())
            raise RankLostError(
                silent, f"has not answered {what!r} within {timeout_s:.0f} s{self._last_words(silent)}"
            )
        return [answer for _, answer in sorted(answers.items()) if answer is not None]

    def _line(self, rank: int) -> bytes | None:
        """The next line of a rank; empty at its end, None while it is incomplete."""
        chunk = os.read(_pipe(self._members[rank].stdout).fileno(), 1 << 16)
        self._partial[rank] += chunk
        line, newline, rest = self._partial[rank].partition(b"\n")
        if newline:
            self._partial[rank] = rest
            return line
        return None if chunk else b""

    def _lost(self, faults: Mapping[int, Mapping[str, Any] | None]) -> RankLostError:
        """The rank to name: one that died by a signal before one that ended, before one that complains of the others."""
        found = []
        for rank, answer in sorted(faults.items()):
            if answer is None:
                code = self._code(rank)
                words = f"died: {exit_text(code)}" if code is not None else "has closed its answers"
                found.append(
                    (0 if code is not None and code < 0 else 1, rank, words + self._last_words(rank))
                )
            else:
                found.append((2, rank, f"faulted: {answer['type']}: {answer['error']}"))
        _, rank, how = min(found)
        return RankLostError(rank, how)

    def _code(self, rank: int) -> int | None:
        try:
            return self._members[rank].wait(1.0)
        except subprocess.TimeoutExpired:
            return None

    def _last_words(self, rank: int) -> str:
        text = self._log(rank).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith(WARNING)]
        return f" ({lines[-1][:300]})" if lines else ""

    def _log(self, rank: int) -> Path:
        return self._logs / f"rank-{rank}.log"


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # all three are ours
    return stream


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
