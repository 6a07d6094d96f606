"""The delay line: what it carries arrives whole, in order, as late as asked, and what it loses is counted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.links.delay_line import PacketSocketError, Route, checked_delay, open_interface, run
from tests.suite.links.hosts import Host, hub_and_hosts, python
from tests.support import require_system, skip_or_fail

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


def test_round_trips_take_as_long_as_asked(line: Line) -> None:
    """Never less; and the shortest hardly more, since other work on the machine only makes round trips longer."""
    assert min(line.round_trips_s(50)) < 0.002
    for there, back in ((0.005, 0.005), (0.02, 0.0)):
        line.set(json.dumps({"h0": there, "h1": back}))
        found = min(line.round_trips_s(30))
        assert there + back <= found <= 1.1 * (there + back)
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
        assert there + back <= min(line.round_trips_s(20)) <= 1.1 * (there + back)
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
