"""Coverage by simulation of the censored median, the speedup at equal accuracy and fronts; their known values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from suite.analysis import statistics as s
from suite.analysis.statistics import equal_loss_speedup, pareto_front

LADDER = (5.0, 7.1, 10.0, 14.1)


@pytest.mark.parametrize(("n", "limit"), [(6, 2.0), (12, 1.0)])
def test_a_censored_median_covers_though_some_never_arrive(n, limit):
    """Times beyond the limit are misses; the truth is the median of the times, ln 2, or inf where most miss."""
    rng = np.random.default_rng([1, n])
    hits = 0
    for _ in range(3000):
        times = rng.exponential(1.0, n)
        found = s.censored_median_interval(np.where(times > limit, np.inf, times))
        hits += found.low <= math.log(2) <= found.high
    assert hits / 3000 >= 0.94


def test_a_censored_median_counts_what_arrived():
    found = s.censored_median_interval([1.0, 2.0, 3.0, math.inf, math.inf, math.inf])
    assert (found.estimate, found.low, found.high) == (math.inf, 1.0, math.inf)
    assert found.method == "order statistics, 95%, 3 of 6 reached it"
    assert s.censored_median_interval([math.inf] * 6).estimate == math.inf
    values = [5.0, 1.0, 4.0, 2.0, 6.0, 3.0, 9.0]
    plain, censored = s.median_interval(values), s.censored_median_interval(values)
    assert (plain.estimate, plain.low, plain.high) == (censored.estimate, censored.low, censored.high)
    with pytest.raises(s.StatisticsError, match="nan and -inf"):
        s.censored_median_interval([1.0] * 6 + [math.nan])


def ladder(rng, n, true_s, slope, spread):
    """(reference, rungs) whose truth is known: the method has the reference's accuracy at `true_s` seconds."""
    split = rng.normal(0, 1, n)
    rungs = [90 + slope * math.log(t / true_s) + split + rng.normal(0, spread, n) for t in LADDER]
    return 90 + split + rng.normal(0, spread, n), rungs


@pytest.mark.parametrize(("true_s", "slope"), [(8.0, 2.0), (8.0, 0.7), (20.0, 3.0), (3.0, 3.0), (14.0, 1.0)])
def test_speedup_at_equal_accuracy_covers_inside_and_beyond_the_ladder(true_s, slope):
    rng = np.random.default_rng([4, int(true_s * 10), int(slope * 10)])
    hits = 0
    for _ in range(600):
        found = equal_loss_speedup(20.0, *arranged(ladder(rng, 6, true_s, slope, 0.3))).speedup
        hits += found.low <= 20.0 / true_s <= found.high
    assert hits / 600 >= 0.94 - 2 * 0.009


def arranged(drawn):
    reference, rungs = drawn
    return reference, LADDER, rungs


def test_speedup_at_equal_accuracy_of_exact_data():
    noise = np.linspace(-1e-6, 1e-6, 6)
    rungs = [90 + math.log(t / 10.0) + noise * rank for rank, t in enumerate(LADDER)]
    found = equal_loss_speedup(20.0, [90.0] * 6, LADDER, rungs)
    assert found.speedup.estimate == pytest.approx(2.0)
    assert found.speedup.low == pytest.approx(2.0, rel=0.002)
    assert found.speedup.high == pytest.approx(2.0, rel=0.002)
    assert (found.censored, found.speedup.n) == ("", 6)
    falling = equal_loss_speedup(20.0, [-90.0] * 6, LADDER, [-r for r in rungs], direction="lower")
    assert falling.speedup.estimate == pytest.approx(2.0)


def test_speedup_at_equal_accuracy_is_censored_beyond_the_ladder():
    noise = np.linspace(-0.01, 0.01, 6)
    never = equal_loss_speedup(20.0, [95.0] * 6, LADDER, [90 + noise] * 4)
    assert (never.censored, never.speedup.estimate, never.speedup.low) == ("never reached", 0.0, 0.0)
    assert never.speedup.high == pytest.approx(20 / 14.1)
    soon = equal_loss_speedup(20.0, [85.0] * 6, LADDER, [90 + noise] * 4)
    assert (soon.censored, soon.speedup.estimate) == ("reached before the first rung", math.inf)
    assert (soon.speedup.low, soon.speedup.high) == (pytest.approx(4.0), math.inf)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0] * 6, (5.0,), [[1.0] * 6]), "budgets has two or more"),
        (([1.0] * 6, (5.0, 4.0), [[1.0] * 6] * 2), "positive and rise"),
        (([1.0] * 5, (4.0, 5.0), [[1.0] * 5] * 2), "6 seeds or more"),
        (([1.0] * 6, (4.0, 5.0), [[1.0] * 7] * 2), "seed by seed"),
        (([1.0] * 6, (4.0, 5.0), [[1.0] * 6, [1.0] * 5 + [math.inf]]), "diverged"),
    ],
)
def test_what_is_no_ladder_is_refused(arguments, message):
    with pytest.raises(s.StatisticsError, match=message):
        equal_loss_speedup(1.0, *arguments)


def test_front_by_hand():
    """(cost, value): c is beaten by b, d costs most and is best, e equals a."""
    costs, values = [1.0, 2.0, 3.0, 4.0, 1.0], [1.0, 3.0, 2.0, 4.0, 1.0]
    assert pareto_front(costs, values) == [0, 1, 3]
    assert pareto_front([], []) == []
    assert pareto_front([0.0, math.inf], [-math.inf, 5.0]) == [0, 1]
    with pytest.raises(s.StatisticsError, match="nan"):
        pareto_front([math.nan], [1.0])


@pytest.mark.parametrize("n", [7, 9])
def test_signs_flipped_and_stepped_down_keep_the_level_together(n):
    """Five methods against one baseline, none of them different: any rejection in at most 5 % of the studies."""
    rng = np.random.default_rng([6, n])
    wrong = 0
    for _ in range(1200):
        baseline = rng.normal(0, 1, n)
        p = [s.sign_flip_p(rng.normal(0, 1, n), baseline) for _ in range(5)]
        wrong += min(s.holm(p)) <= 0.05
    assert wrong / 1200 <= 0.05 + 2 * 0.0063
