"""How the delay line forwards, without interfaces: pairs of datagram sockets stand in for them."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from suite.links import delay_line as module
from suite.links.delay_line import Forwarder, Route


@dataclass
class Ends:
    """The far ends of made-up interfaces: where frames are put in and where they come out."""

    into: dict[str, socket.socket] = field(default_factory=dict)
    out_of: dict[str, socket.socket] = field(default_factory=dict)

    def open(self, name: str, receives: bool = True) -> socket.socket:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        near.setblocking(False)
        far.setblocking(False)
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is, a few frames
        (self.into if receives else self.out_of)[name] = far
        return near

    def arrived(self, name: str) -> list[bytes]:
        found = []
        while True:
            try:
                found.append(self.out_of[name].recv(100))
            except BlockingIOError:
                return found


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    ends = Ends()
    monkeypatch.setattr(module, "open_interface", ends.open)
    told: set[socket.socket] = set()

    def three_once(one: socket.socket) -> int:
        """As the kernel's counter, which starts again with every reading."""
        first = one not in told
        told.add(one)
        return 3 if first else 0

    monkeypatch.setattr(module, "kernel_drops", three_once)
    yield ends
    for one in (*ends.into.values(), *ends.out_of.values()):
        one.close()


def turn_for(forwarder: Forwarder, seconds: float) -> None:
    """Let the forwarder work without its waiting longer than that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        waker, woken = socket.socketpair()
        with waker, woken:
            forwarder.watch(woken)
            waker.send(b"x")
            forwarder.turn()
        time.sleep(0.0005)


def test_frames_keep_their_order_and_wait_their_time(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BURST_FRAMES", 4)  # fewer than there are
    forwarder = Forwarder([Route("h0", "c0", 0.2), Route("c0", "h0", 0)])
    started = time.monotonic()
    for number in range(9):
        ends.into["h0"].send(b"%d" % number)
    ends.into["c0"].send(b"back")
    found: list[bytes] = []
    back: list[bytes] = []
    while not back:
        turn_for(forwarder, 0.001)
        back = ends.arrived("h0")
    assert back == [b"back"]
    while not found:
        turn_for(forwarder, 0.001)
        found = ends.arrived("c0")
    assert time.monotonic() - started >= 0.2 - module.MOST_LEAD_S
    while len(found) < 9:
        turn_for(forwarder, 0.001)
        found += ends.arrived("c0")
    assert found == [b"%d" % number for number in range(9)]
    statistics = forwarder.statistics()
    assert (statistics["packets"], statistics["bytes"]) == (10, 9 + 4)
    assert statistics["drops"] == 6  # what the kernel counts, on both
    assert -module.MOST_LEAD_S <= statistics["mean_late_s"] <= statistics["max_late_s"]
    forwarder.close()


def test_a_shorter_delay_does_not_let_frames_overtake(ends: Ends) -> None:
    forwarder = Forwarder([Route("h0", "c0", 0.5)])
    for number, frame in enumerate((b"first", b"second", b"third")):
        ends.into["h0"].send(frame)
        while forwarder._packets == number:
            turn_for(forwarder, 0.001)
        forwarder.set_delays({"h0": 0})
        if number == 1:
            assert ends.arrived("c0") == []
            time.sleep(0.5)
    turn_for(forwarder, 0.01)
    assert ends.arrived("c0") == [b"first", b"second", b"third"]
    forwarder.close()


@pytest.mark.parametrize("delay_s", [0.0, 0.01])
def test_a_full_send_buffer_is_waited_for(ends: Ends, delay_s: float) -> None:
    forwarder = Forwarder([Route("h0", "c0", delay_s)])
    found: list[bytes] = []
    put = 0
    while not forwarder._waits:  # nobody reads yet
        ends.into["h0"].send(b"%d" % put)
        put += 1
        turn_for(forwarder, 0.001)
    while len(found) < put:
        turn_for(forwarder, 0.001)
        found += ends.arrived("c0")
    assert found == [b"%d" % number for number in range(put)]
    assert forwarder.statistics()["drops"] == 3  # none of its own
    forwarder.close()


class Refusing:
    """A socket that sends nothing."""

    def __init__(self, number: int) -> None:
        self.number = number

    def send(self, _: bytes) -> int:
        raise OSError(self.number, "refused")

    def close(self) -> None:
        pass


def with_target(forwarder: Forwarder, number: int) -> None:
    forwarder._lanes["h0"].target.close()
    forwarder._lanes["h0"].target = Refusing(number)  # type: ignore[assignment]


def test_a_send_buffer_that_stays_full_costs_the_frame_and_is_counted(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GIVE_UP_S", 0.05)
    forwarder = Forwarder([Route("h0", "c0", 0)])
    with_target(forwarder, errno.ENOBUFS)
    ends.into["h0"].send(b"frame")
    while not forwarder._waits:
        turn_for(forwarder, 0.001)
    assert forwarder.statistics()["drops"] == 3
    turn_for(forwarder, 0.2)
    assert forwarder.statistics()["drops"] == 4
    forwarder.close()


@pytest.mark.parametrize("number", [errno.ENETDOWN, errno.EMSGSIZE])
def test_a_frame_that_can_never_pass_is_counted(ends: Ends, number: int) -> None:
    forwarder = Forwarder([Route("h0", "c0", 0)])
    with_target(forwarder, number)
    ends.into["h0"].send(b"frame")
    turn_for(forwarder, 0.02)
    assert forwarder.statistics()["drops"] == 4
    forwarder.close()


def test_an_error_that_nobody_thought_of_is_not_swallowed(ends: Ends) -> None:
    forwarder = Forwarder([Route("h0", "c0", 0)])
    with_target(forwarder, errno.EBADF)
    ends.into["h0"].send(b"frame")
    with pytest.raises(OSError, match="refused"):
        turn_for(forwarder, 0.005)
    forwarder.close()


def test_all_delays_or_none(ends: Ends) -> None:
    forwarder = Forwarder([Route("h0", "c0", 0.05), Route("h1", "c1", 0.05)])
    with pytest.raises(ValueError, match="write 0 to 10 seconds"):
        forwarder.set_delays({"h0": 0, "h1": -1})
    assert [lane.delay_s for lane in forwarder._lanes.values()] == [0.05, 0.05]
    forwarder.close()


class Kernel:
    """Shortcuts of a made-up kernel."""

    def __init__(self, able: bool) -> None:
        self.able = able
        self.present: dict[str, str] = {}

    def open(self, source: str, target: str) -> bool:
        if self.able:
            self.present[source] = target
        return self.able

    def close(self, source: str) -> None:
        self.present.pop(source, None)


def test_what_needs_no_delay_is_left_to_the_kernel(ends: Ends) -> None:
    kernel = Kernel(able=True)
    forwarder = Forwarder([Route("h0", "c0", 0.05), Route("c0", "h0", 0)], kernel)  # type: ignore[arg-type]
    forwarder.settle()
    assert kernel.present == {"c0": "h0"}
    ends.into["h0"].send(b"under way")
    while not forwarder._packets:
        turn_for(forwarder, 0.001)
    forwarder.set_delays({"h0": 0, "c0": 0.01})
    forwarder.settle()
    assert ends.arrived("c0") == [b"under way"], "a shortcut that opens before may let others overtake"
    assert kernel.present == {"h0": "c0"}
    ends.into["c0"].send(b"back")  # read by the forwarder again
    while forwarder._packets < 2:
        turn_for(forwarder, 0.001)
    turn_for(forwarder, 0.02)
    assert ends.arrived("h0") == [b"back"]
    assert forwarder.statistics()["drops"] == 9  # of three sockets, one of them closed
    forwarder.close()
    assert kernel.present == {}


def test_a_kernel_without_shortcuts(ends: Ends) -> None:
    forwarder = Forwarder([Route("h0", "c0", 0)], Kernel(able=False))  # type: ignore[arg-type]
    forwarder.settle()
    ends.into["h0"].send(b"frame")
    turn_for(forwarder, 0.02)
    assert ends.arrived("c0") == [b"frame"]
    forwarder.close()
