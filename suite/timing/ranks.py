"""The ranks of a session: told what to do over a connection each, and their replies taken together.

`Ranks` are processes here, started on the workers of an emulated cluster with the other end of a pipe, and ended by their ids.
`RemoteRanks` were started by a scheduler on nodes of its own: the session listens at an address of the network between them
(`Switchboard`), and every rank connects, says in one line which it is and where it runs, and then hears commands and replies as
others do (`call`). What messages weigh on that network is no part of a block: a block begins with a barrier, and replies come
after its end.

Every command goes to all ranks, and every rank replies to it once, in JSON. A rank that dies, faults or does not reply ends the
session: `RankLostError` names the one that went first. What each rank here writes to its standard streams goes to a file of its
own, whose last line is part of that message. A connection that closes is a rank that has ended. A node that vanishes closes
nothing: the kernel asks after it and closes the connection `VANISHED_S` seconds later. Imports no torch.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Final, Self

from suite.links.cluster import Cluster, nccl_variables
from suite.links.link import RealLink
from suite.runs.spec import THREAD_VARIABLES
from suite.timing.load import machine_id
from suite.timing.spec import Device
from suite.training.checkpoint import exit_text

THREADS: Final = 1
GRACE_S: Final = 3.0
"""After the first fault the others get this long to say theirs: a rank that died tells more than one that lost a peer."""
STOP_S: Final = 5.0
WARNING: Final = "[W"
"""So begin lines in which torch warns of what does no harm."""
LAST_BYTES: Final = 1 << 16
MODULE: Final = "suite.timing.rank"
TOKEN: Final = "BANDWISE_SESSION_TOKEN"
"""Variable of the word by which a session knows its own ranks."""
BACKEND: Final = "BANDWISE_SESSION_BACKEND"
"""Variable of the process group's backend: gloo, or nccl, whose ranks compute on GPUs, in turn on those that they see."""
NCCL: Final = "nccl"
CALL_S: Final = 60.0
"""How long a session waits for its ranks to call, and a rank for the session."""
VANISHED_S: Final = 25


class RankLostError(RuntimeError):
    """A rank has died, faulted or fallen silent; how, in words."""

    def __init__(self, rank: int, how: str) -> None:
        super().__init__(f"rank {rank} {how}")
        self.rank = rank


def tell(connection: Connection, message: Mapping[str, Any]) -> None:
    """Send a message of plain values. Raises OSError where the other end has gone."""
    connection.send_bytes(json.dumps(message, allow_nan=False).encode())


def hear(connection: Connection) -> dict[str, Any] | None:
    """The next message; None where the other end has gone."""
    try:
        return dict(json.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        return None


class RankGroup:
    """The ranks of a session, by rank. Use as a context manager, or call `stop`."""

    def __init__(self, members: Sequence[Connection]) -> None:
        self._members = list(members)

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
        for rank, member in enumerate(self._members):
            try:
                tell(member, command)
            except OSError:
                raise self._lost({rank: None}) from None
        return self._collect(str(command.get("do")), timeout_s)

    def stop(self) -> None:
        """Tell the ranks to end, and hang up once they have or take too long. Can be called twice."""
        staying = [member for member in self._members if not member.closed]
        for member in staying:
            with suppress(OSError):  # it has gone already
                tell(member, {"do": "stop"})
        deadline = time.monotonic() + STOP_S
        while staying and (ready := _ready(staying, deadline)):
            staying = [member for member in staying if member not in ready or hear(member) is not None]
        for member in self._members:
            member.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _collect(self, what: str, timeout_s: float) -> list[dict[str, Any]]:
        answers: dict[int, dict[str, Any] | None] = {}
        silent = {member: rank for rank, member in enumerate(self._members)}
        deadline = time.monotonic() + timeout_s
        while silent and (ready := _ready(list(silent), deadline)):
            for member in ready:
                answer = hear(member)
                answers[silent.pop(member)] = answer
                if answer is None or not answer["ok"]:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        faults = {rank: answer for rank, answer in answers.items() if answer is None or not answer["ok"]}
        if faults:
            raise self._lost(faults)
        if silent:
            rank = min(silent.values())
            raise RankLostError(
                rank, f"has not answered {what!r} within {timeout_s:.0f} s{self._last_words(rank)}"
            )
        return [answer for _, answer in sorted(answers.items()) if answer is not None]

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


def _ready(members: Sequence[Connection], deadline: float) -> list[Any]:
    """Those that have something to say, or have ended, as soon as there are any; none where the time is over."""
    return wait(members, max(0.0, deadline - time.monotonic()))


class Ranks(RankGroup):
    """Rank processes, started here on the workers of a cluster. What each writes goes to a file without a name.

    device: where they compute; on ``cuda`` over NCCL, whose traffic goes over the cluster's wires too.
    """

    def __init__(self, place: Cluster, module: str = MODULE, device: Device = "cpu") -> None:
        super().__init__(())
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[IO[bytes]] = []
        self._on_gpu = {BACKEND: NCCL, **nccl_variables(place.interface)} if device == "cuda" else {}
        try:
            for rank in range(len(place.addresses)):
                self._logs.append(tempfile.TemporaryFile())  # noqa: SIM115 - closed by `stop`
                here, there = Pipe()
                self._members.append(here)
                with there:
                    self._processes.append(self._start(place, rank, module, there.fileno()))
        except OSError as error:
            self.stop()
            raise RankLostError(rank, f"could not be started: {error}") from error

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [process.pid for process in self._processes]

    def stop(self) -> None:
        """End the processes: politely, then by their ids; what they said is lost then."""
        super().stop()
        deadline = time.monotonic() + STOP_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()

    def _start(self, place: Cluster, rank: int, module: str, pipe: int) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            **dict.fromkeys(THREAD_VARIABLES, str(THREADS)),
            "RANK": str(rank),
            "WORLD_SIZE": str(len(place.addresses)),
            "MASTER_ADDR": place.addresses[0],
            "MASTER_PORT": str(place.port),
            "GLOO_SOCKET_IFNAME": place.interface,
            **self._on_gpu,
        }
        return subprocess.Popen(
            [*place.enter(rank), sys.executable, "-m", module, str(pipe)],
            stdin=subprocess.DEVNULL,
            stdout=self._logs[rank],
            stderr=self._logs[rank],
            pass_fds=[pipe],
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


# Ranks between real nodes


@dataclass(frozen=True)
class Caller:
    """Where a rank runs. node: its name for the scheduler. machine: the boot that its kernel is in. cores: it may use."""

    node: str
    machine: str
    cores: frozenset[int]


class RemoteRanks(RankGroup):
    """Ranks that have called. words: what else is known of a rank that was lost, for people; "" where nothing is."""

    def __init__(
        self, members: Sequence[Connection], callers: Sequence[Caller], words: Callable[[int], str]
    ) -> None:
        super().__init__(members)
        self.callers = tuple(callers)
        self._words = words

    def _end(self, rank: int) -> tuple[int, str]:
        return 0, f"on {self.callers[rank].node} has ended without a word"

    def _last_words(self, rank: int) -> str:
        words = self._words(rank)
        return f" ({words})" if words else ""


class Switchboard:
    """Where ranks call. token: to be handed to them, with `where`."""

    def __init__(self, address: str) -> None:
        self._listening = socket.create_server((address, 0), backlog=1024)
        self.token = secrets.token_hex(16)

    @property
    def where(self) -> str:
        """``address:port``."""
        address, port = self._listening.getsockname()[:2]
        return f"{address}:{port}"

    def ranks(
        self, size: int, words: Callable[[int], str] = lambda rank: "", timeout_s: float = CALL_S
    ) -> RemoteRanks:
        """Wait for all ranks; nobody else is listened to afterwards.

        Args:
            size: How many there are.
            words: See `RemoteRanks`.
            timeout_s: Seconds to wait for all of them.

        Returns:
            The ranks.

        Raises:
            RankLostError: A rank has not called.
        """
        found: dict[int, tuple[Connection, Caller]] = {}
        deadline = time.monotonic() + timeout_s
        with self._listening:
            while len(found) < size:
                self._listening.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    connection, _ = self._listening.accept()
                except TimeoutError:
                    absent = min(set(range(size)) - found.keys())
                    raise RankLostError(
                        absent, f"has not called the session within {timeout_s:g} s"
                    ) from None
                who = self._who(connection, deadline)
                if who is None:
                    connection.close()
                    continue
                _ask_after(connection)
                caller = Caller(str(who["node"]), str(who["machine"]), frozenset(who["cores"]))
                found[int(who["rank"])] = Connection(connection.detach()), caller
        ordered = [found[rank] for rank in range(size)]
        return RemoteRanks([member for member, _ in ordered], [caller for _, caller in ordered], words)

    def _who(self, connection: socket.socket, deadline: float) -> Mapping[str, Any] | None:
        """What a rank of this session says of itself; None of anybody else."""
        connection.settimeout(max(0.001, min(5.0, deadline - time.monotonic())))
        try:
            # unbuffered, no more is read than the line: what follows is the conversation's
            with connection.makefile("rb", buffering=0) as stream:
                who = json.loads(stream.readline())
        except (OSError, ValueError):
            return None
        connection.settimeout(None)
        own = isinstance(who, dict) and secrets.compare_digest(str(who.get("token")), self.token)
        return who if own else None


class RealCluster:
    """Nodes as they are, joined by a network that nobody shapes. ranks: on them; end: called when the session is over."""

    emulated = False

    def __init__(self, link: RealLink, ranks: RemoteRanks, end: Callable[[], None] = lambda: None) -> None:
        self.link = link
        self.ranks = ranks
        self._end = end

    @property
    def machine(self) -> dict[str, Any]:
        """What a session's record says of all machines together.

        cores: that ranks may use. nodes: as the scheduler counts them; machines: kernels that they run on.
        """
        callers = self.ranks.callers
        cores = len({(caller.machine, core) for caller in callers for core in caller.cores})
        return {
            "cores": cores,
            "oversubscription": len(callers) * THREADS / cores,
            "backend": self.link.backend,
            "device": self.link.device,
            "nodes": len({caller.node for caller in callers}),
            "machines": len({caller.machine for caller in callers}),
        }

    def shape(self, link: RealLink) -> None:
        """Nothing is shaped."""

    def down(self) -> None:
        """Let go of what the session needed beside its ranks."""
        self._end()


def call(where: str) -> Connection:
    """Call the session as the rank that RANK says.

    Args:
        where: ``address:port`` of the session, or the descriptor of the pipe to it.

    Returns:
        Where commands are heard, and replies told.

    Raises:
        OSError: The session cannot be reached.
    """
    if where.isdecimal():
        return Connection(int(where))
    address, _, port = where.rpartition(":")
    connection = socket.create_connection((address, int(port)), CALL_S)
    connection.settimeout(None)
    _ask_after(connection)
    who = {
        "token": os.environ.get(TOKEN, ""),
        "rank": int(os.environ["RANK"]),
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "machine": machine_id(),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    connection.sendall(json.dumps(who).encode() + b"\n")
    return Connection(connection.detach())


def _ask_after(connection: socket.socket) -> None:
    """Have the kernel find out that the other end has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_S // 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, VANISHED_S // 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * VANISHED_S)
