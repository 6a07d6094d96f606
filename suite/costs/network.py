"""Seconds of a collective on a link: rounds of latency, bytes over the wire, work of the processors. alpha-beta-gamma.

    seconds = start + rounds(n) x (round + delay) + max(bytes over the wire, work of the host)

Rounds and bytes are those of the algorithm that the backend uses (`FORMS`); `start`, `round`, the share of a link that TCP
reaches and the host's seconds a byte are fitted to what was measured (`suite.costs.fit`). Wire and host work at the same time,
on different pieces, so the slower one counts. Where ranks share processors, their host's seconds are multiplied by how many
share one (*crowd*).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from suite.costs.recipe import Request
from suite.links.link import Link
from suite.links.probe import (
    ALL_GATHER,
    ALL_REDUCE_BF16,
    ALL_REDUCE_FP32,
    ALL_REDUCE_INT8,
    ALL_REDUCE_INT32,
    ALL_TO_ALL,
    SEND_RECV,
)


@dataclass(frozen=True)
class Form:
    """An algorithm for a collective on n ranks. rounds: messages one after another. sent: bytes over the busiest rank's
    wire, in one direction, for each byte of the buffer. ring: neighbours alone talk, so that of a node's ranks only one sends
    to another node; else all of them do, over the one wire of their node. turns: a rank sends and receives whole messages;
    where both are with the same rank, gloo's one connection carries them one after the other. hidden: share of the bytes' time
    in which rounds pass unseen: gloo cuts a rank's part of an all-reduce in two, and one half travels while the other is agreed
    on.
    """

    rounds: Callable[[int], float]
    sent: Callable[[int], float]
    ring: bool = False
    turns: bool = False
    hidden: float = 0.0

    def times(self, n: int, mutual: bool = False) -> float:
        """How often the wire is busy with a byte. mutual: a rank receives from the rank that it sends to, as of two it does."""
        return 2.0 if self.turns and (mutual or n == 2) else 1.0

    def through_a_node(self, n: int, node_size: int) -> float:
        """Bytes out of a node over those that a rank sends, where nodes of so many ranks share a wire."""
        if node_size == 1 or n <= node_size:
            return 1.0
        return 1.0 if self.ring else node_size * (n - node_size) / (n - 1)


def _log2(n: int) -> float:
    return float(math.ceil(math.log2(n))) if n > 1 else 0.0


FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "ring all-reduce": Form(lambda n: 2.0 * (n - 1), lambda n: 2 * (n - 1) / n, ring=True, hidden=0.5),
        "tree all-reduce": Form(lambda n: 2 * _log2(n), lambda n: 2 * _log2(n)),
        "halving-doubling all-reduce": Form(lambda n: 2 * _log2(n), lambda n: 2 * (n - 1) / n),
        "ring all-gather": Form(lambda n: float(n - 1), lambda n: float(n - 1), ring=True),
        "pairwise all-to-all": Form(lambda n: 1.0, lambda n: (n - 1) / n, turns=True),
        "two-phase": Form(lambda n: float(n), lambda n: 2 * (n - 1) / n),
        "parameter server": Form(lambda n: 2.0, lambda n: float(n)),
        "send-recv": Form(lambda n: 1.0, lambda n: 1.0, turns=True),
    }
)
"""Name -> algorithm. The buffer is what a rank hands over: the whole vector, in a gather its own part, in an all-to-all
all pieces. Rounds of an all-to-all are one, since all pieces are on their way at once. A parameter server's busiest wire is
its own."""

OF_PROBE: Final[Mapping[str, str]] = MappingProxyType(
    {
        ALL_REDUCE_FP32: "ring all-reduce",
        ALL_REDUCE_BF16: "ring all-reduce",
        ALL_REDUCE_INT8: "ring all-reduce",
        ALL_REDUCE_INT32: "ring all-reduce",
        ALL_GATHER: "ring all-gather",
        ALL_TO_ALL: "pairwise all-to-all",
        SEND_RECV: "send-recv",
    }
)
"""What is measured -> the algorithm by which gloo carries it out."""

_REDUCED: Final = {
    "float32": ALL_REDUCE_FP32, "float64": ALL_REDUCE_FP32, "bfloat16": ALL_REDUCE_BF16, "float16": ALL_REDUCE_BF16,
    "int8": ALL_REDUCE_INT8, "uint8": ALL_REDUCE_INT8, "int32": ALL_REDUCE_INT32, "int64": ALL_REDUCE_INT32,
}  # fmt: skip


ELEMENT: Final = 4
"""Bytes of an element, of which a piece in a ring has at least one."""
NODE: Final = "node"
CROSS: Final = "cross"
"""Groups of ranks within a node, and of the same place in every node (`reference_impls.drivers.groups`)."""


def measured_as(request: Request) -> str:
    """The collective of `suite.links.probe` that a request is."""
    return _REDUCED[request.dtype] if request.collective == "all-reduce" else request.collective


@dataclass(frozen=True)
class Price:
    """What was fitted for one collective: seconds a call, seconds a round, the host's seconds a byte sent."""

    start_s: float
    round_s: float
    host_s: float


@dataclass(frozen=True)
class Network:
    """A link with the prices of its backend. efficiency: share of the rate that payload reaches. delayed: delays a round, more
    than one where a round waits for acknowledgements. burst: bytes that a shaped wire lets through at once.

    crowd: ranks that share a processor, at least 1. node_size: ranks a node, which share the wire between nodes; within: the
    network inside of a node, where it is another.
    """

    rate_bps: float
    delay_s: float
    prices: Mapping[str, Price]
    efficiency: float = 0.949
    delayed: float = 1.0
    burst: float = 0.0
    crowd: float = 1.0
    node_size: int = 1
    within: Network | None = None
    _known: dict[Request, Parts] = field(init=False, default_factory=dict, compare=False, repr=False)

    def of(self, request: Request) -> Parts:
        """What a request takes, in its group: all ranks, those of a node, or one of every node, as many at a time as a node
        has ranks."""
        found = self._known.get(request)
        if found is None:
            found = self._known[request] = self._of(request)
        return found

    def _of(self, request: Request) -> Parts:
        if request.group == NODE and self.within is not None:
            return self.within.parts(measured_as(request), request.ranks, request.nbytes, request.mutual)
        parts = self.parts(measured_as(request), request.ranks, request.nbytes, request.mutual)
        if request.group == CROSS:
            return replace(parts, wire_s=self.node_size * parts.wire_s)
        share = FORMS[OF_PROBE[measured_as(request)]].through_a_node(request.ranks, self.node_size)
        return replace(parts, wire_s=share * parts.wire_s)

    def parts(self, what: str, n: int, nbytes: float, mutual: bool = False) -> Parts:
        """What a collective of `nbytes` on n ranks with a wire each takes. Raises KeyError for one that has no price.

        mutual: as in `Form.times`.
        """
        form, price = FORMS[OF_PROBE[what]], self.prices[what]
        sent = form.sent(n) * nbytes
        carried = sent * form.times(n, mutual)
        full = min(1.0, nbytes / (ELEMENT * n)) if form.ring else 1.0
        alone = price.start_s + form.rounds(n) * price.round_s
        delays = 1 + (self.delayed - 1) * full
        rounds = (1 + (self.crowd - 1) * full) * alone + form.rounds(n) * delays * self.delay_s
        wire = 8 * max(0.0, carried - self.burst) / (self.rate_bps * self.efficiency)
        host = self.crowd * price.host_s * sent
        return Parts(max(0.0, rounds - form.hidden * max(wire, host)), wire, host, self.crowd * alone * full)

    def seconds(self, what: str, n: int, nbytes: float) -> float:
        """The whole of it, alone on the link."""
        parts = self.parts(what, n, nbytes)
        return parts.latency_s + parts.busy_s


@dataclass(frozen=True)
class Parts:
    """Of one collective: seconds of latency, on the wire, and of the processors, for its bytes and for its messages. Of a ring
    of very few elements most pieces are empty: nobody handles them, and a piece that goes round alone is handled by one rank at
    a time, which then shares its processor with none."""

    latency_s: float
    wire_s: float
    host_s: float
    handled_s: float

    @property
    def worked_s(self) -> float:
        """All that the processors do for it."""
        return self.host_s + self.handled_s

    @property
    def busy_s(self) -> float:
        """How long it keeps others from the link."""
        return max(self.wire_s, self.host_s)


@dataclass(frozen=True)
class Backend:
    """What was fitted for a backend on a machine; a `Network` but for the link."""

    name: str
    prices: Mapping[str, Price]
    efficiency: float
    delayed: float
    burst: float
    cores: int

    def on(self, link: Link, *, own_machines: bool = False) -> Network:
        """The network of a link between workers that share this machine's cores, or have machines of their own."""
        crowd = 1.0 if own_machines else max(1.0, link.workers / self.cores)
        return self.network(link.rate_bps, link.delay_s, crowd)

    def network(self, rate_bps: float, delay_s: float, crowd: float) -> Network:
        """The network of a rate and a delay, `crowd` ranks to a processor."""
        return Network(rate_bps, delay_s, self.prices, self.efficiency, self.delayed, self.burst, crowd)
