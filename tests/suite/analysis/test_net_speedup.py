"""Net speedup at equal time: exact where nothing is noisy, intervals that cover, verdicts that agree with them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats

from suite.analysis import net_speedup as net_speedup_module
from suite.analysis.equal_time import Trained
from suite.analysis.net_speedup import (
    Method,
    NetSpeedup,
    Reference,
    Trials,
    Uncertain,
    net_speedup,
    time_ratio,
    total,
    tuning_error,
    tuning_noise,
)
from suite.analysis.statistics import StatisticsError, TooFewSamplesError
from suite.runs.sweep import vertex

BUDGETS = np.array([1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.71, 1.0, 1.41])


def curve(budget: np.ndarray | float) -> np.ndarray:
    """Losses that fall and level off, as those of a language model: bits a byte."""
    return np.asarray(2.6 + 0.9 * np.asarray(budget, dtype=np.float64) ** -0.45)


def reference(rng: np.random.Generator) -> tuple[Reference, np.ndarray]:
    """A reference of twelve seeds, with what they have in common, [seeds]."""
    shared = 0.05 * rng.standard_normal(12)
    losses = curve(BUDGETS) + shared[:, None] + 0.02 * rng.standard_normal((12, len(BUDGETS)))
    return Reference(BUDGETS, losses), shared


def exact() -> Reference:
    return Reference(BUDGETS, np.tile(curve(BUDGETS), (6, 1)))


def net_ratio(
    ladder: Reference, one: Method, other: Method, choice: Uncertain, time: Uncertain
) -> NetSpeedup | None:
    arms = [
        Trained(
            ("", "", 4), "", None, tuple(range(len(own.losses))), own.losses, (own.choice, choice), ladder
        )
        for own in (one, other)
    ]
    return arms[0].over_other(arms[1], time)


@pytest.mark.parametrize(
    ("worth", "step_speedup", "tuned_apart"),
    [
        pytest.param(0.45, 4.0, 0.0, marks=pytest.mark.full),
        pytest.param(0.9, 1.15, 0.0, marks=pytest.mark.full),
        (0.3, 3.0, 0.03),
        pytest.param(0.7, 1 / 0.7, 0.02, marks=pytest.mark.full),
    ],
)
def test_intervals_cover(worth: float, step_speedup: float, tuned_apart: float) -> None:
    """Nominal 95 %, over noise of seeds, of seconds, and of the rates that tuning happens to choose."""
    rng = np.random.default_rng(7)
    truth, inside, agree = worth * step_speedup, 0, 0
    repeats, rounds, jitter = 600, 8, 0.04
    for _ in range(repeats):
        ladder, shared = reference(rng)
        chosen = tuned_apart * rng.standard_normal()
        losses = curve(worth) + shared + 0.03 * rng.standard_normal(12) + chosen
        ratios = [math.exp(-math.log(step_speedup) + jitter * rng.standard_normal()) for _ in range(rounds)]
        found = net_speedup(ladder, losses.tolist(), time_ratio([ratios]), Uncertain(0.0, tuned_apart**2, 30))
        inside += found.speedup.low <= truth <= found.speedup.high
        agree += (found.p < 0.05) == (not found.speedup.low <= 1 <= found.speedup.high)
    assert 0.94 <= inside / repeats <= 0.975
    assert agree / repeats > 0.995  # the verdict and the interval are one test, but for several crossings


@pytest.mark.parametrize(
    ("worths", "tuned_apart"),
    [
        ((0.7, 0.5), 0.03),
        pytest.param((0.9, 0.3), 0.0, marks=pytest.mark.full),
        pytest.param((0.4, 0.45), 0.02, marks=pytest.mark.full),
    ],
)
def test_intervals_of_ratios_cover(worths: tuple[float, float], tuned_apart: float) -> None:
    """Nominal 95 %, over noise of seeds, of seconds, and of the rates of all three that tuning happens to choose."""
    rng = np.random.default_rng(11)
    truth, inside, repeats = worths[0] / worths[1] / 0.6, 0, 600
    for _ in range(repeats):
        shared = 0.05 * rng.standard_normal(12)
        losses = curve(BUDGETS) + shared[:, None] + 0.02 * rng.standard_normal((12, len(BUDGETS)))
        ladder = Reference(BUDGETS, losses + tuned_apart * rng.standard_normal())
        methods = [
            Method(
                curve(worth) + shared + 0.03 * rng.standard_normal(12) + tuned_apart * rng.standard_normal(),
                Uncertain(0.0, tuned_apart**2, 10),
            )
            for worth in worths
        ]
        ratios = np.exp(math.log(0.6) + 0.04 * rng.standard_normal(8)).tolist()
        found = net_ratio(ladder, *methods, Uncertain(0.0, tuned_apart**2, 10), time_ratio([ratios]))
        inside += found.speedup.low <= truth <= found.speedup.high
    assert 0.935 <= inside / repeats <= 0.98


def test_time_ratios_cover_when_sessions_differ() -> None:
    rng, inside, repeats = np.random.default_rng(3), 0, 2000
    for _ in range(repeats):
        sessions = [
            [math.exp(-1 + shift + 0.03 * rng.standard_normal()) for _ in range(6)]
            for shift in 0.05 * rng.standard_normal(3)
        ]
        found = time_ratio(sessions)
        inside += abs(found.value + 1) <= stats.t.ppf(0.975, found.df) * math.sqrt(found.variance)
    assert inside / repeats >= 0.94


def test_the_error_of_tuning_is_that_of_the_rate_in_use() -> None:
    known = Uncertain(0, 0.03**2, 40)
    apart = [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0], [math.nan, math.nan]]
    clear = tuning_error(Trials(apart, chosen=1), known)
    assert (clear.variance, clear.df) == (0.0, 40)
    assert tuning_error(Trials(apart, chosen=2), known).variance == 1.0


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param((0.06, 0.06, 0.06, 0.06, 0.06), id="even"),
        pytest.param(
            (0.09, 0.06, 0.05, 0.06, 0.14), id="noisier far off, near divergence", marks=pytest.mark.full
        ),
        pytest.param((0.02, 0.06, 0.08, 0.06, 0.02), id="quieter far off, where nothing is learnt"),
    ],
)
def test_the_error_of_tuning_is_never_told_too_small_whatever_rates_far_off_do(
    noise: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of trials alone: nothing is told of the noise but what they show."""
    monkeypatch.setattr(net_speedup_module, "DRAWS", 4000)
    rng = np.random.default_rng(4)
    rates = np.array([0.30, 0.08, 0.0, 0.06, 0.40])

    def tuned() -> Trials:
        drawn = rates[:, None] + np.array(noise)[:, None] * rng.standard_normal((5, 4))
        entered = drawn[:, :2].mean(1).argsort()[:2]
        losses = [list(row) if rate in entered else list(row[:2]) for rate, row in enumerate(drawn)]
        return Trials(losses, int(min(entered, key=lambda rate: drawn[rate].mean())))

    tried = [tuned() for _ in range(400)]
    lost = rates[[one.chosen for one in tried]]
    shown = tuning_noise(tried)
    told = np.mean(
        [
            tuning_error(one, noise, seed).variance
            for seed, (one, noise) in enumerate(zip(tried[:100], shown[:100], strict=True))
        ]
    )
    assert np.mean(lost**2) <= told <= 2.5 * np.mean(lost**2)


def loss_of(rate: np.ndarray, steep: float, skew: float) -> np.ndarray:
    """A smooth convex loss by the logarithm of the rate, least, and 0, at 0; steeper on one side."""
    return np.asarray(steep * (np.exp(skew * rate) - 1 - skew * rate) / skew**2)


def tuned_by_growing(
    run: Callable[[float], np.ndarray], factor: float, vertices: bool
) -> tuple[Trials, float]:
    """Trials of a grid of three rates that grows while its end is the best, thrice at most; and the rate scored.

    run: losses [seeds] at the logarithm of a rate.
    """
    low, high, tried = -1, 1, dict[int, np.ndarray]()
    for growths in range(4):
        for at in range(low, high + 1):
            if at not in tried:
                tried[at] = run(at * math.log(factor))
        means = np.array([tried[at].mean() for at in range(low, high + 1)])
        best = int(means.argmin())
        if growths < 3:
            low -= best == 0
            high += best == len(means) - 1
    losses = np.array([tried[at] for at in range(low, high + 1)])
    grid, means = math.log(factor) * np.arange(low, high + 1), losses.mean(1)
    best = int(means.argmin())
    inner = vertices and 0 < best < len(grid) - 1
    rate = vertex(grid[best - 1 : best + 2], means[best - 1 : best + 2]) if inner else grid[best]
    return Trials(losses, best, np.exp(grid).tolist() if inner else ()), float(rate)


@dataclass(frozen=True)
class Simulated:
    """An arm: its loss at the best rate, that rate's logarithm, how its loss rises beside it, and the noise of a run.

    collapses: a run at a rate more than e^0.8 above the best ends 5 worse with a chance of one half.
    """

    truth: float
    best: float
    steep: float
    skew: float
    sd: float
    collapses: bool

    def loss(self, rate: float) -> float:
        """Expected, at the logarithm of a rate."""
        beyond = 2.5 if self.collapses and rate > self.best + 0.8 else 0.0
        return self.truth + float(loss_of(np.array(rate - self.best), self.steep, self.skew)) + beyond

    def run(self, rate: float, rng: np.random.Generator) -> np.ndarray:
        """Losses of two tuning seeds."""
        collapsed = self.collapses and rate > self.best + 0.8
        of_seeds = np.where(rng.random(2) < 0.5, 2.5, -2.5) if collapsed else 0.0
        return self.loss(rate) + of_seeds + self.sd * rng.standard_normal(2)


def covered(
    factor: float,
    vertices: bool,
    steepness: float,
    panels: int,
    unlike: float = 0.0,
    collapse: float = 0.0,
) -> tuple[float, float, float]:
    """Of panels of ten arms, in pairs at their best rates, and twelve seeds: the share of intervals that hold the difference; how
    many times its root mean square the error of tuning is told; and the median length of an interval.

    steepness: median over arms of how far the loss rises a factor of 2 from the best rate on both sides together, in sd of a run.
    In published tunings of 2 seeds it is 1.6 to 5.4, and varies by about 2 between the arms of one. unlike: sd over arms of the
    logarithm of the noise. collapse: share of arms that collapse above their best rate.
    """
    rng, sd, inside, told, lost = np.random.default_rng(8), 0.05, 0, list[float](), list[float]()
    lengths: list[float] = []
    for _ in range(panels):
        arms, tried, rates = list[Simulated](), list[Trials](), list[float]()
        for truth in rng.standard_normal(10):
            best, skew = rng.uniform(-0.7, 0.7), rng.choice([-0.5, 0.5])
            steep = steepness * sd / math.log(2) ** 2 * math.exp(0.6 * rng.standard_normal())
            own = sd * math.exp(unlike * rng.standard_normal()) if unlike else sd
            arm = Simulated(truth, best, steep, skew, own, bool(collapse) and rng.random() < collapse)
            trials, rate = tuned_by_growing(lambda x, arm=arm: arm.run(x, rng), factor, vertices)
            arms.append(arm)
            tried.append(trials)
            rates.append(rate)
        errors = [tuning_error(*one) for one in zip(tried, tuning_noise(tried), strict=True)]
        scored = [arm.loss(rate) for arm, rate in zip(arms, rates, strict=True)]
        told += [one.variance for one in errors]
        lost += [loss - arm.truth for loss, arm in zip(scored, arms, strict=True)]
        ended = [loss + arm.sd * rng.standard_normal(12) for loss, arm in zip(scored, arms, strict=True)]
        for one, other in zip(range(0, 10, 2), range(1, 10, 2), strict=True):
            plain = Reference(np.array([0.5, 1.0, 2.0]), np.tile(ended[one][:, None], 3))
            error = total([errors[one], errors[other]])
            gain = net_speedup(plain, ended[other].tolist(), Uncertain(), error).gain
            inside += gain.low <= arms[one].truth - arms[other].truth <= gain.high
            lengths.append(gain.high - gain.low)
    times = math.sqrt(np.mean(told) / np.mean(np.square(lost)))
    return inside / panels / 5, times, float(np.median(lengths))


@pytest.mark.parametrize(
    "steepness", [3.0, *(pytest.param(value, marks=pytest.mark.full) for value in (1.5, 6.0, 10.0))]
)
def test_intervals_cover_the_difference_at_the_best_rates_where_the_vertex_is_scored(
    steepness: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And do not where the best of a coarse grid is, which no interval from trials of that grid can mend; but hardly so at a
    steepness of 1.5, where no rate is much worse than its neighbour (0.94 over 400 panels). Over 2,000 panels and with more draws
    the error of tuning is told 1.26 times too large at 1.5, and 0.97 at 10, where a parabola's own error shows; intervals cover.
    """
    monkeypatch.setattr(net_speedup_module, "DRAWS", 400)
    share, times, _ = covered(2.0, True, steepness, panels=100)
    assert 0.93 <= share <= 0.99
    assert 1.0 <= times <= 1.5
    assert covered(10**0.5, False, steepness, panels=40)[0] < 0.93


@pytest.mark.parametrize(
    ("steepness", "unlike", "collapse"),
    [
        (3.0, 1.5, 0.4),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in ((1.5, 2.0, 0.0), (6.0, 1.0, 0.4), (10.0, 0.0, 0.4))
        ),
    ],
)
def test_intervals_cover_where_arms_are_unlike_and_some_collapse_above_their_best_rate(
    steepness: float, unlike: float, collapse: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_speedup_module, "DRAWS", 400)
    share, _, length = covered(2.0, True, steepness, panels=60, unlike=unlike, collapse=collapse)
    assert 0.925 <= share <= 0.99
    if collapse:
        without = covered(2.0, True, steepness, panels=20, unlike=unlike)[2]
        assert length < 1.3 * without, "what collapses far from the best rate widens nothing"


def test_the_error_of_a_vertex_is_that_of_a_parabola_beside_options_and_failures() -> None:
    """Means of variance v about a parabola of second difference c end z^2 v / (4 c) above its vertex."""
    noise = Uncertain(0.0, 2e-4, 40)
    losses = [[9.0] * 2, [2.0] * 2, [8.0] * 2, [1.0] * 2, [7.0] * 2, [2.0] * 2, [math.nan] * 2, [4.0] * 2]
    for tried in (
        Trials(losses, chosen=3, rates=[1.0, 2.0, 4.0, 8.0]),
        Trials(losses[1::2], chosen=1, rates=[1.0, 2.0, 4.0, 8.0]),
    ):
        assert tuning_error(tried, noise).variance == pytest.approx(3 * (1e-4 / 4 / 2) ** 2, rel=0.05, abs=0)


@pytest.mark.parametrize("cliff", [False, True])
def test_a_neighbour_that_collapsed_does_not_make_the_error_of_a_vertex(cliff: bool) -> None:
    """The loss beside it is known to hundredths: the parabola to 45 dips 5 below what was seen. Told of the cliff, the vertex,
    which lies half-way to the rate below, is as much worse as the straight line says: half of what that is.
    """
    tried = Trials([[0.7, 0.8], [0.5, 0.6], [0.33, 0.35], [3.0, 80.0]], 2, [1.0, 2.0, 4.0, 8.0], cliff)
    error = tuning_error(tried, Uncertain(0.0, 0.01**2, 2)).variance
    assert error == pytest.approx(((0.55 - 0.34) / 2) ** 2, rel=0.05) if cliff else error < 0.1**2


def table(rng: np.random.Generator, sd: float = 0.1, rates: int = 5, seeds: int = 2) -> Trials:
    """Losses with something of every rate and of every seed."""
    shared = 3 * rng.standard_normal((rates, 1)) + rng.standard_normal((1, seeds))
    return Trials(shared + sd * rng.standard_normal((rates, seeds)), 0)


def test_noise_of_arms_that_are_alike_is_pooled_without_what_rates_and_seeds_explain() -> None:
    rng = np.random.default_rng(1)
    arms = [table(rng) for _ in range(200)]
    arms.append(Trials([[1.0, math.inf], [math.inf, 2.0]], 0))  # failures say nothing about noise
    arms.append(Trials([[1.0], [2.0]], 0))  # nor does one seed
    found = tuning_noise(arms)
    assert [one.variance for one in found] == pytest.approx([0.01] * 202, rel=0.2)
    assert {one.df for one in found} == {200}, "of the two best rates"
    assert [one.variance for one in tuning_noise(arms[-1:])] == [0.0]
    assert tuning_noise([]) == []


def test_arms_that_are_unlike_keep_their_own_noise() -> None:
    """By how far arms differ, their own residuals weigh more; never less than what they themselves show counts as known."""
    rng = np.random.default_rng(2)
    sds = np.repeat([0.01, 1.0], 30)
    found = tuning_noise([table(rng, sd, seeds=6) for sd in sds])
    quiet, noisy = ([one.variance for one in part] for part in (found[:30], found[30:]))
    assert max(quiet) < 0.001 < 0.1 < min(noisy)
    assert all(5 < one.df < 6 for one in found)


def test_the_prior_of_variances_is_found_again() -> None:
    """Of variances drawn from a scaled inverse chi-squared distribution with 8 degrees of freedom and scale 0.04."""
    rng = np.random.default_rng(3)
    variances = 8 * 0.04 / rng.chisquare(8, 3000)
    squares = variances * rng.chisquare(3, 3000)
    known, scale = net_speedup_module._prior(squares, np.full(3000, 3.0))
    assert known == pytest.approx(8, rel=0.15)
    assert scale == pytest.approx(0.04, rel=0.05)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(StatisticsError, match="paired by seed"):
        net_speedup(exact(), [1.0] * 5, Uncertain())
    with pytest.raises(StatisticsError, match="runs diverged is no reference"):
        Reference(BUDGETS, np.full((6, 7), np.inf))
    with pytest.raises(StatisticsError, match="three budgets or more"):
        Reference(BUDGETS[:2], np.zeros((6, 2)))
    with pytest.raises(TooFewSamplesError, match="6 rounds or more"):
        time_ratio([[0.5] * 5])
    with pytest.raises(TooFewSamplesError, match="6 seeds or more"):
        Reference(BUDGETS, np.zeros((5, 7)))
