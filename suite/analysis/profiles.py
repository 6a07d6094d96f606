"""Performance profiles: for each method the share of workloads that it does within tau times the best time.

Dolan and More, "Benchmarking optimization software with performance profiles", Mathematical Programming 91 (2002).
Times are to a target, +inf for a miss, and a workload's time is the median over seeds; "best" is the best of the methods
that are given, so a profile says nothing of others. The band is a bootstrap over seeds inside every workload (stratified),
all methods with the same draw, since their runs share seeds. A workload that no method reached counts for none.

With six seeds the plain 95 % of the draws covers too little, so the band spans 99 % of them (`NARROWING`). Simulated
coverage of a 95 % band, mean over tau: 97 % to 99.9 %; at a single tau where several workloads all but tie it can fall
to 75 %, since the best of noisy medians is too good. Read the band as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, StatisticsError, TooFewSamplesError

DRAWS: Final = 2000
LEAST_WORKLOADS: Final = 4
NARROWING: Final = 5
"""The draws outside of the band are this many times fewer than 1 - level."""

Times = Mapping[str, Sequence[Sequence[float]]]
"""method -> workload -> seed: seconds (or bytes) to the target, inf for a miss."""


@dataclass(frozen=True)
class Profile:
    """One method: `share` at every tau with a pointwise band, and the share of workloads that it never reached."""

    share: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    missed: float


def performance_profiles(
    times: Times, taus: Sequence[float], level: float = 0.95, draws: int = DRAWS, seed: int = 0
) -> dict[str, Profile]:
    """The profile of every method at `taus` (each at least 1), with pointwise percentile bands.

    Raises TooFewSamplesError below four workloads or six seeds in one, StatisticsError where methods differ in workloads
    or seeds, or a time is not positive. The same arguments give the same bands.
    """
    names, sizes = list(times), _sizes(times)
    if not all(tau >= 1 for tau in taus):
        raise StatisticsError("tau is a multiple of the best time: at least 1")
    rng = np.random.default_rng(seed)
    found = np.empty((len(names), len(sizes)))
    drawn = np.empty((len(names), len(sizes), draws))
    for workload, size in enumerate(sizes):
        own = np.array([times[name][workload] for name in names], dtype=np.float64)  # [method, seed]
        found[:, workload] = _medians(own)
        drawn[:, workload] = _medians(own[:, rng.integers(size, size=(draws, size))])
    share = _shares(found[:, :, None], taus)[..., 0]
    outside = (1 - level) / 2 / NARROWING
    ends = np.quantile(_shares(drawn, taus), [outside, 1 - outside], axis=-1)
    return {
        name: Profile(
            tuple(share[i].tolist()),
            tuple(ends[0, i].tolist()),
            tuple(ends[1, i].tolist()),
            float(np.isinf(found[i]).mean()),
        )
        for i, name in enumerate(names)
    }


def _medians(values: np.ndarray) -> np.ndarray:
    """Medians over the last axis; of two middle values the later one, so that a miss among them is a miss."""
    middle = values.shape[-1] // 2
    return np.partition(values, middle, axis=-1)[..., middle]


def _shares(medians: np.ndarray, taus: Sequence[float]) -> np.ndarray:
    """[method, workload, draw] -> [method, tau, draw]."""
    best = medians.min(axis=0)
    within = [np.isfinite(medians) & (medians <= tau * best) for tau in taus]
    return np.stack([inside.mean(axis=1) for inside in within], axis=1)


def _sizes(times: Times) -> list[int]:
    """Seeds of every workload, the same for all methods."""
    shapes = {name: [len(seeds) for seeds in workloads] for name, workloads in times.items()}
    if not shapes:
        raise StatisticsError("a profile compares methods; none is given")
    first = next(iter(shapes.values()))
    if odd := [name for name, shape in shapes.items() if shape != first]:
        raise StatisticsError(f"methods share workloads and seeds in a profile; {', '.join(odd)} has others")
    if len(first) < LEAST_WORKLOADS or min(first) < MINIMUM_FOR_INTERVAL:
        raise TooFewSamplesError(
            f"a profile takes {LEAST_WORKLOADS} workloads of {MINIMUM_FOR_INTERVAL} seeds or more, not {first}"
        )
    if not all(value > 0 for workloads in times.values() for seeds in workloads for value in seeds):
        raise StatisticsError("times to a target are positive, or inf for a miss")
    return first
