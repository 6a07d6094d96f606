"""Carries frames from one interface to another, a fixed time later, in the order in which they came."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.links.packet_socket import MAX_FRAME_BYTES, kernel_drops, open_interface
from suite.links.shortcut import Shortcuts

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
