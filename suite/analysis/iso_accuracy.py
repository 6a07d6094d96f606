"""Speedup at equal accuracy from a budget ladder: how much sooner a method is where the tuned reference ends.

A ladder is a method trained at several budgets (0.5, 0.71, 1, 1.41 times the steps, its schedule rescaled each time),
every seed at every rung. Its accuracy is read between neighbouring rungs along the logarithm of time; the method's time
is the one at which it has the reference's accuracy, and it may lie beyond the ladder: it is *censored* then, and the
speedup reaches down to 0 (never as good) or up to infinity (as good before the first rung).

The interval inverts a test: a time belongs to it unless the paired t interval of (method at that time minus reference)
leaves 0 out, on the side that says so. That is Fieller's idea (Journal of the Royal Statistical Society B 16, 1954); it
covers as well as a t interval does where accuracy rises along the ladder.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from scipy import optimize, stats

from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, Interval, StatisticsError, TooFewSamplesError

POINTS_A_SEGMENT: Final = 256
"""Times between two rungs at which the test is made; the interval is at most one of them too wide."""

Censored = Literal["", "never reached", "reached before the first rung"]


@dataclass(frozen=True)
class IsoAccuracy:
    """The speedup, with its interval. censored: on which side of the ladder the estimate lies; its value is then 0 or
    infinity, and the interval says how much is known.
    """

    speedup: Interval
    censored: Censored


def iso_accuracy_speedup(
    reference_s: float,
    reference: Sequence[float],
    seconds: Sequence[float],
    rungs: Sequence[Sequence[float]],
    *,
    direction: str = "higher",
    level: float = 0.95,
) -> IsoAccuracy:
    """`reference_s` over the time at which the method has the reference's accuracy.

    reference: the reference's final metric by seed. seconds: of the method's trainings, a rung each, rising. rungs: its
    final metric at each rung, by the same seeds. direction: "higher" or "lower" is better. Seconds are taken as known:
    where they have intervals of their own, widen this one by them. Raises StatisticsError for ladders that are none,
    TooFewSamplesError below six seeds.
    """
    gaps = _gaps(reference, seconds, rungs, direction)
    log_s = np.log(np.asarray(seconds, dtype=np.float64))
    at = np.concatenate(
        [np.linspace(a, b, POINTS_A_SEGMENT, endpoint=False) for a, b in itertools.pairwise(log_s)]
        + [log_s[-1:]]
    )
    along = np.stack([np.interp(at, log_s, gap) for gap in gaps.T])  # [seed, time]
    n = along.shape[0]
    half = stats.t.ppf(0.5 + level / 2, n - 1) * along.std(0, ddof=1) / math.sqrt(n)
    mean = along.mean(0)
    above, below = np.flatnonzero(mean - half > 0), np.flatnonzero(mean + half < 0)
    # time is at least the last one at which it is surely worse, and at most the first later one where it is surely better
    earliest = math.exp(at[below[-1]]) if below.size else 0.0
    later = above[above > (below[-1] if below.size else -1)]
    latest = math.exp(at[later[0]]) if later.size else math.inf
    time, censored = _crossing(log_s, gaps.mean(1))
    interval = Interval(
        _over(reference_s, time),
        _over(reference_s, latest),
        _over(reference_s, earliest),
        n,
        f"inverted paired t, {level:.0%}",
    )
    return IsoAccuracy(interval, censored)


def _gaps(
    reference: Sequence[float], seconds: Sequence[float], rungs: Sequence[Sequence[float]], direction: str
) -> np.ndarray:
    """Method minus reference [rung, seed], more is better; what cannot be a ladder is refused."""
    if direction not in {"higher", "lower"}:
        raise StatisticsError(f'a direction is "higher" or "lower", not {direction!r}')
    if len(seconds) != len(rungs) or len(rungs) < 2:
        raise StatisticsError(
            f"a ladder has two rungs or more, each with its seconds, not {len(rungs)} and {len(seconds)}"
        )
    if any(len(rung) != len(reference) for rung in rungs):
        raise StatisticsError("every rung pairs with the reference seed by seed; their numbers differ")
    if not all(0 < a < b < math.inf for a, b in itertools.pairwise(seconds)):
        raise StatisticsError(f"the seconds of a ladder are positive and rise, not {list(seconds)}")
    if len(reference) < MINIMUM_FOR_INTERVAL:
        raise TooFewSamplesError(
            f"a ladder takes {MINIMUM_FOR_INTERVAL} seeds or more and got {len(reference)}"
        )
    gaps = np.asarray(rungs, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    if not np.isfinite(gaps).all():
        raise StatisticsError("a diverged run has no place on a ladder; count it apart")
    return gaps if direction == "higher" else -gaps


def _crossing(log_s: np.ndarray, mean: np.ndarray) -> tuple[float, Censored]:
    """Seconds at which the mean gap, made to rise (isotonic regression), is 0 first; 0 or inf beyond the ladder."""
    rising = optimize.isotonic_regression(mean).x
    if rising[0] >= 0:
        return (float(math.exp(log_s[0])), "") if rising[0] == 0 else (0.0, "reached before the first rung")
    if rising[-1] < 0:
        return math.inf, "never reached"
    upper = int(np.flatnonzero(rising >= 0)[0])
    share = -rising[upper - 1] / (rising[upper] - rising[upper - 1])
    return float(math.exp(log_s[upper - 1] + share * (log_s[upper] - log_s[upper - 1]))), ""


def _over(reference_s: float, seconds: float) -> float:
    return math.inf if seconds == 0 else reference_s / seconds
