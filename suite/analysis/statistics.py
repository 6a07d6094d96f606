"""Intervals and tests for small samples, as plain functions of sequences of floats.

Two intervals and one test carry every judgement of the suite:

- the mean of a metric over seeds, or of its seed-by-seed difference to a baseline, with Student's t interval;
- the median of times, with the order-statistic interval, which is exact for every continuous distribution;
- "A differs from B" by the exact paired sign-flip permutation test, with Holm's correction over the table.

Six values are the least that an interval accepts: below six the order-statistic interval of the median does
not exist at 95 %, and a t interval says little. Ranking asks for more (`can_rank`), since no data could give
a p small enough. Values that are not finite are refused: a diverged run is counted by the caller, it is never
a number in a mean.

A method is *equal* to its baseline when the interval of the paired difference lies inside +-margin, *not
equal* when the interval lies wholly outside, else *undecided* (two one-sided tests; a 95 % interval makes
each of them at 2.5 %; Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987). A margin that
is too wide calls anything equal, so the same study must tell the negative controls (methods known to be bad)
from the baseline, and the margin may be at most half the loss of the weakest of them. Where that fails the
study is *not sensitive*, and no method of it is called equal.

Sources: Student, "The probable error of a mean", Biometrika 6 (1908); David and Nagaraja, "Order Statistics",
3rd ed., section 7.1; Fisher, "The Design of Experiments" (1935), section 21; Holm, Scandinavian Journal of
Statistics 6 (1979).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import stats

from suite.runs.plan import ALPHA, MAXIMUM_EXACT, smallest_p
from suite.runs.plan import MINIMUM_FOR_INTERVAL as MINIMUM_FOR_INTERVAL

MINIMUM_FOR_RANK = 7
"""Fewest pairs on which methods are ranked, whatever the number of comparisons."""


class StatisticsError(ValueError):
    """The data do not allow the statistic that was asked for."""


class TooFewSamplesError(StatisticsError):
    """Fewer values than the method needs."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its two-sided confidence interval, in the unit of the data."""

    estimate: float
    low: float
    high: float


def cells(found: Interval | None, name: str, stem: str) -> dict[str, float]:
    """An interval as cells of a table: `name`, and its ends under `stem` with ``low`` and ``high``; none where there is none."""
    return {name: found.estimate, f"{stem}low": found.low, f"{stem}high": found.high} if found else {}


def _finite(values: Sequence[float], least: int, what: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise StatisticsError(f"{what} takes one sequence of numbers, not an array of shape {array.shape}")
    if not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise StatisticsError(
            f"{what}: {count} of {array.size} values are not finite; count failed runs apart, keep them out"
        )
    if array.size < least:
        raise TooFewSamplesError(f"{what} needs at least {least} values and got {array.size}; run more seeds")
    return array


@lru_cache(maxsize=256)
def _t(level: float, degrees: int) -> float:
    """The two-sided quantile of Student's t; a page asks for that of its number of seeds thousands of times."""
    return float(stats.t.ppf(0.5 + level / 2, degrees))


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Mean with Student's t interval: mean +- t(1 - (1 - level) / 2, n - 1) * s / sqrt(n).

    s is the sample standard deviation (n - 1). Exact for normal data. Simulated coverage of the 95 % interval
    with six values: normal 95.0 %, Student's t with 3 degrees 96.1 %, uniform 93.9 %, exponential 88.7 %; so
    it suits paired differences, which are close to symmetric, better than skewed metrics. Pairing by seed takes out what
    two runs have in common (the data split, the initial model). Raises TooFewSamplesError below six values and
    StatisticsError for values that are not finite.
    """
    array = _finite(values, MINIMUM_FOR_INTERVAL, "the t interval of a mean")
    if not 0.5 <= level < 1.0:
        raise StatisticsError(f"a confidence level lies in [0.5, 1), not {level}")
    n = array.size
    mean = float(array.mean())
    half = _t(level, n - 1) * float(array.std(ddof=1)) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def median_interval(values: Sequence[float]) -> Interval:
    """Median with the 95 % interval [x_(r), x_(n + 1 - r)] of two order statistics.

    r is the largest rank with 2 * P(Binomial(n, 1/2) < r) <= 0.05, so coverage is at least 95 % for every continuous
    distribution; at n = 6 it is [minimum, maximum], with 96.9 %. Raises TooFewSamplesError below six values, for which there is
    no such r.
    """
    array = np.sort(_finite(values, MINIMUM_FOR_INTERVAL, "the order-statistic interval of a median"))
    n = array.size
    below = stats.binom.cdf(np.arange(n), n, 0.5)
    rank = int((2 * below <= 0.05).sum())
    return Interval(float(np.median(array)), float(array[rank - 1]), float(array[n - rank]))


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the exact paired sign-flip permutation test of "the differences are symmetric about 0".

    p = share of the 2**n sign patterns s with |sum s_i d_i| >= |sum d_i|, d the differences, by full
    enumeration. Sums within 1e-6 of sum |d_i| count as equal: shares of right answers tie, and tables have nine digits
    of them. Raises TooFewSamplesError below 2 pairs and StatisticsError above 24.
    """
    d = _finite(differences, 2, "the sign-flip test")
    if d.size > MAXIMUM_EXACT:
        raise StatisticsError(
            f"the exact sign-flip test enumerates at most {MAXIMUM_EXACT} pairs and got {d.size}"
        )
    sums = np.array(
        [d[0]]
    )  # the sign of the first pair is fixed: a pattern and its mirror have the same |sum|
    for difference in d[1:]:
        sums = np.concatenate([sums - difference, sums + difference])
    tolerance = 1e-6 * float(np.abs(d).sum())
    return float((np.abs(sums) >= abs(float(d.sum())) - tolerance).mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given.

    The k-th smallest of m becomes max over j <= k of min(1, (m - j + 1) * p_(j)); rejecting where this is at
    most alpha keeps the chance of any false rejection at alpha, for any dependence. An empty table gives an
    empty list.
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.size == 0:
        return []
    if not ((p >= 0) & (p <= 1)).all():
        raise StatisticsError(
            "Holm's correction takes p-values in [0, 1]; leave out the methods that have none"
        )
    order = np.argsort(p, kind="stable")
    stepped = np.minimum(1.0, (p.size - np.arange(p.size)) * p[order])
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(stepped)
    return [float(value) for value in adjusted]


def can_rank(n: int, comparisons: int) -> bool:
    """Whether n paired seeds could give a significant rank over so many comparisons; never with fewer than
    seven seeds.
    """
    return n >= MINIMUM_FOR_RANK and smallest_p(n, comparisons) <= ALPHA


# ---- equal, not equal, undecided, and studies that cannot say

Equality = Literal["yes", "no", "undecided", "not sensitive"]


@dataclass(frozen=True)
class Control:
    """What one negative control lost against its baseline, in the workload's unit; a loss is positive.

    loss is None when fewer than six pairs finished; collapsed says that every seed diverged, which is a loss
    without bound. planned: seeds that were to run.
    """

    name: str
    loss: Interval | None
    collapsed: bool = False
    planned: int = MINIMUM_FOR_INTERVAL


@dataclass(frozen=True)
class Sensitivity:
    """Whether a study could have seen a bad method: the verdict, the reason in a sentence, the weakest
    control and its loss.
    """

    sensitive: bool
    reason: str
    weakest: str | None = None
    weakest_loss: float | None = None


def equivalence(difference: Interval, margin: float) -> Equality:
    """Equality from the interval of a paired difference alone: "yes" inside (-margin, margin), "no" wholly
    outside.

    margin: positive, as workloads and sweeps declare it.
    """
    if -margin < difference.low and difference.high < margin:
        return "yes"
    if difference.low >= margin or difference.high <= -margin:
        return "no"
    return "undecided"


def sensitivity(
    controls: Sequence[Control], margin: float, unit: str = "", no_verdict: str = ""
) -> Sensitivity:
    """Whether the study tells every negative control from the baseline, and the margin is at most half the
    weakest loss.

    A control is told apart when the interval of its loss lies above 0, or when all its seeds diverged. The
    weakest control is the one with the smallest mean loss. Without controls, or with one that could not be
    measured, the study is not sensitive; nor on a workload that says why it supports no verdict.
    """
    if no_verdict:
        return Sensitivity(False, f"this workload supports no verdict on equality: {no_verdict}")
    suffix = f" {unit}" if unit else ""
    if not controls:
        reason = "no negative control ran, so nothing shows that a bad method would have been seen"
        return Sensitivity(False, reason)
    unmeasured = sorted(c.name for c in controls if c.loss is None and not c.collapsed)
    if planned := [c.planned for c in controls if c.name in unmeasured and c.planned < MINIMUM_FOR_INTERVAL]:
        return Sensitivity(False, f"{min(planned)} seeds: an interval needs {MINIMUM_FOR_INTERVAL}")
    if unmeasured:
        return Sensitivity(False, f"too few seeds of {', '.join(unmeasured)} finished to measure the loss")
    losses = sorted((math.inf if c.loss is None else c.loss.estimate, c.name) for c in controls)
    weakest_loss, weakest = losses[0]
    hidden = sorted(c.name for c in controls if c.loss is not None and c.loss.low <= 0)
    if hidden:
        reason = f"with this many seeds {', '.join(hidden)} cannot be told from the baseline"
        return Sensitivity(False, reason, weakest, weakest_loss)
    lost = "diverged" if math.isinf(weakest_loss) else f"lost {weakest_loss:.2f}{suffix}"
    if margin > weakest_loss / 2:
        reason = f"the margin of {margin:g}{suffix} is more than half of what the weakest control lost"
        return Sensitivity(False, f"{reason} ({weakest} {lost})", weakest, weakest_loss)
    reason = f"every control is told from its baseline, and the weakest ({weakest}) {lost}, at least twice the margin of"
    return Sensitivity(True, f"{reason} {margin:g}{suffix}", weakest, weakest_loss)


def equality(
    difference: Interval | None, margin: float, study: Sensitivity, *, planned: int, done: int, diverged: int
) -> Equality:
    """The word that stands in the table, from the interval, the study's sensitivity and what became of the
    planned seeds.

    A diverged seed makes "no", whatever the other seeds did. "yes" needs every planned seed: seeds lost for
    another reason leave "undecided". "not sensitive" replaces "yes" and "undecided" in a study that could not
    have seen a bad method, but a measured "no" stays. difference is None when fewer than six pairs finished.
    """
    if diverged:
        return "no"
    word: Equality = "undecided" if difference is None else equivalence(difference, margin)
    if word == "no":
        return "no"
    if not study.sensitive:
        return "not sensitive"
    return word if done == planned else "undecided"
