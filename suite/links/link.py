"""A link between workers, as data: rates, one-way delay; and rates and times in words.

Every worker hangs on one switch by a wire of its own. ``rate`` is what the wire carries each way,
headers included; the delay is one way, from any worker to any other, so that a round trip
takes twice as long. An ``unshaped`` wire is as fast as the machine carries it. A *real*
link is none of this, but whatever network joins the nodes of a cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from reference_impls.core.units import RATE_UNITS, TIME_UNITS, UNSHAPED, parse_duration, parse_rate

MIN_RATE_BPS = 10e6
MAX_RATE_BPS = 10e9
REAL = "real"
"""Begins the label of a link that nobody emulates, and is the key of what only such a link has."""
MAX_DELAY_S = 1.0
MAX_WORKERS = 250
"""The workers share one /24 of addresses."""

ALL_REDUCE_FP32, ALL_REDUCE_BF16 = "all-reduce fp32", "all-reduce bf16"
ALL_GATHER, ALL_TO_ALL, EXCHANGE = "all-gather", "all-to-all", "exchange of pairs"
"""Collectives that a link is probed with (`suite.links.probe`)."""
ROUND_TRIP = "round-trip"
"""Begins the names of a probe's smallest messages; they say nothing of a rate."""


class LinkError(ValueError):
    """A link that cannot be, or a rate or a time that cannot be read; the message says what to write."""


@dataclass(frozen=True)
class Link:
    """``workers`` wires into one switch.

    rate_bps: bits per second from and to a worker, 10 Mbit/s to 10 Gbit/s, or infinite. delay_s: seconds one way, 0 to 1. Raises
    LinkError.
    """

    workers: int
    rate_bps: float
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MAX_WORKERS:
            raise LinkError(f"{self.workers} workers: choose 1 to {MAX_WORKERS}")
        if self.rate_bps != math.inf and not MIN_RATE_BPS <= self.rate_bps <= MAX_RATE_BPS:  # false for NaN
            raise LinkError(f"rate {self.rate_bps:g} bit/s: choose 10mbit to 10gbit, or unshaped")
        if not 0 <= self.delay_s <= MAX_DELAY_S:  # false for NaN
            raise LinkError(f"delay {self.delay_s} s: choose 0 to {MAX_DELAY_S:g} s, one way")

    @classmethod
    def parse(cls, workers: int, rate: str, *, delay: str | None = None) -> Link:
        """The link that people write: ``Link.parse(4, "100mbit", delay="5ms")``."""
        return cls(workers, parse_rate(rate), 0.0 if delay is None else parse_duration(delay))

    @property
    def label(self) -> str:
        """``100 Mbit/s``, ``100 Mbit/s, 5 ms``."""
        words = rate_words(self.rate_bps)
        return f"{words}, {duration_words(self.delay_s)}" if self.delay_s else words

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values. Records of sessions have two more keys, of what links could be before."""
        return {
            "workers": self.workers,
            "rate_bps": None if math.isinf(self.rate_bps) else self.rate_bps,
            "down_bps": None,
            "delay_s": self.delay_s,
            "stragglers": {},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Link:
        """Read back what `as_dict` gave."""
        rate = math.inf if data["rate_bps"] is None else data["rate_bps"]
        return cls(data["workers"], rate, data["delay_s"])


@dataclass(frozen=True)
class RealLink(Link):
    """The network between real nodes as it is: no rate is held, so ``rate_bps`` is infinite.

    nodes, ranks_per_node: how the workers are spread. interface: the network interface of rank 0. backend: of the process
    group, ``gloo`` or ``nccl``. device: ``cpu`` or ``cuda``.
    """

    nodes: int = 1
    ranks_per_node: int = 1
    interface: str = ""
    backend: str = "gloo"
    device: str = "cpu"

    @property
    def label(self) -> str:
        """``real, 4 x 2 over ib0``: nodes, ranks a node, interface; the backend where it is not gloo."""
        backend = "" if self.backend == "gloo" else f", {self.backend}"
        return f"{REAL}, {self.nodes} x {self.ranks_per_node} over {self.interface}{backend}"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; what only a real network has is under `REAL`, and a session adds what it measured."""
        own = ("nodes", "ranks_per_node", "interface", "backend", "device")
        return {**super().as_dict(), REAL: {name: getattr(self, name) for name in own}}


def reached(measurements: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    """What a probe (`suite.links.probe`) says of a link of which nothing else is known.

    Args:
        measurements: Measurements as plain values.

    Returns:
        rate_bps: bits a second of each rank in the largest fp32 all-reduce. delay_s: half of the shortest median round trip,
        in seconds, the software of both ends included. None where it was not measured.
    """
    rings = [(m["bytes"], m["bits_per_s"]) for m in measurements if m["what"] == ALL_REDUCE_FP32]
    trips = [median(m["seconds"]) for m in measurements if m["what"].startswith(ROUND_TRIP)]
    return {"rate_bps": max(rings)[1] if rings else None, "delay_s": min(trips) / 2 if trips else None}


def measured_words(link: Mapping[str, Any]) -> str:
    """What was measured of a real link, as `Link.as_dict` has it: `` (95.1 Mbit/s, 0.21 ms)``; empty for any other."""
    found = link.get(REAL, {})
    rate, delay = found.get("rate_bps"), found.get("delay_s")
    words = [rate_words(float(f"{rate:.3g}"))] if rate else []
    words += [duration_words(float(f"{delay:.3g}"))] if delay else []
    return f" ({', '.join(words)})" if words else ""


def rate_words(rate_bps: float) -> str:
    """For people: ``100 Mbit/s``."""
    if math.isinf(rate_bps):
        return UNSHAPED
    number, unit = _largest(rate_bps, RATE_UNITS)
    return f"{number} {unit.replace('m', 'M').replace('g', 'G')}/s"


def duration_words(seconds: float) -> str:
    """For people: ``5 ms``."""
    return " ".join(_largest(seconds, TIME_UNITS)) if seconds else "0 ms"


def _largest(value: float, units: Mapping[str, float]) -> tuple[str, str]:
    """Digits and unit, of the largest unit in which the value is at least 1 (of the smallest, where none is)."""
    fitting = [unit for unit, size in units.items() if value >= size * (1 - 1e-12)]
    unit = fitting[-1] if fitting else min(units, key=lambda name: units[name])
    return f"{value / units[unit]:.12g}", unit
