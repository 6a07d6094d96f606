"""The network of an emulated cluster: which ``ip`` and ``tc`` commands make a link, its namespaces, and what went over it.

Commands are pure functions of a `Link`. There are two shapes. Without a delay, worker *i*'s ``eth0`` and the switch's port
``h<i>`` are the two ends of a wire (veth)::

    worker i: eth0 (tbf: from the worker) ==== h<i> (tbf: to the worker), a port of the bridge br0

With a delay, something stands in each wire that holds back what comes from the worker, and only that::

    worker i: eth0 (tbf) ==== h<i>  [delay]  c<i> ==== b<i> (tbf), a port of br0

That is the kernel's netem on c<i>, with h<i> and c<i> joined by a bridge d<i> of their own; a kernel without it has no
delay. What is held back stands behind the worker's rate limit and before the receiver's, as on a long wire: it does not fill
either queue.

Namespaces are made with a process's own privileges, or inside a user namespace where it has none. Counters are asked of
``ip``, that is over netlink: the files in /sys go on showing the namespace in which they were mounted.
Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from suite.links.link import Link
from suite.links.process import CommandError, die_with_parent, find_program, run_program

Delay = Literal["none", "netem"]
"""What delays: nothing (no delay can be set), the kernel's netem."""

SWITCH = "br0"
SWITCH_ADDRESS = "10.77.0.254"
"""Address of the switch itself, where a service for all workers may listen; what it sends has no rate of its own, only
that of the wire to each worker."""

INTERFACE = "eth0"
"""The worker's end of its wire."""

BURST_S = 1e-3
MIN_BURST_BYTES = 8 << 10
WHOLE_SEGMENT_BYTES = 80 << 10
"""A token bucket into which a 64 KiB segment fits as it is. A shallower one cuts it up into packets, each of which
waits for a timer: tried, that costs nothing up to 200 Mbit/s and half of the rate from 300 Mbit/s on."""

WHOLE_SEGMENTS_FROM_BPS = 250e6
QUEUE_BYTES = 1 << 20
NETEM_PACKETS = 1_000_000
"""How many packets netem may hold; by default 1000, which would drop a part of what is on a long wire."""


@dataclass(frozen=True)
class Command:
    """A command to run in the switch's namespace (``rank`` None) or in a worker's."""

    rank: int | None
    argv: tuple[str, ...]


def addresses(workers: int) -> tuple[str, ...]:
    """IPv4 address of every rank."""
    return tuple(f"10.77.0.{rank + 1}" for rank in range(workers))


def burst_bytes(rate_bps: float) -> int:
    """Depth of the token bucket: what a late timer can make up for, and what passes at once after a pause.

    The second is a gift that no real wire makes, and a large one to messages that are small, so it is kept to a
    millisecond of the rate where that is deep enough: with 64 KiB at 100 Mbit/s, all-reduces of 150 kB after a pause
    were seen at 120 Mbit/s.
    """
    whole_segment = WHOLE_SEGMENT_BYTES if rate_bps >= WHOLE_SEGMENTS_FROM_BPS else 0
    return max(round(rate_bps / 8 * BURST_S), whole_segment, MIN_BURST_BYTES)


def build(link: Link, delay: Delay, holders: Sequence[int]) -> list[Command]:
    """Make switch and wires, without rates.

    Args:
        link: The link.
        delay: What is to delay packets.
        holders: Pids by rank, one in each worker's namespace.

    Returns:
        The commands, in order.
    """
    commands = [
        _hub(f"ip link add name {SWITCH} type bridge"),
        _up("lo"),
        _hub(f"ip address add {SWITCH_ADDRESS}/24 dev {SWITCH}"),
        _up(SWITCH),
    ]
    for rank, (holder, address) in enumerate(zip(holders, addresses(link.workers), strict=True)):
        commands += _wire(rank, delay, holder)
        commands += [
            _worker(rank, "ip link set lo up"),
            _worker(rank, f"ip address add {address}/24 dev {INTERFACE}"),
            _worker(rank, f"ip link set {INTERFACE} up"),
        ]
    return commands


def shape(link: Link, delay: Delay, generation: int) -> list[Command]:
    """Set every rate, and netem's delay.

    Args:
        link: The link.
        delay: What delays packets.
        generation: Another number than the last time (1 to 65535), so that the queues are made anew: a changed token bucket that
            holds a packet longer than its new depth would never let it go.

    Returns:
        The commands, in order.
    """
    commands = []
    for rank in range(link.workers):
        commands.append(_worker(rank, _tbf(INTERFACE, link.up_bps(rank), generation)))
        commands.append(_hub(_tbf(port(rank, delay), link.to_bps(rank), generation)))
        if delay == "netem":
            commands.append(
                _hub(
                    f"tc qdisc replace dev c{rank} root handle {generation:x}: "
                    f"netem delay {link.delay_s * 1e6:.0f}us limit {NETEM_PACKETS}"
                )
            )
    return commands


def port(rank: int, delay: Delay) -> str:
    """The port of the switch that leads to a worker."""
    return f"h{rank}" if delay == "none" else f"b{rank}"


def _wire(rank: int, delay: Delay, holder: int) -> list[Command]:
    commands = [_hub(f"ip link add name h{rank} type veth peer name {INTERFACE} netns {holder}")]
    if delay == "netem":
        commands += [
            _hub(f"ip link add name b{rank} type veth peer name c{rank}"),
            _hub(f"ip link add name d{rank} type bridge"),
            _up(f"d{rank}"),
            _hub(f"ip link set h{rank} master d{rank} up"),
            _hub(f"ip link set c{rank} master d{rank} up"),
        ]
    return [*commands, _hub(f"ip link set {port(rank, delay)} master {SWITCH} up")]


def _tbf(device: str, rate_bps: float, generation: int) -> str:
    if math.isinf(rate_bps):
        return f"tc qdisc replace dev {device} root noqueue"  # as the device was made
    return (
        f"tc qdisc replace dev {device} root handle {generation:x}: "
        f"tbf rate {rate_bps:.0f}bit burst {burst_bytes(rate_bps)} limit {QUEUE_BYTES}"
    )


def _hub(command: str) -> Command:
    return Command(None, tuple(command.split()))


def _up(device: str) -> Command:
    return _hub(f"ip link set {device} up")


def _worker(rank: int, command: str) -> Command:
    return Command(rank, tuple(command.split()))


# Network namespaces


CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
NEEDED = (CAP_NET_ADMIN, CAP_SYS_ADMIN)

CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
RENO = "reno"
"""TCP's congestion control on our links: the one that every kernel has and lets every namespace choose. What the machine
is set to differs from machine to machine, and BBR, tried, stalls for 0.2 s at a time to look for the shortest round trip."""


class NamespaceError(RuntimeError):
    """The system lets this process make no network namespace."""


def privileged(status: str) -> bool:
    """Whether ``/proc/self/status`` shows the capabilities that network namespaces need."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    effective = int(fields["CapEff"], 16)
    return all(effective >> capability & 1 for capability in NEEDED)


def enter_new_network() -> bool:
    """Put this process into a network namespace of its own; True where that took a user namespace too.

    In the user namespace this user is called root, and may do there what root may. Raises NamespaceError.
    """
    user, group = os.geteuid(), os.getegid()
    if privileged(Path("/proc/self/status").read_text(encoding="utf-8")):
        _unshare(CLONE_NEWNET)
        _settle()
        return False
    _unshare(CLONE_NEWUSER | CLONE_NEWNET)
    try:
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="utf-8")
    except OSError as error:
        raise NamespaceError(f"{error.filename}: {error.strerror}") from error
    _settle()
    return True


def hold_network() -> int:
    """Fork a process that sits in a new network namespace until its parent ends; returns its pid.

    Raises NamespaceError.
    """
    parent = os.getpid()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _as_child(parent, lambda: _hold(write_end))
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        complaint = answer.read().decode()
    if complaint != "ready":
        raise NamespaceError(complaint or "the process that holds a namespace died")
    return pid


def entry(holder: int, user_namespace: bool, as_self: bool = False) -> tuple[str, ...]:
    """What stands before a command to run it in the network namespace of a process.

    Args:
        holder: Pid of the process.
        user_namespace: Whether its network namespace lies in a user namespace of ours.
        as_self: Under this user's own name and without further rights; in a user namespace one is called root otherwise, and
            programs believe that they may do what root may.

    Returns:
        The words.
    """
    nsenter = find_program("nsenter") or "nsenter"
    network = f"--net=/proc/{holder}/ns/net"
    if not user_namespace:
        return (nsenter, network)
    prefix = (nsenter, f"--user=/proc/{holder}/ns/user", "--preserve-credentials", network)
    if not as_self:
        return prefix
    unshare = find_program("unshare") or "unshare"
    return (*prefix, unshare, "--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}")


def _as_child(parent: int, act: Callable[[], None]) -> None:
    """What a forked child does; it never comes back into the parent's code."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        die_with_parent(parent)
        act()
    finally:
        os._exit(127)


def _hold(write_end: int) -> None:
    try:
        _unshare(CLONE_NEWNET)
        _settle()
    except NamespaceError as error:
        os.write(write_end, str(error).encode())
        return
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)  # else what the parent reads could not be seen to close
    os.write(write_end, b"ready")
    os.close(write_end)
    while True:
        signal.pause()


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        raise NamespaceError(f"unshare({flags:#x}): {os.strerror(ctypes.get_errno())}")


def _settle() -> None:
    """This namespace's TCP as we want it, and no IPv6: its neighbour discovery would be counted as traffic."""
    wanted = {CONGESTION_CONTROL: RENO}
    wanted |= {Path(f"/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"): "1" for scope in ("all", "default")}
    for path, value in wanted.items():
        with suppress(
            OSError
        ):  # no IPv6 in this kernel; or /proc/sys cannot be written: sessions record what holds
            path.write_text(value, encoding="utf-8")


# What went over an interface


@dataclass(frozen=True)
class Counters:
    """Bytes and packets since the interface was made, Ethernet headers included, and packets that it dropped.

    A packet may be a whole TCP segment of up to 64 KiB with one header, cut up later on its way.
    """

    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int
    dropped: int

    def __sub__(self, earlier: Counters) -> Counters:
        """What was counted since ``earlier``."""
        return Counters(
            self.rx_bytes - earlier.rx_bytes,
            self.tx_bytes - earlier.tx_bytes,
            self.rx_packets - earlier.rx_packets,
            self.tx_packets - earlier.tx_packets,
            self.dropped - earlier.dropped,
        )


def read_counters(prefix: Sequence[str] = ()) -> Counters | None:
    """Counters of a worker's interface.

    Args:
        prefix: Leads to the interface's namespace; default: this process's own.

    Returns:
        The counters, None where there is no such interface.

    Raises:
        CommandError: ``ip`` is missing or fails otherwise.
    """
    try:
        answer = run_program([*prefix, "ip", "-s", "-j", "link", "show", "dev", INTERFACE])
    except CommandError as error:
        if "does not exist" in str(error):
            return None
        raise
    return parse_counters(answer)


def parse_counters(answer: str) -> Counters:
    """Counters in what ``ip -s -j link show dev NAME`` answers."""
    (link,) = (entry for entry in json.loads(answer) if entry)
    received, sent = link["stats64"]["rx"], link["stats64"]["tx"]
    return Counters(
        rx_bytes=received["bytes"],
        tx_bytes=sent["bytes"],
        rx_packets=received["packets"],
        tx_packets=sent["packets"],
        dropped=received["dropped"] + sent["dropped"],
    )
