"""The ranks of a session: told what to do over a pair of streams each, and their replies taken together.

`Ranks` are processes here, started on the workers of an emulated cluster and ended by their ids; those of
`suite.timing.remote` were started by a scheduler and have called.

Every command goes to all ranks, and every rank replies one line. A rank that dies, faults or does not reply ends the
session: `RankLostError` names the one that went first. Standard error of each rank goes to a file of its own, whose last line
is part of that message. The replies to one command become one entry of the record: the slowest rank's seconds, means of the rest.
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
from statistics import fmean, median
from typing import IO, Any, Final, Protocol, Self

from suite.links.link import Link
from suite.runs.provenance import THREAD_VARIABLES
from suite.timing.case import PLACES, SENT
from suite.training.processes import exit_text

THREADS: Final = 1
GRACE_S: Final = 3.0
"""After the first fault the others get this long to say theirs: a rank that died tells more than one that lost a peer."""
STOP_S: Final = 5.0
PORT: Final = 29500
"""Of the meeting point inside a worker's own namespace, where every port is free."""
WARNING: Final = "[W"
"""So begin lines in which torch warns of what does no harm."""
LAST_BYTES: Final = 1 << 16
MODULE: Final = "suite.timing.rank"


class RankLostError(RuntimeError):
    """A rank has died, faulted or fallen silent. rank: which; how: in words."""

    def __init__(self, rank: int, how: str) -> None:
        super().__init__(f"rank {rank} {how}")
        self.rank = rank
        self.how = how


class RankHosts(Protocol):
    """Where ranks can be started: an emulated cluster (`suite.links.cluster.Cluster`), say."""

    @property
    def link(self) -> Link:
        """The link as it is now."""

    @property
    def addresses(self) -> Sequence[str]:
        """Address of every rank."""

    def enter(self, rank: int) -> tuple[str, ...]:
        """What stands before a command that is to run on the worker of a rank."""

    def shape(self, link: Link) -> None:
        """Make the link another one."""

    def down(self) -> None:
        """Take it away."""


class Member(Protocol):
    """One rank as the session sees it: `subprocess.Popen`, or a connection to a process elsewhere."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def wait(self, timeout: float | None = None) -> int:
        """Return once it has ended. Raises `subprocess.TimeoutExpired`."""

    def kill(self) -> None:
        """End it at once."""


class RankGroup:
    """The ranks of a session, by rank. Use as a context manager, or call `stop`."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = list(members)
        self._partial = [b"" for _ in members]

    def ask(self, command: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        """Tell all ranks the same and collect their replies.

        Args:
            command: What to do, as plain values.
            timeout_s: Seconds after which a rank counts as silent.

        Returns:
            The replies, by rank.

        Raises:
            RankLostError: A rank died, faulted or did not reply.
        """
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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
        try:
            chunk = os.read(_pipe(self._members[rank].stdout).fileno(), 1 << 16)
        except OSError:  # a connection that was cut off
            chunk = b""
        self._partial[rank] += chunk
        line, newline, rest = self._partial[rank].partition(b"\n")
        if newline:
            self._partial[rank] = rest
            return line
        return None if chunk else b""

    def _lost(self, faults: Mapping[int, Mapping[str, Any] | None]) -> RankLostError:
        """The rank to name: one that died by a signal before one that ended, before one that complains of the others."""
        candidates = []
        for rank, answer in sorted(faults.items()):
            if answer is None:
                order, words = self._end(rank)
                candidates.append((order, rank, words + self._last_words(rank)))
            else:
                candidates.append((2, rank, f"faulted: {answer['type']}: {answer['error']}"))
        _, rank, how = min(candidates)
        return RankLostError(rank, how)

    def _end(self, rank: int) -> tuple[int, str]:
        """How a rank ended that has closed its answers, in words; the lower the number, the surer it is that it went first."""
        raise NotImplementedError

    def _last_words(self, rank: int) -> str:
        """What else is known of a rank that was lost, in brackets; empty where nothing is."""
        return ""


class Ranks(RankGroup):
    """Rank processes, started here on the workers of a cluster. Standard error of each goes to a file without a name."""

    def __init__(self, place: RankHosts, module: str = MODULE) -> None:
        super().__init__(())
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        interface = getattr(place, "interface", "eth0")
        port = _free_port() if interface == "lo" else PORT
        try:
            for rank in range(len(place.addresses)):
                self._logs.append(tempfile.TemporaryFile())  # noqa: SIM115 - closed by `stop`
                self._processes.append(self._start(place, rank, interface, port, module))
                self._members.append(self._processes[-1])
                self._partial.append(b"")
        except OSError as error:
            self.stop()
            raise RankLostError(rank, f"could not be started: {error}") from error

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [member.pid for member in self._processes]

    def stop(self) -> None:
        """End the processes; what they said is lost then."""
        super().stop()
        for log in self._logs:
            log.close()

    def _start(
        self, place: RankHosts, rank: int, interface: str, port: int, module: str
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
        return subprocess.Popen(
            [*place.enter(rank), sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._logs[rank],
            env=environment,
            cwd=Path(__file__).resolve().parents[2],
            start_new_session=True,  # the terminal's interrupt is the session's affair
        )

    def _end(self, rank: int) -> tuple[int, str]:
        try:
            code = self._processes[rank].wait(1.0)
        except subprocess.TimeoutExpired:
            return 1, "has closed its answers"
        return 0 if code < 0 else 1, f"died: {exit_text(code)}"

    def _last_words(self, rank: int) -> str:
        log = self._logs[rank].fileno()  # the rank writes where this file stands: it must not be moved
        text = os.pread(log, LAST_BYTES, max(0, os.fstat(log).st_size - LAST_BYTES)).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith(WARNING)]
        return f" ({lines[-1][:300]})" if lines else ""


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # all three are ours
    return stream


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# What all ranks reply to one command, as one entry of the record


def block_entry(answers: Sequence[Mapping[str, Any]], lead: int, unit_steps: int) -> dict[str, Any]:
    """What a block took, without its first `lead` units.

    unit_s: the block's sample, the slowest rank's seconds from its first unit to its last, a unit. unit_seconds: of each
    unit the slowest rank's; a rank that is late in one unit may be early in the next, so these add up to more than the
    block took. step_seconds: the median over the steps of the slowest rank's. spread: of
    the processor time of the ranks, largest less smallest over their mean; None where none was used. phases: seconds a
    step, mean over ranks. A rank's phases are means over all units of its block, so phases go without a lead.
    """
    units = [list(answer["unit_seconds"])[lead:] for answer in answers]
    steps = [list(answer["step_seconds"])[lead * unit_steps :] for answer in answers]
    busy = [float(answer["cpu_s"]) for answer in answers]
    return {
        "unit_s": max(sum(column) for column in units) / len(units[0]),
        "unit_seconds": [max(column) for column in zip(*units, strict=True)],
        "step_seconds": median(max(column) for column in zip(*steps, strict=True)),
        "spread": (max(busy) - min(busy)) / fmean(busy) if fmean(busy) > 0 else None,
        "phases": mean_phases([answer["phases"] for answer in answers]),
    }


def mean_phases(phases: Sequence[Mapping[str, float] | None]) -> dict[str, float] | None:
    """Seconds a step by phase, mean over ranks; None where a rank has none."""
    known = [seconds for seconds in phases if seconds is not None]
    if len(known) < len(phases) or not known:
        return None
    return {name: fmean(seconds.get(name, 0.0) for seconds in known) for name in sorted(set().union(*known))}


def traffic_entry(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes a unit, mean over ranks, also by stage, and the path that each codec took on any rank."""
    paths: dict[str, set[str]] = {}
    for answer in answers:
        for name, way in answer["path"].items():
            paths.setdefault(name, set()).update(way.split("/"))
    return {
        "wire_bytes": fmean(answer["wire_bytes"] for answer in answers),
        "received_bytes": fmean(answer["received_bytes"] for answer in answers),
        "stages": mean_stages([answer["stages"] for answer in answers]),
        "path": {name: "/".join(sorted(ways)) for name, ways in sorted(paths.items())},
    }


def mean_stages(ranks: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """A unit's bytes by stage, collective and group, mean over ranks; a rank that sends nothing there counts as 0.

    Args:
        ranks: What each rank says of its block.

    Returns:
        A row each stage, collective and group, sorted, with the keys of `PLACES` and `SENT`.
    """
    totals: dict[tuple[str, ...], dict[str, float]] = {}
    for stages in ranks:
        for row in stages:
            sums = totals.setdefault(tuple(row[name] for name in PLACES), dict.fromkeys(SENT, 0.0))
            for name in SENT:
                sums[name] += row[name] / len(ranks)
    return [{**dict(zip(PLACES, place, strict=True)), **sums} for place, sums in sorted(totals.items())]


def direct_entry(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A whole run, as an entry of the record.

    Args:
        answers: The ranks' replies.

    Returns:
        seconds: the slowest rank's; steps; steps_by_kind; final: the scores of the rank that was evaluated.
    """
    return {
        "seconds": max(answer["seconds"] for answer in answers),
        "steps": answers[0]["steps"],
        "steps_by_kind": dict(answers[0]["steps_by_kind"]),
        "final": next((answer["final"] for answer in answers if answer["final"] is not None), None),
    }
