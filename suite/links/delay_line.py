"""A delay line in user space: frames read from one interface leave by another, a fixed time later.

For kernels without the netem queueing discipline. Both ends of a route are interfaces of the namespace in which the
process runs; a frame is read and written by packet sockets (AF_PACKET) that carry the offload header of virtio
(PACKET_VNET_HDR), so that a TCP segment of 64 KiB passes as one frame and an unfinished checksum stays unfinished:
nothing has to be switched off on the interfaces. They must be up and promiscuous, without addresses of their own.

**Differences** from netem: a frame cannot leave earlier than this process is scheduled, so it leaves late by tens of
microseconds, more on a machine without a free core (`mean_late_s` in the statistics says by how much); there is no
jitter, loss or reordering, a later frame of a route never overtakes an earlier one, even where its delay was shortened.

    python -m suite.links.delay_line [--delays FILE] IN:OUT:SECONDS ...

prints ``ready`` when all sockets are bound. SIGUSR1: read new delays from FILE, ``{"IN": seconds}``, routes that are
not named keep theirs. SIGTERM or SIGINT: one line of JSON with the statistics of `Forwarder.statistics`, and the end.
It also ends with the process that started it. Needs CAP_NET_RAW in the namespace. Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_RATE_BPS = 1e9
"""Bit/s a link, up to which one forwarder carries four workers' links in both directions.

Measured on two cores with other work on them, four gloo ranks in an all-reduce of 50 to 100 MB: links of 2 Gbit/s reached
1.15 Gbit/s, which is what one forwarder can carry, a fifth above what a link of 1 Gbit/s can hold (0.95). Links of
1 Gbit/s reached 0.95 without a delay and 0.91 with 5 ms; the forwarder then takes three quarters of a core.
"""

MAX_DELAY_S = 10.0
MAX_FRAME_BYTES = 70_000  # 64 KiB of segments, Ethernet header, offload header
BURST_FRAMES = 16  # read from one interface before frames that are due get their turn
BUFFER_BYTES = 8 << 20  # of a socket; the kernel gives less where net.core.rmem_max says so
RETRY_S = 1e-4
GIVE_UP_S = 1.0  # waiting for room in a send buffer

# <linux/if_packet.h>, <asm-generic/socket.h>, <linux/prctl.h>
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_STATISTICS, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 6, 15, 23
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
LAST_IN_QUEUE = 10  # priority among real-time processes; any is above all ordinary ones


class DelayLineError(RuntimeError):
    """The delay line cannot be set up; the message says what to do."""


@dataclass(frozen=True)
class Route:
    """Frames that arrive at interface `source` leave by interface `target`, `delay_s` seconds later."""

    source: str
    target: str
    delay_s: float

    def __post_init__(self) -> None:
        if not self.source or not self.target or self.source == self.target:
            raise ValueError(f"route {self.source!r} to {self.target!r}: name two interfaces")
        checked_delay(self.delay_s)

    @classmethod
    def parse(cls, text: str) -> Route:
        """``IN:OUT:SECONDS``. Raises ValueError."""
        parts = text.split(":")
        if len(parts) != 3:
            raise ValueError(f"route {text!r}: write IN:OUT:SECONDS, as in h0:c0:0.005")
        return cls(parts[0], parts[1], checked_delay(parts[2]))


def checked_delay(value: Any) -> float:
    """`value` in seconds, 0 to `MAX_DELAY_S`. Raises ValueError."""
    try:
        delay_s = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"delay {value!r}: write seconds, as in 0.005") from None
    if not 0 <= delay_s <= MAX_DELAY_S:  # not a number fails too
        raise ValueError(f"delay {value!r}: write 0 to {MAX_DELAY_S:g} seconds")
    return delay_s


@dataclass(eq=False)
class _Lane:
    """A route at work: its sockets and the frames under way, each with the time at which it is due."""

    source: socket.socket
    target: socket.socket
    delay_s: float
    queue: deque[tuple[float, bytes]] = field(default_factory=deque)
    last_due: float = 0.0
    not_before: float = 0.0
    blocked_since: float = 0.0


class Forwarder:
    """Carries frames along `routes` until told to stop.

    Raises DelayLineError where an interface is missing or packet sockets are refused.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        if not routes:
            raise ValueError("no route: name at least one, IN:OUT:SECONDS")
        if len({route.source for route in routes}) < len(routes):
            raise ValueError("two routes from one interface: a frame can leave by one only")
        self._lanes: dict[str, _Lane] = {}
        self._of_descriptor: dict[int, _Lane] = {}
        self._ready = select.epoll()
        for route in routes:
            source = open_interface(route.source)
            lane = _Lane(source, open_interface(route.target, receives=False), route.delay_s)
            self._lanes[route.source] = self._of_descriptor[source.fileno()] = lane
            self._ready.register(source.fileno(), select.EPOLLIN)
        self._packets = self._bytes = self._delayed = self._waits = self._lost = 0
        self._late_s = self._most_late_s = 0.0

    def set_delays(self, delays: Mapping[str, Any]) -> None:
        """New delays in seconds by the name of the interface that frames come from; all or none. Raises ValueError."""
        unknown = sorted(set(delays) - set(self._lanes))
        if unknown:
            raise ValueError(f"no route comes from {', '.join(unknown)}; there are {', '.join(self._lanes)}")
        checked = {name: checked_delay(value) for name, value in delays.items()}
        for name, delay_s in checked.items():
            self._lanes[name].delay_s = delay_s

    def watch(self, other: socket.socket) -> None:
        """Have `turn` end when `other` can be read."""
        self._ready.register(other.fileno(), select.EPOLLIN)

    def turn(self) -> bool:
        """Wait for frames, for the next one that is due, or for what is watched; carry frames.

        Answers whether something that is watched can be read.
        """
        asked = False
        for descriptor in self._wait():
            lane = self._of_descriptor.get(descriptor)
            if lane is None:
                asked = True
            else:
                self._take(lane)
                self._send_due()
        self._send_due()
        return asked

    def statistics(self) -> dict[str, float]:
        """What was carried; to be asked once, since the kernel's counters start again with every reading.

        packets, bytes: read; drops: frames lost, by the kernel for want of room in a receive buffer or by this process
        after waiting `GIVE_UP_S` for a send buffer; waits: times that a send buffer was full; mean_late_s, max_late_s: by
        how much delayed frames left after their time; cpu_s: processor seconds of this process.
        """
        dropped = sum(_kernel_drops(lane.source) for lane in self._lanes.values())
        return {
            "packets": self._packets,
            "bytes": self._bytes,
            "drops": dropped + self._lost,
            "waits": self._waits,
            "mean_late_s": self._late_s / self._delayed if self._delayed else 0.0,
            "max_late_s": self._most_late_s,
            "cpu_s": time.process_time(),
        }

    def close(self) -> None:
        """Give the sockets back; frames under way are lost."""
        self._ready.close()
        for lane in self._lanes.values():
            lane.source.close()
            lane.target.close()

    def _wait(self) -> list[int]:
        """Descriptors that can be read; none where a frame's time came first."""
        due = [max(lane.queue[0][0], lane.not_before) for lane in self._lanes.values() if lane.queue]
        if not due:
            return [descriptor for descriptor, _ in self._ready.poll()]
        left_s = min(due) - time.monotonic()
        # epoll counts whole milliseconds, select microseconds
        if left_s > 0 and not select.select([self._ready], (), (), left_s)[0]:
            return []
        return [descriptor for descriptor, _ in self._ready.poll(0)]

    def _take(self, lane: _Lane) -> None:
        """Read what has arrived; what needs no delay goes on at once."""
        receive, queue, delay_s = lane.source.recv, lane.queue, lane.delay_s
        for _ in range(BURST_FRAMES):
            try:
                frame = receive(MAX_FRAME_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENETDOWN:  # told once, when somebody takes the interface down
                    raise
                return
            now = time.monotonic()
            self._packets += 1
            self._bytes += len(frame)
            if delay_s == 0 and not queue and self._send(lane, frame, now):
                continue
            lane.last_due = max(now + delay_s, lane.last_due)
            queue.append((lane.last_due, frame))

    def _send_due(self) -> None:
        """Send what is due, in the order in which it came."""
        for lane in self._lanes.values():
            queue = lane.queue
            while queue:
                due = queue[0][0]
                now = time.monotonic()
                if due > now or lane.not_before > now or not self._send(lane, queue[0][1], now):
                    break
                queue.popleft()
                late_s = now - due
                self._delayed += 1
                self._late_s += late_s
                self._most_late_s = max(self._most_late_s, late_s)

    def _send(self, lane: _Lane, frame: bytes, now: float) -> bool:
        """Whether `frame` is dealt with; False where there is no room yet and it has to be tried again."""
        try:
            lane.target.send(frame)
        except OSError as error:
            if error.errno not in _PASSING | _FINAL:
                raise
            if error.errno in _PASSING:
                lane.blocked_since = lane.blocked_since or now
                if now - lane.blocked_since < GIVE_UP_S:
                    lane.not_before = now + RETRY_S
                    self._waits += 1
                    return False
            self._lost += 1
        lane.blocked_since = 0.0
        return True


_PASSING = frozenset({errno.EAGAIN, errno.ENOBUFS})  # no room, try again
_FINAL = frozenset(
    {errno.ENETDOWN, errno.ENXIO, errno.EMSGSIZE, errno.EINVAL, errno.EIO}
)  # this frame never passes


def open_interface(name: str, receives: bool = True) -> socket.socket:
    """A packet socket on interface `name`, for frames with offload headers. Raises DelayLineError.

    receives: it is given the frames that arrive at the interface; otherwise it is for sending alone.
    """
    try:
        # protocol 0: nothing arrives before the socket is bound to its interface
        one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except OSError as error:
        raise DelayLineError(
            f"no packet socket ({error.strerror}): run as root of a network namespace, as in `unshare -Urn`"
        ) from error
    try:
        one.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        one.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        _enlarge(one, SO_RCVBUFFORCE, socket.SO_RCVBUF)
        _enlarge(one, SO_SNDBUFFORCE, socket.SO_SNDBUF)
        one.bind((name, ETH_P_ALL if receives else 0))
        one.setblocking(False)
    except OSError as error:
        one.close()
        raise DelayLineError(
            f"interface {name}: {error.strerror}; `ip link` in the same namespace says what there is"
        ) from error
    return one


def _enlarge(one: socket.socket, force: int, polite: int) -> None:
    """A buffer of `BUFFER_BYTES`, or as much as somebody without the machine's CAP_NET_ADMIN may have."""
    try:
        one.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
    except PermissionError:
        one.setsockopt(socket.SOL_SOCKET, polite, BUFFER_BYTES)


def _kernel_drops(one: socket.socket) -> int:
    """Frames the kernel had no room for since the last reading."""
    return int.from_bytes(one.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)[4:8], sys.byteorder)


def go_first() -> str:
    """Be scheduled before ordinary processes, with exact timers, and end with the parent.

    Answers which scheduling was granted: ``real-time``, ``nice`` or ``ordinary``.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    libc.prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(LAST_IN_QUEUE))
    except OSError:
        pass
    else:
        return "real-time"
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except OSError:
        return "ordinary"
    return "nice"


def run(routes: Sequence[Route], delays: Path | None) -> dict[str, Any]:
    """Carry frames until SIGTERM or SIGINT; answers the statistics. Says ``ready`` on standard output."""
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    forwarder = Forwarder(routes)
    forwarder.watch(woken)
    signal.set_wakeup_fd(wake.fileno())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)  # the wake-up descriptor carries the number
    scheduling = go_first()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        if not forwarder.turn():
            continue
        numbers = woken.recv(4096)
        if signal.SIGTERM in numbers or signal.SIGINT in numbers:
            found = {**forwarder.statistics(), "scheduling": scheduling}
            forwarder.close()
            return found
        reread(forwarder, delays)


def reread(forwarder: Forwarder, delays: Path | None) -> None:
    """Set the delays that the file holds now; a file that cannot be used is reported, and the old delays stay."""
    if delays is None:
        sys.stderr.write("no new delays: started without --delays FILE\n")
        return
    try:
        found = json.loads(delays.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError('write {"interface": seconds, ...}')
        forwarder.set_delays(found)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{delays}: the delays stay as they were: {error}\n")
        sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 0 well, 1 cannot be set up, 2 wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m suite.links.delay_line",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("routes", metavar="IN:OUT:SECONDS", nargs="+")
    parser.add_argument("--delays", metavar="FILE", type=Path, help="read again on SIGUSR1")
    args = parser.parse_args(arguments)
    try:
        found = run([Route.parse(text) for text in args.routes], args.delays)
    except (DelayLineError, ValueError) as error:
        sys.stderr.write(f"delay line: {error}\n")
        return 1 if isinstance(error, DelayLineError) else 2
    try:
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # nobody listens any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
