"""Ranks that a scheduler has started on nodes of its own: they call the session, and are told over that connection.

The session listens at an address of the network between the nodes. Every rank connects, says in one line which it is and
where it runs (`call`), and then reads commands and writes replies as a rank of `suite.timing.ranks` does over pipes. What
the lines weigh on that network is no part of a block: a block begins with a barrier, and replies come after its end.

A connection that closes is a rank that has ended. A node that vanishes closes nothing: the kernel asks after it and closes the
connection `VANISHED_S` seconds later.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Final

from suite.links.link import RealLink
from suite.timing.load import machine_id
from suite.timing.ranks import THREADS, RankGroup, RankLostError

TOKEN: Final = "BANDWISE_SESSION_TOKEN"
"""Variable of the word by which a session knows its own ranks."""
CALL_S: Final = 60.0
"""How long a session waits for its ranks to call, and a rank for the session."""
VANISHED_S: Final = 25


# A rank's end


def call(where: str) -> tuple[IO[str], IO[str]]:
    """Call the session as the rank that RANK says.

    Args:
        where: ``address:port`` of the session.

    Returns:
        What commands are read from, and what replies are written to.

    Raises:
        OSError: The session cannot be reached.
    """
    address, _, port = where.rpartition(":")
    connection = socket.create_connection((address, int(port)), CALL_S)
    connection.settimeout(None)
    _ask_after(connection)
    replies = connection.makefile("w", encoding="utf-8")
    who = {
        "token": os.environ.get(TOKEN, ""),
        "rank": int(os.environ["RANK"]),
        "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        "machine": machine_id(),
        "cores": sorted(os.sched_getaffinity(0)),
    }
    replies.write(json.dumps(who) + "\n")
    replies.flush()
    return connection.makefile("r", encoding="utf-8"), replies


def _ask_after(connection: socket.socket) -> None:
    """Have the kernel find out that the other end has vanished."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, VANISHED_S // 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, VANISHED_S // 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * VANISHED_S)


# The session's end


class Connection:
    """A rank that has called: a `suite.timing.ranks.Member`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.stdin: IO[bytes] | None = connection.makefile("wb")
        self.stdout: IO[bytes] | None = connection.makefile("rb", buffering=0)  # type: ignore[assignment]
        connection.close()  # what it is lives on until both streams are closed

    def wait(self, timeout: float | None = None) -> int:
        """Return once the rank has closed the connection. Raises `subprocess.TimeoutExpired`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._connection.fileno() >= 0:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._connection], [], [], left)[0]:
                raise subprocess.TimeoutExpired("rank", timeout or 0.0)
            try:
                if not self._connection.recv(1 << 16):
                    break
            except OSError:
                break
        return 0

    def kill(self) -> None:
        """Cut the connection; the rank's scheduler ends what goes on."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


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
                found[int(who["rank"])] = Connection(connection), caller
        ordered = [found[rank] for rank in range(size)]
        return RemoteRanks([member for member, _ in ordered], [caller for _, caller in ordered], words)

    def _who(self, connection: socket.socket, deadline: float) -> Mapping[str, Any] | None:
        """What a rank of this session says of itself; None of anybody else."""
        connection.settimeout(max(0.001, min(5.0, deadline - time.monotonic())))
        line = b""
        try:
            while not line.endswith(b"\n"):
                byte = connection.recv(1)  # no more than the line: what follows is the conversation's
                if not byte:
                    return None
                line += byte
            who = json.loads(line)
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
