"""Net speedup at equal time: in the same seconds on the same link, does training with a method end better than plain training?

The *reference* is the tuned uncompressed run, trained at several budgets (multiples of its steps, schedule rescaled). Its final
loss as a function of time, R(t), is read between neighbouring budgets along the logarithm of time, seed by seed, by a
monotone cubic (Fritsch and Carlson, SIAM Journal on Numerical Analysis 17, 1980). A method that ends at loss l after t seconds

- *gains* R(t) - l, in the unit of the loss;
- has the *net speedup* s at which R(s t) = l: the reference needs s times as long for the same loss;
- is *worth* the budget b at which R(b) = l: how many of the reference's steps its training replaces, whatever a link costs.

One test carries all three: at a budget the difference between reference and method is compared with its standard error by
Student's t. The variance is the sum of three: of the mean over seeds (paired, since both share data and initial model), of
the choice of learning rates (`tuning_error`), and of the measured seconds (by the slope of R). Degrees of freedom follow
Satterthwaite (`total`). An interval holds every budget that the test does not reject (Fieller's idea,
Journal of the Royal Statistical Society B 16, 1954), so that it leaves 1 out exactly where the test says so. Where it reaches an
end of the reference's budgets, it is open there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
from scipy import optimize, stats
from scipy.interpolate import PchipInterpolator
from scipy.special import gammaln

from suite.analysis.statistics import (
    MINIMUM_FOR_INTERVAL,
    Interval,
    StatisticsError,
    TooFewSamplesError,
    holm,
)
from suite.runs.plan import ALPHA
from suite.runs.sweep import vertex

Verdict = Literal["worth it", "not worth it", "undecided"]
POINTS: Final = 257
"""Budgets, evenly spaced in the logarithm, at which the test is made; ends of intervals are read between them."""
DRAWS: Final = 100_000
LEAST_ALIKE: Final = math.log(0.1)
ALIKE: Final = math.log(1e4)
"""Logarithms of the degrees of freedom that all arms may add to what one tells of its noise; at the most they are pooled."""


@dataclass(frozen=True)
class Uncertain:
    """An estimate, the variance of its error, and the degrees of freedom with which that variance is known."""

    value: float = 0.0
    variance: float = 0.0
    df: float = math.inf


def total(parts: Iterable[Uncertain]) -> Uncertain:
    """A sum of independent parts, with the degrees of freedom of Satterthwaite (Biometrics Bulletin 2, 1946)."""
    found = [*parts]
    variance = math.fsum(part.variance for part in found)
    squares = math.fsum(part.variance**2 / part.df for part in found)
    df = variance**2 / squares if squares else math.inf
    return Uncertain(math.fsum(part.value for part in found), variance, df)


@dataclass(frozen=True, eq=False)
class Reference:
    """Final losses of the reference: budgets rising from above 0 [budgets], losses [seeds, budgets], lower is better.

    Raises:
        StatisticsError: A loss is not finite, shapes do not fit, or there are fewer than three budgets.
        TooFewSamplesError: There are fewer than six seeds.
    """

    budgets: np.ndarray
    losses: np.ndarray

    def __post_init__(self) -> None:
        if self.losses.ndim != 2 or self.losses.shape[1] != len(self.budgets) or len(self.budgets) < 3:
            raise StatisticsError(
                f"a reference has three budgets or more and a loss for each seed and budget, not shapes "
                f"{self.budgets.shape} and {self.losses.shape}"
            )
        if not np.isfinite(self.losses).all():
            raise StatisticsError(
                "a reference of which runs diverged is no reference: tune its learning rate"
            )
        if len(self.losses) < MINIMUM_FOR_INTERVAL:
            raise TooFewSamplesError(
                f"a net speedup takes {MINIMUM_FOR_INTERVAL} seeds or more and got {len(self.losses)}"
            )

    @cached_property
    def _curves(self) -> PchipInterpolator:
        return PchipInterpolator(np.log(self.budgets), self.losses, axis=1)

    @cached_property
    def _slopes(self) -> PchipInterpolator:
        return PchipInterpolator(np.log(self.budgets), self.losses.mean(0)).derivative()

    def at(self, budgets: np.ndarray) -> np.ndarray:
        """Losses at budgets within the range, [seeds, budgets]."""
        found: np.ndarray = self._curves(np.log(budgets))
        return found

    def slope(self, budgets: np.ndarray) -> np.ndarray:
        """Change of the mean loss with the logarithm of the budget, [budgets]."""
        found: np.ndarray = self._slopes(np.log(budgets))
        return found

    @property
    def ends(self) -> tuple[float, float]:
        """Least and largest budget."""
        return float(self.budgets[0]), float(self.budgets[-1])


@dataclass(frozen=True)
class NetSpeedup:
    """A method against the reference.

    speedup: net, with its interval. gain: loss of the reference in the same time minus that of the method; None where that time
    lies outside of the reference's budgets. p: two-sided, of "the net speedup is 1"; it is that of the nearest budget where
    1 lies outside of them, an upper bound since R falls.
    """

    speedup: Interval
    gain: Interval | None
    p: float


def net_speedup(
    reference: Reference,
    losses: Sequence[float],
    time: Uncertain,
    tuning: Uncertain = Uncertain(),
    level: float = 0.95,
) -> NetSpeedup:
    """The net speedup of a method; of a time ratio of 1 that is known, the budget that it is worth.

    Args:
        reference: Losses of the reference, by seed and budget.
        losses: Final losses of the method by the same seeds, lower is better; infinite where a run diverged.
        time: Logarithm of the seconds of the method's training over those of the reference's at budget 1.
        tuning: Error of the difference in loss that the choice of learning rates makes (its value is 0).
        level: Of the intervals.

    Returns:
        The method against the reference; 0 without a number where a run diverged.

    Raises:
        StatisticsError: The seeds do not pair up.
    """
    found = np.asarray(losses, dtype=np.float64)
    if found.shape != (len(reference.losses),):
        raise StatisticsError(
            f"the method has {len(found)} seeds and the reference {len(reference.losses)}; they are paired by seed"
        )
    if not np.isfinite(found).all():
        return NetSpeedup(Interval(0.0, 0.0, 0.0), None, 0.0)
    low, high = reference.ends
    own = math.exp(time.value)
    mean, half, p = (
        float(value[0]) for value in _test_at(reference, found, time, tuning, np.array([own]), level)
    )
    at = np.geomspace(low, high, POINTS)
    means, halves, _ = _test(reference, found, time, tuning, at, level)
    estimate, lowest, highest = (_crossing(at, means + side * halves, side) / own for side in (0, -1, 1))
    gain = Interval(mean, mean - half, mean + half) if low <= own <= high else None
    return NetSpeedup(Interval(estimate, lowest, highest), gain, p)


def net_speedups(
    reference: Reference, losses: np.ndarray, times: np.ndarray, tuning: Uncertain = Uncertain()
) -> list[NetSpeedup]:
    """What `net_speedup` says, without a gain, at time ratios that are known.

    Args:
        reference: Losses of the reference, by seed and budget.
        losses: As for `net_speedup`, [seeds].
        times: Seconds of the method's training over those of the reference's at budget 1, [times].
        tuning: As for `net_speedup`.

    Returns:
        One a time.
    """
    worth = net_speedup(reference, losses.tolist(), Uncertain(), tuning).speedup
    p = np.zeros(len(times))
    if np.isfinite(losses).all():
        p = _test_at(reference, losses, Uncertain(), tuning, times, level=0.95)[2]
    return [
        NetSpeedup(Interval(worth.estimate / t, worth.low / t, worth.high / t), None, float(one))
        for t, one in zip(times, p, strict=True)
    ]


def _test_at(
    reference: Reference,
    losses: np.ndarray,
    time: Uncertain,
    tuning: Uncertain,
    own: np.ndarray,
    level: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`_test` at the budgets nearest to times [points]; where one lies outside of them, p is an upper bound."""
    low, high = reference.ends
    mean, half, p = _test(reference, losses, time, tuning, np.clip(own, low, high), level)
    outside = (own < low) | (own > high)
    # what lies beyond the budgets may be on the other side of what the nearest one says
    return mean, half, np.where(outside & ((mean > 0) != (own < low)), 1.0, p)


def _test(
    reference: Reference, losses: np.ndarray, time: Uncertain, tuning: Uncertain, at: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reference minus method at budgets [points]: mean over seeds, half its interval, and the p of "it is 0"."""
    gaps = reference.at(at) - losses[:, None]
    n = len(losses)
    parts = (
        (gaps.var(0, ddof=1) / n, n - 1.0),
        (np.full(len(at), tuning.variance), tuning.df),
        (reference.slope(at) ** 2 * time.variance, time.df),
    )
    tiny = np.finfo(np.float64).tiny
    variance = np.maximum(np.sum([part for part, _ in parts], axis=0), tiny)
    df = variance / np.maximum(
        np.sum([part / variance * part / known for part, known in parts], axis=0), tiny
    )
    error = np.sqrt(variance)
    mean = gaps.mean(0)
    return mean, stats.t.ppf(0.5 + level / 2, df) * error, 2 * stats.t.sf(np.abs(mean) / error, df)


def _crossing(at: np.ndarray, values: np.ndarray, side: int) -> float:
    """The budget at which values [points] cross 0: for side -1 a lower end, for 1 an upper end, for 0 the estimate.

    Beyond the reference's budgets the estimate is 0 or infinite, and an end is what is known: the lower one at most the largest
    budget, the upper one at least the smallest. Of several crossings the outermost counts.
    """
    behind = values > 0  # the reference is worse than the method there
    if behind.all():
        return float(at[-1]) if side < 0 else math.inf
    if not behind.any():
        return float(at[0]) if side > 0 else 0.0
    last = int(np.flatnonzero(~behind)[0] if side < 0 else np.flatnonzero(behind)[-1] + 1) - 1
    if last < 0:
        return 0.0
    if last == len(at) - 1:
        return math.inf
    share = values[last] / (values[last] - values[last + 1])
    return float(at[last] * (at[last + 1] / at[last]) ** share)


@dataclass(frozen=True, eq=False)
class Method:
    """Final losses of a method by the seeds of a reference [seeds], and the error that the choice of its rate makes."""

    losses: np.ndarray
    choice: Uncertain = Uncertain()


def net_ratios(ratio: Uncertain, times: np.ndarray) -> list[NetSpeedup]:
    """Net speedups of one method over that of another at time ratios.

    Args:
        ratio: Logarithm of the worth of the one over that of the other, with the error of both and of the times.
        times: Seconds of the one's training over those of the other's, [times].

    Returns:
        One a time, each with the p of "it is 1", without a gain.
    """
    middle, error = ratio.value - np.log(times), math.sqrt(ratio.variance)
    half = float(stats.t.ppf(0.975, ratio.df)) * error
    ends = np.exp([middle, middle - half, middle + half]).tolist()
    p = (2 * stats.t.sf(np.abs(middle) / error, ratio.df)).tolist()
    return [
        NetSpeedup(Interval(own, low, high), None, one) for own, low, high, one in zip(*ends, p, strict=True)
    ]


def worth_ratio(reference: Reference, one: Method, other: Method, choice: Uncertain) -> Uncertain | None:
    """The logarithm of what one method is worth over what another is, both read on one reference and paired by its seeds.

    The logarithm of a budget moves by an error of the loss over the slope of the reference there (delta method), so that what
    both share, seeds and the reference's own error, goes out of the difference as far as the slopes are alike.

    Args:
        reference: Losses of the reference, by seed and budget.
        one: The method.
        other: The one that it is held against.
        choice: Error of the reference's loss that the choice of its rate makes.

    Returns:
        The ratio with its error; None where either lies beyond the reference's budgets.
    """
    if not all(np.isfinite(method.losses).all() for method in (one, other)):
        return None
    at = np.geomspace(*reference.ends, POINTS)
    budgets = np.array(
        [_crossing(at, (reference.at(at) - method.losses[:, None]).mean(0), 0) for method in (one, other)]
    )
    if not ((budgets > 0) & np.isfinite(budgets)).all() or not (reference.slope(budgets) < 0).all():
        return None
    losses, n = np.column_stack([one.losses, other.losses]), len(one.losses)
    steep = 1 / reference.slope(budgets)
    apart = ((losses - reference.at(budgets)) * steep) @ np.array([1.0, -1.0])
    ratio = math.log(budgets[0] / budgets[1])
    parts = (
        Uncertain(ratio, max(float(apart.var(ddof=1)) / n, float(np.finfo(np.float64).tiny)), n - 1.0),
        replace(choice, variance=choice.variance * float(steep[0] - steep[1]) ** 2),
        *(
            replace(method.choice, variance=method.choice.variance * own**2)
            for method, own in zip((one, other), steep.tolist(), strict=True)
        ),
    )
    return total(parts)


def beats_all(words: Iterable[Verdict | None]) -> Verdict:
    """One verdict of those against each alternative: worth it against all of them; not worth it, against any; else undecided."""
    found = set(words)
    if "not worth it" in found:
        return "not worth it"
    return "worth it" if found == {"worth it"} else "undecided"


def verdicts(found: Mapping[str, NetSpeedup]) -> dict[str, Verdict]:
    """What is worth it, by Holm's correction over the methods of a setting and link.

    Args:
        found: By method, all against one and the same alternative.

    Returns:
        A verdict a method: decided where its adjusted p is at most `ALPHA`, by the side on which its net speedup lies. With this
        chance any of the verdicts on methods that are just as good as the alternative is wrong.
    """
    adjusted = holm([one.p for one in found.values()])
    words: dict[str, Verdict] = {}
    for (label, one), p in zip(found.items(), adjusted, strict=True):
        words[label] = (
            "undecided" if p > ALPHA else "worth it" if one.speedup.estimate > 1 else "not worth it"
        )
    return words


@dataclass(frozen=True)
class Trials:
    """What tuning an arm tried.

    losses: [rates][seeds], not finite where a run failed; of a rate with each of the options tuned beside it in turn. Rates of a
    second stage have more seeds than the others. chosen: the index of the best. rates: those tried, ascending, where a vertex was
    scored; else none. cliff: whether it was although a rate beside the best had collapsed (`suite.runs.sweep.collapsed`).
    """

    losses: Sequence[Sequence[float]]
    chosen: int
    rates: Sequence[float] = ()
    cliff: bool = False


def tuning_error(trials: Trials, noise: Uncertain, seed: int = 0) -> Uncertain:
    """How far the loss at the chosen rate may lie from that at the rate which other tuning seeds would have chosen.

    The tuning is drawn again: another tuning's means lie around these with the noise of both, the best of them is chosen, and its
    loss is compared with that of the rate in use. Where some rates have more seeds, so has the other tuning in its second stage,
    for as many rates, those that are the best of its first. Where the vertex was scored, which is the best rate of these
    means, it is held against the vertices of tunings whose means lie around them with their noise; beside a cliff against
    best rates, its own loss being on the straight line between the means.

    Args:
        trials: Of one arm.
        noise: Variance of one loss of this arm, apart from what its rate and the seed make (`tuning_noise`).
        seed: Of the draws.

    Returns:
        The variance of the loss that the choice makes, with the degrees of freedom of `noise`.
    """
    rng = np.random.default_rng(seed)
    if trials.rates and not trials.cliff:
        return Uncertain(0.0, float((_regrets(trials, noise, rng) ** 2).mean()), noise.df)
    finite = [values for values in trials.losses if np.isfinite(values).all()]
    means, seeds = np.array([np.mean(values) for values in finite]), np.array([*map(len, finite)])
    first, whole = seeds.min(), seeds.max()
    shape = DRAWS, len(means)
    if first == whole:
        drawn = means + math.sqrt(2 * noise.variance / whole) * rng.standard_normal(shape)
    else:
        truth = means + np.sqrt(noise.variance / seeds) * rng.standard_normal(shape)
        early = truth + math.sqrt(noise.variance / first) * rng.standard_normal(shape)
        late = truth + math.sqrt(noise.variance / (whole - first)) * rng.standard_normal(shape)
        places = early.argsort(1).argsort(1)
        entered = places < np.count_nonzero(seeds == whole)
        drawn = np.where(entered, (first * early + (whole - first) * late) / whole, np.inf)
    in_use = _beside_a_cliff(trials) if trials.cliff else np.mean(trials.losses[trials.chosen])
    change = means[drawn.argmin(1)] - in_use
    return Uncertain(0.0, float((change**2).mean()), noise.df)


def _beside_a_cliff(trials: Trials) -> float:
    """The loss at the vertex that was scored, on the straight line between the means of the best rate and its neighbours."""
    options = len(trials.losses) // len(trials.rates)
    near = slice(trials.chosen - options, trials.chosen + options + 1, options)
    own, x = trials.chosen // options, np.log(trials.rates)
    three, means = x[own - 1 : own + 2], [float(np.mean(values)) for values in trials.losses[near]]
    return float(np.interp(vertex(three, means), three, means))


def _regrets(trials: Trials, noise: Uncertain, rng: np.random.Generator) -> np.ndarray:
    """Losses at the vertices of tunings like this one less that at its own, were the curve through its means true, [draws].

    The curve is the parabola of the vertex in use; beyond its three rates, and with other options, it is straight between means.
    Where a neighbour is far worse, the parabola would dip below all that was seen: nowhere is the curve more than two standard
    errors below the best mean. A tuning that chooses an end of its grid lets it grow: so does one here, by a rate of which the
    parabola tells the loss.
    """
    tried = np.log(trials.rates)
    means = np.array([np.mean(values) for values in trials.losses]).reshape(
        len(tried), -1
    )  # [rates, options]
    own, one = divmod(trials.chosen, means.shape[1])
    near = tried[own - 1 : own + 2]
    parabola = np.poly1d(np.polyfit(near, means[own - 1 : own + 2, one], 2))
    step = float(np.diff(tried).mean())
    x = np.array([tried[0] - step, *tried, tried[-1] + step])
    means = np.pad(means, ((1, 1), (0, 0)), constant_values=np.nan)
    means[[0, -1], one] = parabola(x[[0, -1]])
    spread = math.sqrt(noise.variance / len(trials.losses[trials.chosen]))
    least = means[own + 1, one] - 2 * spread
    drawn = means + spread * rng.standard_normal((DRAWS, *means.shape))
    rate, option = np.unravel_index(np.nanargmin(drawn.reshape(DRAWS, -1), axis=1), means.shape)
    inner = rate.clip(1, len(x) - 2)
    three = inner[:, None] + np.arange(-1, 2)
    places = vertex(x[three].T, drawn[np.arange(DRAWS)[:, None], three, option[:, None]].T)
    at = np.where((rate == inner) & np.isfinite(places), places, x[rate])
    losses = np.empty(DRAWS)
    for number, row in enumerate(means.T):
        here, ended = option == number, np.isfinite(row)
        losses[here] = np.interp(at[here], x[ended], row[ended])
    here = (option == one) & (near[0] < at) & (at < near[2])
    losses[here] = parabola(at[here])
    in_use = parabola(vertex(near, means[own : own + 3, one]))
    found: np.ndarray = np.maximum(losses, least) - max(in_use, least)
    return found


def tuning_noise(arms: Iterable[Trials]) -> list[Uncertain]:
    """For every arm the variance of a loss beyond what its rate and its seed explain: its own residuals, moderated by all arms.

    The residuals are of the two best rates, between which the choice is, of those with the most seeds. Rates far off may be
    noisier, near divergence, or quieter, where nothing is learnt; a run of one that collapses says nothing of the best.

    A few seeds show little of an arm, and arms differ. So variances of arms are taken to come from a scaled inverse chi-squared
    distribution, which all of them tell, and an arm's is its mean given the arm's residuals (Smyth, Statistical Applications in
    Genetics and Molecular Biology 3, 2004): where arms are alike all are pooled, where they are not each keeps its own.

    Args:
        arms: Rates at which a run failed are left out.

    Returns:
        One an arm, with its degrees of freedom; of an arm tuned on one seed, what the others tell; nothing where all were.
    """
    sums = np.array([_residuals(trials) for trials in arms]).reshape(-1, 2)
    squares, df = sums.T
    if not squares.any():
        return [Uncertain() for _ in sums]
    known, variance = _prior(squares[df > 0], df[df > 0])
    own = (known * variance + squares) / (known + df)
    return [
        Uncertain(0.0, *one)
        for one in zip(own.tolist(), np.minimum(known + df, df.sum()).tolist(), strict=True)
    ]


def _residuals(trials: Trials) -> tuple[float, float]:
    """Sum of squares of the two best rates beyond rate and seed, of those with the most seeds, and its degrees of freedom."""
    finite = [values for values in trials.losses if np.isfinite(values).all()]
    most = max(map(len, finite), default=0)
    table = np.array(sorted((values for values in finite if len(values) == most), key=np.mean)[:2], ndmin=2)
    if min(table.shape) < 2:
        return 0.0, 0.0
    residual = table - table.mean(1, keepdims=True) - table.mean(0, keepdims=True) + table.mean()
    return float((residual**2).sum()), most - 1.0


def _prior(squares: np.ndarray, df: np.ndarray) -> tuple[float, float]:
    """Degrees of freedom and scale of the distribution of variances under which sums of squares [arms] are the likeliest."""
    pooled = squares.sum() / df.sum()

    def unlikely(logs: np.ndarray) -> float:
        known, scale = np.exp(logs)
        own, all_of = known / 2, (known + df) / 2
        spread = known * scale * pooled
        each = gammaln(all_of) - gammaln(own) + own * np.log(spread) - all_of * np.log(spread + squares)
        return -float(each.sum())

    found = [
        optimize.minimize(
            unlikely,
            (start, min(0.0, start - 3)),
            method="Nelder-Mead",
            bounds=[(LEAST_ALIKE, ALIKE), (-30.0, 5.0)],
            options={"xatol": 1e-7, "fatol": 1e-10},
        )
        for start in (0.0, 3.0, ALIKE)
    ]
    known, scale = np.exp(min(found, key=lambda one: one.fun).x)
    return float(known), float(scale * pooled)


def time_ratio(sessions: Sequence[Sequence[float]]) -> Uncertain:
    """The logarithm of a ratio of seconds that was measured in the rounds of one session or several.

    Args:
        sessions: For each session the ratio by round.

    Returns:
        Mean of the sessions' means. The error is that between sessions where there are two or more, and never less than the
        rounds alone say.

    Raises:
        TooFewSamplesError: A session has fewer than six rounds.
    """
    logs = [np.log(np.asarray(ratios, dtype=np.float64)) for ratios in sessions]
    if not logs or min(map(len, logs)) < MINIMUM_FOR_INTERVAL:
        raise TooFewSamplesError(
            f"a ratio of seconds takes sessions of {MINIMUM_FOR_INTERVAL} rounds or more"
        )
    means = np.array([own.mean() for own in logs])
    within = math.fsum(float(own.var(ddof=1)) / len(own) for own in logs) / len(logs) ** 2
    of_rounds = Uncertain(float(means.mean()), within, float(sum(len(own) - 1 for own in logs)))
    if len(logs) == 1:
        return of_rounds
    between = Uncertain(float(means.mean()), float(means.var(ddof=1)) / len(means), len(means) - 1.0)
    return max(of_rounds, between, key=lambda one: one.variance)
