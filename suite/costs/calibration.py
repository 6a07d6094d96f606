"""What collectives cost here: the collectives that methods use, from 4 KiB to 16 MiB, over links of a grid.

Ranks are those of a session, on an emulated cluster (`suite.links`); an exchange is timed as the probe times it. What
somebody else disturbed is taken again once, and left out if that was disturbed too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from suite.analysis.speed import interval
from suite.analysis.tables import Row
from suite.links.cluster import up
from suite.links.link import MAX_RATE_BPS, Link
from suite.links.probe import COLLECTIVES, PIECE_BYTES
from suite.timing.load import Meter
from suite.timing.ranks import RankHosts, Ranks
from suite.timing.spec import Limits

BACKEND: Final = "gloo"
SIZES: Final = tuple(4096 * 8**i for i in range(5))
"""Bytes of a buffer; rounded up to whole pieces for every rank."""
LONGEST_S: Final = 1.2
"""Exchanges that would take longer are left out."""
MAX_ANSWER: Final = 64 << 20
"""Bytes of what a rank is answered; all ranks may share one machine."""
FILLS_S: Final = 0.6
FEWEST, MOST = 3, 9
"""Exchanges of one kind: as many as fill `FILLS_S`, within these."""
LIMITS: Final = Limits(foreign_share=0.15, steal_share=0.05, retries=1)
PATIENCE_S: Final = 120.0

Show = Callable[[str], None]


@dataclass(frozen=True)
class Grid:
    """The links that are measured. delays_s: with the rates of `delayed` alone, and the first of `sizes`' worlds."""

    worlds: tuple[int, ...] = (2, 4, 8)
    rates_bps: tuple[float, ...] = (10e6, 30e6, 100e6, 300e6, 1e9, float("inf"))
    delays_s: tuple[float, ...] = (0.002, 0.01)
    delayed_world: int = 4
    delayed_rates_bps: tuple[float, ...] = (30e6, 100e6, 300e6)

    def links(self) -> list[Link]:
        """In an order in which neighbours share a cluster."""
        plain = [Link(n, rate) for n in self.worlds for rate in self.rates_bps]
        return plain + [
            Link(self.delayed_world, rate, delay_s=delay)
            for delay in self.delays_s
            for rate in self.delayed_rates_bps
        ]


def calibrate(
    links: Sequence[Link],
    show: Show = lambda text: None,
    place: Callable[[Link], RankHosts] = up,
    start: Callable[[RankHosts], Ranks] = Ranks,
    keep: Callable[[Sequence[Row]], object] = lambda rows: None,
) -> list[Row]:
    """Rows of the table `collectives`. keep: told all rows so far after every link, so that none is lost.

    Raises `ClusterError`, `LinkError`, `RankLostError`.
    """
    rows: list[Row] = []
    for (workers, delayed), some in itertools.groupby(links, lambda link: (link.workers, link.delay_s > 0)):
        group = list(some)
        with ExitStack() as stack:
            show(f"{workers} ranks: bringing a cluster up" + (" with a delay line" if delayed else ""))
            cluster = place(group[0] if delayed else Link(workers, MAX_RATE_BPS))
            stack.callback(cluster.down)
            ranks = start(cluster)
            stack.callback(ranks.stop)
            meter = Meter()
            for link in group:
                cluster.shape(link)
                meter.find()
                show(f"{workers} ranks, {link.label}")
                rows += _measured(link, ranks, meter)
                keep(rows)
    return rows


def _measured(link: Link, ranks: Ranks, meter: Meter) -> Iterator[Row]:
    n = link.workers
    ranks.ask(
        {"do": "collective", "what": "all-reduce fp32", "nbytes": SIZES[2], "repeats": 2}, PATIENCE_S
    )  # queues
    whole = sorted({-(-nbytes // (PIECE_BYTES * n)) * PIECE_BYTES * n for nbytes in SIZES})
    seen: set[tuple[str, int]] = set()
    for what, pieces in itertools.product(COLLECTIVES, whole):
        kind = COLLECTIVES[what]
        expected = 8 * kind.sent(n) * pieces / link.rate_bps + 2 * n * (link.delay_s + 1e-4)
        if expected > LONGEST_S or kind.answer(n) * pieces > MAX_ANSWER:
            continue
        repeats = max(FEWEST, min(MOST, int(FILLS_S / expected)))
        command = {"do": "collective", "what": what, "nbytes": pieces, "repeats": repeats}
        for _ in range(LIMITS.retries + 1):
            before = meter.snapshot()
            found = ranks.ask(command, PATIENCE_S)[0]["measurement"]
            if not meter.since(before).disturbed(LIMITS):
                if (
                    what,
                    found["bytes"],
                ) not in seen:  # a message may be made smaller, where it took too long
                    yield _row(link, found)
                seen.add((what, found["bytes"]))
                break


def _row(link: Link, found: Mapping[str, Any]) -> Row:
    seconds = [float(value) for value in found["seconds"]]
    middle = interval(seconds)
    return {
        "backend": BACKEND,
        "world_size": link.workers,
        "rate_mbit": link.rate_bps / 1e6 if link.rate_bps < float("inf") else None,
        "delay_ms": 1e3 * link.delay_s,
        "what": str(found["what"]),
        "bytes": int(found["bytes"]),
        "n": len(seconds),
        "seconds": median(seconds),
        "seconds_low": middle.low if middle else None,
        "seconds_high": middle.high if middle else None,
    }
