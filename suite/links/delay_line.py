"""A delay line in user space: frames read from one interface leave by another, a fixed time later, in their order.

For kernels without the netem queueing discipline. Both ends of a route are interfaces of the namespace in which the
process runs, up and promiscuous, without addresses of their own. Frames are read and written whole by packet sockets with
the offload header of virtio in front (PACKET_VNET_HDR): a TCP segment of 64 KiB passes as one frame and an unfinished
checksum stays unfinished, so that nothing has to be switched off on the interfaces, and few system calls carry many bytes.
A program in user space pays for every frame with system calls and wake-ups; a route without a delay is handed to the
kernel itself, where that has ``tc``'s u32 and mirred.

**Differences** from netem: a frame leaves when this process is scheduled, early or late by tens of microseconds, later
on a machine without a free core (`mean_late_s` in the statistics says by how much), and its time counts from when it was
read, up to 0.2 ms after it came; there is no jitter, loss or reordering, a later frame of a route never overtakes an
earlier one, even where its delay was shortened.

    python -m suite.links.delay_line [--delays FILE] [--no-shortcuts] IN:OUT:SECONDS ...

prints ``ready`` when all sockets are bound. SIGUSR1: read new delays from FILE, ``{"IN": seconds}``, routes that are
not named keep theirs. SIGTERM or SIGINT: one line of JSON with the statistics of `Forwarder.statistics`, and the end.
It also ends with the process that started it. Needs CAP_NET_RAW in the namespace, and CAP_NET_ADMIN for shortcuts.
Standard library only.
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

from suite.links.process import CommandError, run_program

# Packet sockets (AF_PACKET)


MAX_FRAME_BYTES = 70_000  # 64 KiB of segments, Ethernet header, offload header
BUFFER_BYTES = 8 << 20  # of a socket; the kernel gives less where net.core.rmem_max says so

# <linux/if_packet.h>, <asm-generic/socket.h>
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_STATISTICS, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 6, 15, 23
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33


class PacketSocketError(RuntimeError):
    """There can be no packet socket; the message says what to do."""


def open_interface(name: str, receives: bool = True) -> socket.socket:
    """A packet socket on an interface, for frames with offload headers.

    Args:
        name: The interface.
        receives: It is given the frames that arrive at the interface; otherwise it is for sending alone.

    Returns:
        The socket, bound and not blocking.

    Raises:
        PacketSocketError: There is no such interface, or packet sockets are refused.
    """
    try:
        # protocol 0: nothing arrives before the socket is bound to its interface
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    except OSError as error:
        raise PacketSocketError(
            f"no packet socket ({error.strerror}): run as root of a network namespace, as in `unshare -Urn`"
        ) from error
    try:
        packets.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        packets.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        _enlarge(packets, SO_RCVBUFFORCE, socket.SO_RCVBUF)
        _enlarge(packets, SO_SNDBUFFORCE, socket.SO_SNDBUF)
        packets.bind((name, ETH_P_ALL if receives else 0))
        packets.setblocking(False)
    except OSError as error:
        packets.close()
        raise PacketSocketError(
            f"interface {name}: {error.strerror}; `ip link` in the same namespace says what there is"
        ) from error
    return packets


def _enlarge(packets: socket.socket, force: int, polite: int) -> None:
    """A buffer of `BUFFER_BYTES`, or as much as somebody without the machine's CAP_NET_ADMIN may have."""
    try:
        packets.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
    except PermissionError:
        packets.setsockopt(socket.SOL_SOCKET, polite, BUFFER_BYTES)


def kernel_drops(packets: socket.socket) -> int:
    """Frames the kernel had no room for since the last reading."""
    return int.from_bytes(packets.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)[4:8], sys.byteorder)


# Shortcuts of the kernel


class Shortcuts:
    """The shortcuts of one namespace; where the kernel has none, that is found out once and nothing else is tried."""

    def __init__(self) -> None:
        self._refused = False

    def open(self, source: str, target: str) -> bool:
        """Whether the kernel now hands on every frame that arrives at `source` to `target`; both interfaces' names."""
        if self._refused:
            return False
        redirect = f"u32 match u32 0 0 action mirred egress redirect dev {target}"
        try:
            run_program(["tc", "qdisc", "add", "dev", source, "clsact"])
            run_program(
                ["tc", "filter", "add", "dev", source, "ingress", "protocol", "all", *redirect.split()]
            )
        except CommandError:
            self._refused = True
            self.close(source)
            return False
        return True

    def close(self, source: str) -> None:
        """Take back what `open` did; harmless where it did nothing."""
        try:
            run_program(["tc", "qdisc", "del", "dev", source, "clsact"])
        except CommandError:  # there is none, or the interface has gone
            return


# The forwarder


MAX_DELAY_S = 10.0
BURST_FRAMES = 16  # read from one interface before frames that are due get their turn
RETRY_S = 1e-4
GIVE_UP_S = 1.0  # waiting for room in a send buffer

# Timers wake a process late, by tens of microseconds and by much the same each time: frames may leave early by as much,
# so that on average they leave on time, and those that are due together leave together.
MOST_LEAD_S = 2.5e-4
MOST_LEAD_SHARE = 0.02  # of the delay
LEAD_GAIN = 0.05


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
    """A delay that was read from outside.

    Args:
        value: A number or a text.

    Returns:
        Seconds, 0 to `MAX_DELAY_S`.

    Raises:
        ValueError: It is none.
    """
    try:
        delay_s = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"delay {value!r}: write seconds, as in 0.005") from None
    if not 0 <= delay_s <= MAX_DELAY_S:  # not a number fails too
        raise ValueError(f"delay {value!r}: write 0 to {MAX_DELAY_S:g} seconds")
    return delay_s


@dataclass(eq=False)
class _Lane:
    """A route at work: its sockets and the frames under way, each with the time at which it is due.

    source: None while the kernel carries the frames by a shortcut.
    """

    route: Route
    target: socket.socket
    delay_s: float
    source: socket.socket | None = None
    queue: deque[tuple[float, bytes]] = field(default_factory=deque)
    last_due: float = 0.0
    not_before: float = 0.0
    blocked_since: float = 0.0


class Forwarder:
    """Carries frames along `routes` until told to stop.

    shortcuts: hands routes without a delay to the kernel, see `settle`; None: this process carries all frames itself.
    Raises PacketSocketError where an interface is missing or packet sockets are refused.
    """

    def __init__(self, routes: Sequence[Route], shortcuts: Shortcuts | None = None) -> None:
        if not routes:
            raise ValueError("no route: name at least one, IN:OUT:SECONDS")
        if len({route.source for route in routes}) < len(routes):
            raise ValueError("two routes from one interface: a frame can leave by one only")
        self._shortcuts = shortcuts
        self._lanes: dict[str, _Lane] = {}
        self._of_descriptor: dict[int, _Lane] = {}
        self._ready = select.epoll()
        self._packets = self._bytes = self._delayed = self._waits = self._lost = 0
        self._late_s = self._most_late_s = 0.0
        self._lead_s = 0.0
        for route in routes:
            target = open_interface(route.target, receives=False)
            self._lanes[route.source] = lane = _Lane(route, target, route.delay_s)
            self._read_from(lane)

    def set_delays(self, delays: Mapping[str, Any]) -> None:
        """New delays in seconds by the name of the interface that frames come from; all or none. Raises ValueError."""
        unknown = sorted(set(delays) - set(self._lanes))
        if unknown:
            raise ValueError(f"no route comes from {', '.join(unknown)}; there are {', '.join(self._lanes)}")
        checked = {name: checked_delay(value) for name, value in delays.items()}
        for name, delay_s in checked.items():
            self._lanes[name].delay_s = delay_s

    def settle(self) -> None:
        """Have the kernel carry what has no delay, where it can, and carry what has one; after `set_delays`.

        Frames under way leave before, so that none overtakes them.
        """
        if self._shortcuts is None:
            return
        for lane in self._lanes.values():
            if lane.delay_s > 0 and lane.source is None:
                self._read_from(lane)
                self._shortcuts.close(lane.route.source)
            elif lane.delay_s == 0 and lane.source is not None:
                while lane.queue:
                    self.turn()
                if self._shortcuts.open(lane.route.source, lane.route.target):
                    self._stop_reading(lane)

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
        """What this process carried, shortcuts left out.

        packets, bytes: read; drops: frames lost, by the kernel for want of room in a receive buffer or by this process
        after waiting `GIVE_UP_S` for a send buffer; waits: times that a send buffer was full; mean_late_s, max_late_s: by
        how much delayed frames left after their time, less than 0 where they left
        before; cpu_s: processor seconds of this process.
        """
        for lane in self._lanes.values():
            self._lost += kernel_drops(lane.source) if lane.source is not None else 0
        return {
            "packets": self._packets,
            "bytes": self._bytes,
            "drops": self._lost,
            "waits": self._waits,
            "mean_late_s": self._late_s / self._delayed if self._delayed else 0.0,
            "max_late_s": self._most_late_s,
            "cpu_s": time.process_time(),
        }

    def close(self) -> None:
        """Give back sockets and shortcuts; frames under way are lost."""
        for lane in self._lanes.values():
            if lane.source is not None:
                self._stop_reading(lane)
            elif self._shortcuts is not None:
                self._shortcuts.close(lane.route.source)
            lane.target.close()
        self._ready.close()

    def _read_from(self, lane: _Lane) -> None:
        lane.source = source = open_interface(lane.route.source)
        self._of_descriptor[source.fileno()] = lane
        self._ready.register(source.fileno(), select.EPOLLIN)

    def _stop_reading(self, lane: _Lane) -> None:
        assert lane.source is not None
        self._lost += kernel_drops(lane.source)
        del self._of_descriptor[lane.source.fileno()]
        self._ready.unregister(lane.source.fileno())
        lane.source.close()
        lane.source = None

    def _wait(self) -> list[int]:
        """Descriptors that can be read; none where a frame's time came first."""
        lanes = [lane for lane in self._lanes.values() if lane.queue]
        due = [max(lane.queue[0][0] - self._lead_of(lane), lane.not_before) for lane in lanes]
        if not due:
            return [descriptor for descriptor, _ in self._ready.poll()]
        left_s = min(due) - time.monotonic()
        # epoll counts whole milliseconds, select microseconds
        if left_s > 0 and not select.select([self._ready], (), (), left_s)[0]:
            woken_late_s = min(time.monotonic() - min(due), MOST_LEAD_S)
            self._lead_s += LEAD_GAIN * (woken_late_s - self._lead_s)
            return []
        return [descriptor for descriptor, _ in self._ready.poll(0)]

    def _lead_of(self, lane: _Lane) -> float:
        return min(self._lead_s, MOST_LEAD_SHARE * lane.delay_s)

    def _take(self, lane: _Lane) -> None:
        """Read what has arrived; what needs no delay goes on at once."""
        assert lane.source is not None
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
            queue, lead_s = lane.queue, self._lead_of(lane)
            while queue:
                due = queue[0][0]
                now = time.monotonic()
                if due - lead_s > now or lane.not_before > now or not self._send(lane, queue[0][1], now):
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


# The program


MAX_RATE_BPS = 1e9
"""Bit/s a link, up to which one forwarder carries four workers' links.

Measured on two cores with other work on them, without shortcuts, four gloo ranks in an all-reduce of 50 to 100 MB: links of
2 Gbit/s reached 1.15 Gbit/s, which is what one forwarder can carry, a fifth above what a link of 1 Gbit/s can hold (0.95).
Links of 1 Gbit/s reached 0.95 with no delay and 0.91 with 5 ms; the forwarder then took three quarters of a core.
"""

# <linux/prctl.h>
PR_SET_PDEATHSIG, PR_SET_TIMERSLACK = 1, 29
LAST_IN_QUEUE = 10  # priority among real-time processes; any is above all ordinary ones


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


def run(routes: Sequence[Route], delays: Path | None, shortcuts: bool = True) -> dict[str, Any]:
    """Carry frames until SIGTERM or SIGINT. Says ``ready`` on standard output.

    Args:
        routes: Where frames come from, where they leave, and how much later.
        delays: The file that is read again on SIGUSR1, or None.
        shortcuts: Whether the kernel may carry what has no delay.

    Returns:
        `Forwarder.statistics`, and which scheduling was granted.

    Raises:
        PacketSocketError: There is no such interface, or packet sockets are refused.
        ValueError: Two routes begin at one interface, or there is none.
    """
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    forwarder = Forwarder(routes, Shortcuts() if shortcuts else None)
    forwarder.settle()
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
            statistics = {**forwarder.statistics(), "scheduling": scheduling}
            forwarder.close()
            return statistics
        reread(forwarder, delays)


def reread(forwarder: Forwarder, delays: Path | None) -> None:
    """Set the delays that the file holds now; a file that cannot be used is reported, and the old delays stay."""
    if delays is None:
        sys.stderr.write("no new delays: started without --delays FILE\n")
        return
    try:
        values = json.loads(delays.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise ValueError('write {"interface": seconds, ...}')
        forwarder.set_delays(values)
        forwarder.settle()
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
    parser.add_argument("--no-shortcuts", action="store_true", help="carry also what needs no delay")
    args = parser.parse_args(arguments)
    try:
        statistics = run([Route.parse(text) for text in args.routes], args.delays, not args.no_shortcuts)
    except (PacketSocketError, ValueError) as error:
        sys.stderr.write(f"delay line: {error}\n")
        return 1 if isinstance(error, PacketSocketError) else 2
    try:
        sys.stdout.write(json.dumps(statistics) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # nobody listens any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
