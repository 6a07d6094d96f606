"""Which ``ip`` and ``tc`` commands make a link: pure functions from a `Link` to commands.

Two shapes. Without a delay, worker *i*'s ``eth0`` and the switch's port ``h<i>`` are the two ends of a wire (veth)::

    worker i: eth0 (tbf: from the worker) ==== h<i> (tbf: to the worker), a port of the bridge br0

With a delay, something stands in each wire that holds back what comes from the worker, and only that::

    worker i: eth0 (tbf) ==== h<i>  [delay]  c<i> ==== b<i> (tbf), a port of br0

That is either the delay line, a program that carries packets between h<i> and c<i> (`suite.links.delay_line`), or the
kernel's netem on c<i>, with h<i> and c<i> joined by a bridge d<i> of their own. What is held back stands behind the
worker's rate limit and before the receiver's, as on a long wire: it does not fill either queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from suite.links.link import Link

Delay = Literal["none", "line", "netem"]
"""What delays: nothing (no delay can be set), the delay line, the kernel's netem."""

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
    """Make switch and wires, without rates; ``holders`` are pids, one in each worker's namespace, by rank."""
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

    generation: another number than the last time (1 to 65535), so that the queues are made anew: a changed token
    bucket that holds a packet longer than its new depth would never let it go.
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


def delay_line_delays(link: Link) -> dict[str, float]:
    """Interface that the delay line reads -> seconds that it holds packets back."""
    delays: dict[str, float] = {}
    for rank in range(link.workers):
        delays |= {f"h{rank}": link.delay_s, f"c{rank}": 0.0}
    return delays


def delay_line_routes(link: Link) -> list[str]:
    """The delay line's arguments, ``IN:OUT:SECONDS`` each."""
    other = {"h": "c", "c": "h"}
    return [
        f"{name}:{other[name[0]]}{name[1:]}:{delay_s:g}" for name, delay_s in delay_line_delays(link).items()
    ]


def _wire(rank: int, delay: Delay, holder: int) -> list[Command]:
    commands = [_hub(f"ip link add name h{rank} type veth peer name {INTERFACE} netns {holder}")]
    if delay != "none":
        commands.append(_hub(f"ip link add name b{rank} type veth peer name c{rank}"))
    if delay == "line":
        commands += [_hub(f"ip link set h{rank} up promisc on"), _hub(f"ip link set c{rank} up promisc on")]
    if delay == "netem":
        commands += [
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
