"""A walk through an emulated cluster: bring it up, look at it from inside, change it, take it down; what was seen as JSON.

Run as ``python -m tests.suite.links.tour`` by anybody, also by a user who may do nothing else here: it needs
`suite.links` alone.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from suite.links.cluster import INTERFACE, Cluster, port, run_program, up
from suite.links.link import Link, LinkError

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


def walk() -> dict[str, Any]:
    """What is seen on the way."""
    first = Link.parse(4, "100mbit")
    second = Link.parse(4, "1gbit", delay="10ms")
    seen: dict[str, Any] = {"interfaces_before": interfaces()}
    with delaying(first) as cluster:
        seen["delays"] = cluster.delays
        seen["addresses"] = cluster.addresses
        seen["inside"] = [interfaces(cluster.enter(rank)) for rank in range(4)]
        seen["namespaces"] = [namespace(cluster.enter(rank)) for rank in range(4)]
        seen["first_rates"] = rates(cluster)
        before = [counted(cluster.enter(rank)) for rank in range(4)]
        seen["reached_by"], _ = transfer(cluster, 0, 3)
        after = [counted(cluster.enter(rank)) for rank in range(4)]
        seen["moved"] = [
            {key: now[key] - then[key] for key in now} for now, then in zip(after, before, strict=True)
        ]
        seen["seconds_of_a_second"] = [
            transfer(cluster, source, 3, SECOND_OF_100_MBIT_BYTES * int(rate_bps // 1e6) // 100)[1]
            for source, (rate_bps, _) in ((1, seen["first_rates"][1]), (2, seen["first_rates"][2]))
        ]
        cluster.shape(second if cluster.delays else Link.parse(4, "1gbit"))
        seen["second_rates"] = rates(cluster)
        seen["link"] = cluster.link.as_dict()
        seen["reached_again_by"], seen["second_s"] = transfer(cluster, 0, 3)
        seen["user_namespace"] = cluster.user_namespace
        keeper = os.pidfd_open(int(cluster.networks[0].split("/")[2]))
    seen["keeper_after"] = not select.select([keeper], [], [], 0)[0]
    seen["namespaces_after"] = sorted(held_namespaces() & set(seen["namespaces"]))
    seen["interfaces_after"] = interfaces()
    return seen


def delaying(link: Link) -> Cluster:
    """A cluster that can delay, where the kernel has netem; else one that cannot."""
    try:
        cluster = up(replace(link, delay_s=1e-3))
    except LinkError:
        return up(link)
    cluster.shape(link)
    return cluster


def counted(prefix: tuple[str, ...] = ()) -> dict[str, int]:
    """What a worker's interface has sent, received and dropped since it was made, Ethernet headers included."""
    answer = json.loads(run_program([*prefix, "ip", "-s", "-j", "link", "show", "dev", INTERFACE]))
    (stats,) = (link["stats64"] for link in answer if link)
    received, sent = stats["rx"], stats["tx"]
    return {
        "received": received["bytes"],
        "sent": sent["bytes"],
        "dropped": received["dropped"] + sent["dropped"],
    }


def interfaces(prefix: tuple[str, ...] = ()) -> list[str]:
    """Names of the interfaces in the namespace to which ``prefix`` leads."""
    return sorted(entry["ifname"] for entry in json.loads(run_program([*prefix, "ip", "-j", "link"])))


def namespace(prefix: tuple[str, ...]) -> str:
    """Name of the network namespace, such as ``net:[4026532000]``."""
    return run_program([*prefix, "readlink", "/proc/self/ns/net"]).strip()


def children(pid: int) -> set[int]:
    """Pids whose parent is ``pid`` now, zombies included."""
    stats = {int(path.parent.name): path for path in Path("/proc").glob("[0-9]*/stat")}
    return {child for child, path in stats.items() if _parent(path) == pid}


def _parent(stat: Path) -> int | None:
    try:
        return int(stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
    except OSError:  # it has gone since
        return None


def held_namespaces() -> set[str]:
    """Network namespaces of all processes that may be looked at, in which they are or which they have open."""
    found = set()
    for entry in [*Path("/proc").glob("[0-9]*/ns/net"), *Path("/proc").glob("[0-9]*/fd/*")]:
        with suppress(OSError):  # gone, or somebody else's
            found.add(os.readlink(entry))
    return found


def rates(cluster: Cluster) -> list[list[float]]:
    """Bits per second from and to every worker, as the kernel has them."""
    found = []
    for rank in range(cluster.link.workers):
        ends = ((cluster.enter(rank), INTERFACE), (cluster.enter(None), port(rank, cluster.delays)))
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
        assert server.stdout.readline() == "listening\n"
        address = cluster.addresses[target]
        answer = run_program([*cluster.enter(source), *python, CLIENT, address, str(payload_bytes)])
        source_address, seconds = answer.split()
        return source_address, float(seconds)


if __name__ == "__main__":
    json.dump(walk(), sys.stdout)
