"""The delay line: what it carries arrives whole, in order, as late as asked, and what it loses is counted."""

from __future__ import annotations

import errno
import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import pytest

from suite.links import delay_line as module
from suite.links.delay_line import (
    MOST_LEAD_SHARE,
    Forwarder,
    PacketSocketError,
    Route,
    checked_delay,
    open_interface,
    run,
)
from tests.suite.links.hosts import Host, hub_and_hosts, python
from tests.support import require_system, skip_or_fail

# The forwarder without interfaces: pairs of datagram sockets stand in for them


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


# The program, on real interfaces


ECHO = """
import socket
server = socket.create_server(("", 7000))
print("listening", flush=True)
while True:
    peer, _ = server.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := peer.recv(1 << 20):
        peer.sendall(data)
"""
PING = """
import socket, sys, time
peer = socket.create_connection(("10.77.0.2", 7000), timeout=20)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(int(sys.argv[1])):
    started = time.perf_counter()
    peer.sendall(b"x")
    peer.recv(1)
    print(time.perf_counter() - started)
"""
# every byte sent comes back, and the sum of the bytes with their place tells whether they are the same
COPY = """
import hashlib, socket, threading
data = bytes(range(251)) * 60000
peer = socket.create_connection(("10.77.0.2", 7000), timeout=30)
threading.Thread(target=peer.sendall, args=(data,)).start()
back = hashlib.sha256()
left = len(data)
while left:
    piece = peer.recv(1 << 20)
    back.update(piece)
    left -= len(piece)
print(back.hexdigest() == hashlib.sha256(data).hexdigest())
"""


class Line:
    """A delay line that runs between two hosts; host 1 echoes."""

    def __init__(self, hub: Host, client: Host, delays: Path, *options: str) -> None:
        self.hub, self.client, self.delays = hub, client, delays
        command = [python(), "-m", "suite.links.delay_line", "--delays", str(delays), *options]
        self.process = hub.start(*command, "h0:h1:0", "h1:h0:0", stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def set(self, text: str) -> None:
        self.delays.write_text(text)
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(0.2)

    def round_trips_s(self, count: int) -> list[float]:
        return [float(line) for line in self.client.run(python(), "-c", PING, str(count)).splitlines()]

    def stop(self) -> tuple[dict[str, float], str]:
        """The statistics and what was written to standard error."""
        self.process.terminate()
        out, error = self.process.communicate(timeout=10)
        assert self.process.returncode == 0, error
        return json.loads(out), error


@pytest.fixture
def options() -> list[str]:
    """Of the delay line: unless a test says otherwise it carries every frame itself."""
    return ["--no-shortcuts"]


@pytest.fixture
def line(options: list[str], tmp_path: Path) -> Iterator[Line]:
    with hub_and_hosts(2) as (hub, hosts):
        echo = hosts[1].start(python(), "-c", ECHO)
        assert echo.stdout is not None
        assert echo.stdout.readline() == "listening\n"
        line = Line(hub, hosts[0], tmp_path / "delays.json", *options)
        try:
            yield line
        finally:
            for process in (line.process, echo):
                process.kill()
                process.communicate()


def check_round_trips(found_s: list[float], asked_s: float) -> None:
    """The middle one takes no less than was asked for, and none less than by what frames may leave early.

    The shortest takes hardly more: other work on the machine only makes round trips longer.
    """
    assert (1 - MOST_LEAD_SHARE) * asked_s <= min(found_s) <= 1.1 * asked_s
    assert asked_s <= median(found_s)


def test_round_trips_take_as_long_as_asked(line: Line) -> None:
    assert min(line.round_trips_s(50)) < 0.002
    for there, back in ((0.005, 0.005), (0.02, 0.0)):
        line.set(json.dumps({"h0": there, "h1": back}))
        check_round_trips(line.round_trips_s(30), there + back)
    found, error = line.stop()
    assert not error
    assert found["drops"] == 0
    assert found["packets"] > 180  # two frames a round trip at the least
    assert -0.0004 < found["mean_late_s"] <= found["max_late_s"]


def test_megabytes_arrive_whole(line: Line) -> None:
    """Segments larger than a frame pass, with their checksums left to the receiver, delayed or not."""
    assert line.client.run(python(), "-c", COPY) == "True\n"
    line.set('{"h0": 0.003}')
    assert line.client.run(python(), "-c", COPY) == "True\n"
    found, _ = line.stop()
    assert found["bytes"] >= 4 * 251 * 60000  # twice, there and back
    # offloads are in use: far fewer frames than Ethernet's 1500 bytes would take
    assert found["bytes"] / found["packets"] > 3000


@pytest.mark.parametrize("options", [[]], ids=["shortcuts"])
def test_the_kernel_carries_what_needs_no_delay(line: Line) -> None:
    require_system("tc")

    def redirected(name: str) -> bool:
        return "mirred" in line.hub.run("tc", "filter", "show", "dev", name, "ingress")

    if not redirected("h0"):
        skip_or_fail("this kernel has no u32 or no mirred")
    assert line.client.run(python(), "-c", COPY) == "True\n"
    for there, back in ((0.01, 0.0), (0.0, 0.01), (0.01, 0.01)):
        line.set(json.dumps({"h0": there, "h1": back}))
        assert (redirected("h0"), redirected("h1")) == (there == 0, back == 0)
        check_round_trips(line.round_trips_s(20), there + back)
        assert line.client.run(python(), "-c", COPY) == "True\n"
    line.set('{"h0": 0, "h1": 0}')
    assert min(line.round_trips_s(20)) < 0.002
    found, error = line.stop()
    assert not error
    assert found["drops"] == 0
    # the first round trips and copies did not come by: of the others each way carried two
    assert 4 * 251 * 60000 <= found["bytes"] <= 4.5 * 251 * 60000
    assert not redirected("h0")


def test_delays_that_cannot_be_used_change_nothing(line: Line) -> None:
    line.set('{"h0": 0.01}')
    for text in ("no json", "[1]", '{"h0": -1}', '{"h0": "soon"}', '{"h0": 0, "eth7": 0}', '{"h0": NaN}'):
        line.set(text)
    assert 0.01 <= min(line.round_trips_s(10)) <= 0.012
    _, error = line.stop()
    assert len(re.findall("the delays stay as they were", error)) == 6
    assert "no route comes from eth7; there are h0, h1" in error


def test_an_interface_that_goes_down_and_up_again(line: Line) -> None:
    line.hub.run("ip", "link", "set", "h1", "down")
    time.sleep(0.2)
    line.hub.run("ip", "link", "set", "h1", "up")
    assert line.round_trips_s(3)
    assert line.process.poll() is None


def test_it_ends_with_the_process_that_started_it() -> None:
    with hub_and_hosts(2) as (hub, _):
        code = (
            "import subprocess, sys, time\n"
            "child = subprocess.Popen([sys.executable, '-m', 'suite.links.delay_line', 'h0:h1:0'],"
            " stdout=subprocess.PIPE)\n"
            "child.stdout.readline()\nprint(child.pid, flush=True)\ntime.sleep(60)"
        )
        parent = hub.start(python(), "-c", code)
        assert parent.stdout is not None
        child = Path(f"/proc/{int(parent.stdout.readline())}/cmdline")
        assert b"delay_line" in child.read_bytes()
        parent.kill()
        parent.communicate()
        deadline = time.monotonic() + 10
        while child.exists() and child.read_bytes():  # a zombie's command line is empty
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("h0:c0", "write IN:OUT:SECONDS"),
        ("h0:c0:0.1:2", "write IN:OUT:SECONDS"),
        ("h0::0.1", "name two interfaces"),
        ("h0:h0:0.1", "name two interfaces"),
        ("h0:c0:5ms", "write seconds"),
        ("h0:c0:-1", "write 0 to 10 seconds"),
        ("h0:c0:nan", "write 0 to 10 seconds"),
        ("h0:c0:11", "write 0 to 10 seconds"),
    ],
)
def test_a_route_that_cannot_be(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Route.parse(text)


def test_routes() -> None:
    assert Route.parse("h0:c0:0.005") == Route("h0", "c0", 0.005)
    assert checked_delay(0) == 0.0
    with pytest.raises(ValueError, match="two routes from one interface"):
        run([Route("a", "b", 0), Route("a", "c", 0)], None)
    with pytest.raises(ValueError, match="no route"):
        run([], None)


def test_a_missing_interface_is_named() -> None:
    with hub_and_hosts(0) as (hub, _):
        process = hub.start(python(), "-m", "suite.links.delay_line", "h0:h1:0", stderr=subprocess.PIPE)
        _, error = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "interface h1: No such device" in error


def test_packet_sockets_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("suite.links.delay_line.socket.socket", refuse)
    with pytest.raises(PacketSocketError, match="unshare -Urn"):
        open_interface("lo")
