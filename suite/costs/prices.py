"""What collectives cost: the formula, its fit to measured exchanges, how those are measured, and a network measured on the spot.

    seconds = start + rounds(n) x (round + delay) + max(bytes over the wire, work of the host)

Rounds and bytes are those of the algorithm that the backend uses (`FORMS`); `start`, `round`, the share of a link that TCP
reaches and the host's seconds a byte are fitted to the table `collectives` (`fit_backend`), which `calibrate` measures on
emulated links. Wire and host work at the same time, on different pieces, so the slower one counts. Where ranks share processors,
their host's seconds are multiplied by how many share one (*crowd*). Latency, bandwidth and work of the host are the alpha, beta
and gamma of the literature.

`measure` probes the network of the processes that call it, for advice on a network that nobody has calibrated.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from suite.analysis.speed import interval
from suite.analysis.tables import Row, frame_of
from suite.costs.columns import CALIBRATION
from suite.costs.step import FORMS, OF_PROBE, Backend, Price
from suite.links.cluster import up
from suite.links.link import MAX_RATE_BPS, Link
from suite.links.probe import COLLECTIVES, MOST_BYTES, PIECE_BYTES, Measurement, bandwidth, size_for
from suite.timing.load import Meter
from suite.timing.ranks import RankHosts, Ranks
from suite.timing.spec import Limits
from suite.training.processes import Place, RendezvousError, join_launch

# ---- the fit: least squares of the logarithms

TOLERANCE: Final = 0.1
"""Relative error from which on the loss grows linearly, so that a few bad readings do not decide."""
LEAST_EXCHANGES: Final = 8
"""Exchanges that a fit needs of a collective."""
_START: Final = {"start": 50e-6, "round": 100e-6, "host": 1e-9}
_DELAYED: Final = 2.0
"""A message is announced and asked for before it comes; what stands where no link had a delay."""
FIT_SETTINGS: Final = (TOLERANCE, tuple(_START.items()), _DELAYED)
"""All that decides a fit besides what it is fitted to and the formula."""


class FitError(ValueError):
    """Measurements that do not decide a fit; the message says what to measure."""


@dataclass(frozen=True)
class Fitted:
    """A backend, and how well it is met: the absolute relative errors of what it was fitted to."""

    backend: Backend
    median_error: float
    worst_error: float
    n: int


def fit_backend(exchanges: pd.DataFrame, cores: int) -> Fitted:
    """Fit the prices of a backend. Every exchange weighs the same, however long it takes: what counts is relative error.

    Args:
        exchanges: Table `collectives`, of one backend.
        cores: Processors that the ranks shared.

    Returns:
        The backend, with the errors of the fit.

    Raises:
        FitError: There are too few exchanges of a collective, or none at all.
    """
    used = exchanges[exchanges["what"].isin(list(OF_PROBE))]
    counts = used["what"].value_counts()
    if counts.empty:
        raise FitError("no collective was measured: run `bandwise costs probe`")
    for name, count in counts[counts < LEAST_EXCHANGES].sort_index().items():
        raise FitError(
            f"{count} exchanges of {name!r}: a fit needs {LEAST_EXCHANGES}, of several sizes and links"
        )
    problem = _Problem(used, cores)
    solution = least_squares(
        problem.residuals, problem.start(), loss="soft_l1", f_scale=TOLERANCE, max_nfev=400
    )
    errors = np.abs(np.expm1(problem.residuals(solution.x)))
    return Fitted(problem.backend(solution.x), float(np.median(errors)), float(errors.max()), len(used))


class _Problem:
    """Parameters as one vector of numbers without bounds: logarithms, and the efficiency's odds."""

    def __init__(self, exchanges: pd.DataFrame, cores: int) -> None:
        self.names, self.cores = sorted(exchanges["what"].unique()), cores
        self.backend_name = str(exchanges["backend"].iloc[0])
        sizes = exchanges["world_size"].tolist()
        forms = [FORMS[OF_PROBE[what]] for what in exchanges["what"]]
        each = list(zip(forms, sizes, strict=True))
        self._which = np.array([self.names.index(what) for what in exchanges["what"]])
        self._rounds = np.array([form.rounds(n) for form, n in each])
        self._sent = np.array([form.sent(n) for form, n in each]) * exchanges["bytes"].to_numpy(float)
        self._hidden = np.array([form.hidden for form in forms])
        self._carried = self._sent * np.array([form.times(n) for form, n in each])
        self._byte_s = 8 / (1e6 * exchanges["rate_mbit"].fillna(math.inf).to_numpy())
        self._delay = 1e-3 * exchanges["delay_ms"].to_numpy()
        self._crowd = np.maximum(1.0, np.array(sizes) / cores)
        self._seconds = exchanges["seconds"].to_numpy()

    def start(self) -> Any:
        """Where the search begins."""
        each = [math.log(_START[part]) for _ in self.names for part in ("start", "round", "host")]
        return np.array([*each, 3.0, math.log(_DELAYED)])

    def backend(self, x: Any) -> Backend:
        """The parameters by name."""
        prices, shared = self._values(x)
        efficiency, delayed = map(float, shared)
        return Backend(
            self.backend_name,
            {name: Price(*map(float, row)) for name, row in zip(self.names, prices, strict=True)},
            efficiency,
            delayed,
            self.cores,
        )

    def residuals(self, x: Any) -> Any:
        """Logarithm of predicted over measured seconds; the arithmetic of `Network.seconds`, for all rows at once."""
        prices, (efficiency, delayed) = self._values(x)
        start, each, host = prices[self._which].T
        rounds = start * self._crowd + self._rounds * (each * self._crowd + delayed * self._delay)
        wire = self._carried * self._byte_s / efficiency
        busy = np.maximum(wire, self._crowd * host * self._sent)
        return np.log((np.maximum(0.0, rounds - self._hidden * busy) + busy) / self._seconds)

    def _values(self, x: Any) -> tuple[Any, Any]:
        odds, delayed = x[-2:]
        return np.exp(x[:-2]).reshape(-1, 3), (1 / (1 + np.exp(-odds)), np.exp(delayed))


# ---- the calibration: exchanges on emulated links

BACKEND: Final = "gloo"
SIZES: Final = tuple(4096 * 8**i for i in range(5))
"""Bytes of a buffer; rounded up to whole pieces for every rank."""
LONGEST_S: Final = 1.2
"""Exchanges that would take longer are left out."""
MAX_ANSWER: Final = 64 << 20
"""Bytes of what a rank is answered; all ranks may share one machine."""
FILLS_S: Final = 0.6
LEAST_REPEATS, MOST_REPEATS = 3, 9
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
    keep: Callable[[pd.DataFrame], object] = lambda so_far: None,
) -> pd.DataFrame:
    """Measure exchanges: all that methods use, from 4 KiB to 16 MiB, timed as the probe times them.

    What somebody else disturbed is taken again once, and left out if that was disturbed too.

    Args:
        links: Where to measure; neighbours share a cluster (`Grid.links`).
        show: Is told what is done.
        place: Brings up a cluster of a link.
        start: Starts the ranks of a cluster.
        keep: Is given the table so far after every link, so that nothing is lost.

    Returns:
        Table `collectives`.

    Raises:
        ClusterError, LinkError: A cluster cannot be brought up.
        RankLostError: A rank ended before its time.
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
                rows += _exchanges_on(link, ranks, meter)
                keep(frame_of(CALIBRATION, rows))
    return frame_of(CALIBRATION, rows)


def _exchanges_on(link: Link, ranks: Ranks, meter: Meter) -> Iterator[Row]:
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
        repeats = max(LEAST_REPEATS, min(MOST_REPEATS, int(FILLS_S / expected)))
        command = {"do": "collective", "what": what, "nbytes": pieces, "repeats": repeats}
        for _ in range(LIMITS.retries + 1):
            before = meter.snapshot()
            exchange = ranks.ask(command, PATIENCE_S)[0]["measurement"]
            if not meter.since(before).disturbed(LIMITS):
                size = exchange["bytes"]  # a message is made smaller where it takes too long
                if (what, size) not in seen:
                    yield _exchange_row(link, exchange)
                seen.add((what, size))
                break


def _exchange_row(link: Link, exchange: Mapping[str, Any]) -> Row:
    seconds = [float(value) for value in exchange["seconds"]]
    middle = interval(seconds)
    return {
        "backend": BACKEND,
        "world_size": link.workers,
        "rate_mbit": link.rate_bps / 1e6 if link.rate_bps < float("inf") else None,
        "delay_ms": 1e3 * link.delay_s,
        "what": str(exchange["what"]),
        "bytes": int(exchange["bytes"]),
        "n": len(seconds),
        "seconds": median(seconds),
        "seconds_low": middle.low if middle else None,
        "seconds_high": middle.high if middle else None,
    }


# ---- the network of the processes that run this

TIMEOUT: Final = timedelta(seconds=60)
SMALL: Final = 4096
REPEATS: Final = 5
FIRST_GUESS: Final = 10e9
"""Bits a second for which the first message is sized; the probe makes it smaller where it takes long."""


class MeasureError(RuntimeError):
    """The network could not be probed; the message says why and what to do."""


@dataclass(frozen=True)
class Measured:
    """What was found. rank: of this process; rank 0 speaks. exchanges: collective -> (small, large)."""

    rank: int
    world_size: int
    exchanges: Mapping[str, tuple[Measurement, Measurement]]

    @property
    def rate_bps(self) -> float:
        """The best that any collective reached, its latency taken off: what the link carries."""
        return 8 / min(_seconds_a_byte(*pair) for pair in self.exchanges.values())

    def backend(self, fitted: Backend) -> Backend:
        """The prices of this network: latency from the small messages, what lacks to the link's rate from the large ones."""
        prices = {}
        for what, (small, large) in self.exchanges.items():
            form = FORMS[OF_PROBE[what]]
            each = small.median_s / form.rounds(self.world_size)
            prices[what] = Price(
                0.0, each, _seconds_a_byte(small, large)
            )  # a host that is slower than the wire
        return replace(fitted, prices=prices, efficiency=1.0)


def _seconds_a_byte(small: Measurement, large: Measurement) -> float:
    """Of a byte sent. Bytes count for at least half of what the large message took: the small one may be a bad reading."""
    sent = large.bits_per_s * large.median_s / 8
    hidden = FORMS[OF_PROBE[large.what]].hidden
    if small.median_s <= hidden * large.median_s:
        return large.median_s / sent
    return max((large.median_s - small.median_s) / (1 - hidden), large.median_s / 2) / sent


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """(rank, world size) of this process. Raises `MeasureError` where nobody has said."""
    for rank, size in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")):
        if rank in environment and size in environment:
            try:
                place = int(environment[rank]), int(environment[size])
            except ValueError:
                raise MeasureError(f"{rank} and {size} must be whole numbers") from None
            if place[1] < 2:
                raise MeasureError("a network has two ends: start at least 2 processes")
            return place
    raise MeasureError(
        "--measure needs every worker: start this command with torchrun (say `torchrun --nnodes 4 --nproc-per-node 1 "
        "--rdzv-endpoint HOST:29400 -m bandwise.cli advise --measure ...`) or with srun"
    )


def measure(folder: Path, environment: Mapping[str, str] | None = None) -> Measured:
    """Probe: all processes call it. folder: that all of them see, where they meet under srun. Raises `MeasureError`."""
    import torch.distributed as dist

    environment = os.environ if environment is None else environment
    rank, size = rank_and_size(environment)
    try:
        rendezvous = join_launch(Place(rank, size), folder, environment, TIMEOUT.total_seconds())
    except RendezvousError as error:
        raise MeasureError(f"rank {rank} of {size} did not meet the others: {error}") from error
    try:
        dist.init_process_group("gloo", store=rendezvous.store, rank=rank, world_size=size, timeout=TIMEOUT)
        try:
            exchanges = _exchanges(list(COLLECTIVES))
        finally:
            dist.destroy_process_group()
    except (RuntimeError, ValueError, OSError) as error:
        raise MeasureError(
            f"the probe failed on rank {rank} of {size}: {str(error).splitlines()[0]}; are all workers up, and does "
            "GLOO_SOCKET_IFNAME name the interface by which they reach each other?"
        ) from error
    finally:
        rendezvous.leave()
    return Measured(rank, size, exchanges)


def _exchanges(names: Sequence[str]) -> dict[str, tuple[Measurement, Measurement]]:
    import torch.distributed as dist

    n = dist.get_world_size()
    exchanges = {}
    for name in names:
        kind = COLLECTIVES[name]
        most = MOST_BYTES / max(1, kind.answer(n))
        large = size_for(FIRST_GUESS, kind.sent(n), most)
        exchanges[name] = (bandwidth(name, SMALL, REPEATS), bandwidth(name, large, REPEATS))
    return exchanges
