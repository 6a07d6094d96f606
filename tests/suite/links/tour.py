"""A walk through an emulated cluster: bring it up, look at it from inside, change it, take it down; what was seen as JSON.

Run as ``python -m tests.suite.links.tour STATE_DIR`` by anybody, also by a user who may do nothing else here: it needs
`suite.links` and the standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from suite.links.cluster import Cluster, status, up
from suite.links.keeper import Layout, State
from suite.links.link import Link, LinkError
from suite.links.process import Process, run_program
from suite.links.topology import port

PAYLOAD_BYTES = 300_000
SECOND_OF_100_MBIT_BYTES = 12_500_000
# What the server sends back tells that everything has arrived, and from whom.
SERVER = """
import socket, sys
server = socket.create_server(("", 7000))
print("listening", flush=True)
peer, (address, _) = server.accept()
left = int(sys.argv[1])
while left:
    left -= len(peer.recv(min(left, 1 << 16)))
peer.sendall(address.encode())
"""
CLIENT = """
import socket, sys, time
started = time.perf_counter()
peer = socket.create_connection((sys.argv[1], 7000), timeout=20)
peer.sendall(bytes(int(sys.argv[2])))
print(peer.recv(100).decode(), time.perf_counter() - started)
"""


def walk(state_dir: Path) -> dict[str, Any]:
    """What is seen on the way."""
    first = Link.parse(4, "100mbit", down="200mbit", stragglers={2: "10mbit"})
    second = Link.parse(4, "1gbit", delay="10ms")
    seen: dict[str, Any] = {"interfaces_before": interfaces()}
    with delaying(first, state_dir) as cluster:
        seen["delay"] = cluster.delay
        seen["status"] = status(state_dir)
        seen["addresses"] = cluster.addresses
        seen["inside"] = [interfaces(cluster.enter(rank)) for rank in range(4)]
        seen["namespaces"] = [namespace(cluster.enter(rank)) for rank in range(4)]
        seen["first_rates"] = rates(cluster)
        before = [cluster.counters(rank) for rank in range(4)]
        seen["reached_by"], _ = transfer(cluster, 0, 3)
        counted = [cluster.counters(rank) - earlier for rank, earlier in enumerate(before)]
        seen["sent"] = [counters.tx_bytes for counters in counted]
        seen["received"] = [counters.rx_bytes for counters in counted]
        seen["dropped"] = [counters.dropped for counters in counted]
        seen["seconds_of_a_second"] = [
            transfer(cluster, source, 3, SECOND_OF_100_MBIT_BYTES * int(rate_bps // 1e6) // 100)[1]
            for source, (rate_bps, _) in ((1, seen["first_rates"][1]), (2, seen["first_rates"][2]))
        ]
        cluster.shape(second if cluster.delay == "netem" else Link.parse(4, "1gbit"))
        seen["second_rates"] = rates(cluster)
        seen["link"] = cluster.link.as_dict()
        seen["reached_again_by"], seen["second_s"] = transfer(cluster, 0, 3)
        state = State.read(Layout(state_dir))
        assert state is not None
        seen["user_namespace"] = state.user_namespace
        processes = [state.keeper, *state.holders]
        seen["processes"] = len(processes)
    seen["status_after"] = status(state_dir)["state"]
    seen["alive_after"] = [process.pid for process in processes if process.alive()]
    seen["namespaces_after"] = sorted(held_namespaces() & set(seen["namespaces"]))
    seen["folder_after"] = state_dir.exists()
    seen["interfaces_after"] = interfaces()
    seen["self"] = Process.of(os.getpid()).alive()
    return seen


def delaying(link: Link, state_dir: Path | None = None) -> Cluster:
    """A cluster that can delay, where the kernel has netem; else one that cannot."""
    try:
        return up(link, state_dir=state_dir, delays=True)
    except LinkError:
        return up(link, state_dir=state_dir)


def interfaces(prefix: tuple[str, ...] = ()) -> list[str]:
    """Names of the interfaces in the namespace to which ``prefix`` leads."""
    return sorted(entry["ifname"] for entry in json.loads(run_program([*prefix, "ip", "-j", "link"])))


def namespace(prefix: tuple[str, ...]) -> str:
    """Name of the network namespace, such as ``net:[4026532000]``."""
    return run_program([*prefix, "readlink", "/proc/self/ns/net"]).strip()


def held_namespaces() -> set[str]:
    """Network namespaces of all processes that may be looked at."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.add(os.readlink(entry / "ns" / "net"))
            except OSError:  # gone, or somebody else's
                continue
    return found


def rates(cluster: Cluster) -> list[list[float]]:
    """Bits per second from and to every worker, as the kernel has them."""
    state = State.read(Layout(cluster.state_dir))
    assert state is not None
    found = []
    for rank in range(cluster.link.workers):
        ends = ((cluster.enter(rank), "eth0"), (cluster.enter_switch(), port(rank, state.delay)))
        found.append([8 * bucket(prefix, device)["rate"] for prefix, device in ends])
    return found


def bucket(prefix: tuple[str, ...], device: str) -> dict[str, Any]:
    """The options of a device's token bucket."""
    (qdisc,) = json.loads(run_program([*prefix, "tc", "-j", "qdisc", "show", "dev", device]))
    assert qdisc["kind"] == "tbf"
    return dict(qdisc["options"])


def transfer(
    cluster: Cluster, source: int, target: int, payload_bytes: int = PAYLOAD_BYTES
) -> tuple[str, float]:
    """Send bytes from one worker to another: the sender's address as the receiver saw it, and seconds from connecting
    to the receiver's answer."""
    python = [sys.executable, "-c"]
    with subprocess.Popen(
        [*cluster.enter(target), *python, SERVER, str(payload_bytes)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        address = cluster.addresses[target]
        answer = run_program([*cluster.enter(source), *python, CLIENT, address, str(payload_bytes)])
        source_address, seconds = answer.split()
        return source_address, float(seconds)


if __name__ == "__main__":
    json.dump(walk(Path(sys.argv[1])), sys.stdout)
