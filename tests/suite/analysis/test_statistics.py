"""Intervals cover what they claim, tests agree with scipy, bad data is refused; equal, not equal, and who cannot say."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from suite.analysis import statistics as s
from suite.runs import plan

DRAWS = 4000
# A simulated coverage of 95 % has a standard error of 0.34 % here, so 1 % below nominal is three standard
# errors away.


def coverage(draw, interval, truth: float) -> float:
    rng = np.random.default_rng([2024, 7])
    hits = 0
    for _ in range(DRAWS):
        result = interval(draw(rng))
        hits += result.low <= truth <= result.high
    return hits / DRAWS


@pytest.mark.parametrize("n", [6, pytest.param(12, marks=pytest.mark.full)])
@pytest.mark.parametrize("shape", ["normal", "heavy tails"])
def test_mean_interval_covers(n, shape):
    draw = {"normal": lambda r: r.normal(3.0, 2.0, n), "heavy tails": lambda r: 3.0 + r.standard_t(3, n)}[
        shape
    ]
    found = coverage(draw, s.mean_interval, 3.0)
    assert 0.94 <= found <= 0.975


def test_mean_interval_covers_paired_differences_of_accuracies_of_a_small_test_set():
    """Two classifiers, right on 97 % and 96 % of 360 examples, share splits that differ."""

    def draw(rng):
        hardness = rng.normal(0, 0.005, 6)
        own, other = (
            100 * rng.binomial(360, np.clip(p + hardness, 0, 1)) / 360
            for p in (np.full(6, 0.96), np.full(6, 0.97))
        )
        return own - other

    found = coverage(draw, s.mean_interval, -1.0)
    assert 0.94 <= found <= 0.97


@pytest.mark.parametrize("n", [6, *(pytest.param(n, marks=pytest.mark.full) for n in (9, 20))])
@pytest.mark.parametrize("shape", ["exponential", "cauchy"])
def test_median_interval_covers_any_distribution(n, shape):
    draw = {"exponential": lambda r: r.exponential(1.0, n), "cauchy": lambda r: r.standard_cauchy(n)}[shape]
    truth = {"exponential": math.log(2), "cauchy": 0.0}[shape]
    found = coverage(draw, s.median_interval, truth)
    assert found >= 0.94


def test_mean_interval_equals_scipy():
    values = [96.1, 95.0, 97.2, 96.6, 95.8, 96.4]
    found = s.mean_interval(values, 0.9)
    reference = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), rel=1e-12)


@pytest.mark.parametrize("n", [2, 9])
def test_sign_flip_equals_scipy(n):
    rng = np.random.default_rng(n)
    a, b = rng.normal(0.4, 1, n), rng.normal(0, 1, n)
    reference = stats.permutation_test(
        (a, b), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
    )
    assert s.sign_flip_p(a - b) == pytest.approx(reference.pvalue, rel=1e-12)


def test_sign_flip_counts_every_pattern_with_ties():
    """Accuracies are multiples of 1/360, so many patterns tie: compare with integers."""
    steps = [3, 1, -1, 2, 0, 1, 3]
    exact = sum(
        abs(sum(f * d for f, d in zip(flips, steps, strict=True))) >= abs(sum(steps))
        for flips in itertools.product((1, -1), repeat=len(steps))
    ) / 2 ** len(steps)
    assert s.sign_flip_p([90 + 100 * step / 360 - 90 for step in steps]) == exact


def test_sign_flip_keeps_its_level():
    """Under the null at most alpha of the studies are called different."""
    rng = np.random.default_rng(3)
    rejected = np.mean([s.sign_flip_p(rng.standard_t(3, 8)) <= 0.05 for _ in range(3000)])
    assert 0.03 <= rejected <= 0.06


def test_holm_known_values():
    """The classical worked example: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02."""
    assert s.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert s.holm([0.6, 0.7]) == [1.0, 1.0]
    assert s.holm([]) == []


def test_holm_keeps_the_family_wise_error():
    """Ten true nulls: any rejection at 5 % in at most 5 % of the tables (standard error 0.35 %)."""
    rng = np.random.default_rng(11)
    any_rejected = np.mean([min(s.holm(rng.uniform(size=10))) <= 0.05 for _ in range(4000)])
    assert any_rejected <= 0.05 + 0.01


def test_smallest_attainable_p_is_attained_and_never_beaten():
    """One method with all seven differences of one sign, two without any effect."""
    best = s.sign_flip_p(range(1, 8))
    assert min(s.holm([best, 1.0, 1.0])) == plan.smallest_p(7, 3) == 3 / 64
    assert plan.smallest_p(2, 40) == 1.0


@pytest.mark.parametrize("function", [s.mean_interval, s.median_interval])
def test_too_few_and_not_finite_are_refused(function):
    with pytest.raises(s.TooFewSamplesError, match="at least 6 values and got 5; run more seeds"):
        function([1.0] * 5)
    for bad in (math.nan, math.inf):
        with pytest.raises(s.StatisticsError, match="1 of 7 values are not finite"):
            function([1.0] * 6 + [bad])


def test_bad_arguments_are_refused():
    with pytest.raises(s.StatisticsError, match="confidence level"):
        s.mean_interval([1.0] * 6, 95)
    with pytest.raises(s.StatisticsError, match="p-values"):
        s.holm([0.1, math.nan])
    with pytest.raises(s.StatisticsError, match="shape"):
        s.mean_interval([[1.0] * 6])


# ---- equal or not


def interval(low: float, high: float) -> s.Interval:
    return s.Interval((low + high) / 2, low, high)


SENSITIVE = s.sensitivity([s.Control("no-communication", interval(1.0, 1.4))], 0.4)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (-0.3, 0.2, "yes"),
        (-0.4, 0.2, "undecided"),
        (-0.6, 0.2, "undecided"),
        (-0.6, 0.6, "undecided"),
        (-1.5, -0.4, "no"),
        (0.4, 0.9, "no"),
        (0.0, 0.0, "yes"),
    ],
)
def test_equivalence(low, high, word):
    assert s.equivalence(interval(low, high), 0.4) == word


def test_sensitivity_needs_controls_that_are_told_apart():
    assert not s.sensitivity([], 0.4).sensitive
    seen, hidden = s.Control("one-worker", interval(2.0, 3.0)), s.Control("random-k", interval(-0.1, 1.9))
    study = s.sensitivity([seen, hidden], 0.4)
    assert not study.sensitive
    assert "random-k cannot be told from the baseline" in study.reason
    assert study.weakest == "random-k"
    assert not s.sensitivity([seen, s.Control("random-k", None)], 0.4).sensitive
    assert s.sensitivity([seen], 0.4).sensitive
    refused = s.sensitivity([seen], 0.4, no_verdict="nobody loses on it")
    assert not refused.sensitive
    assert refused.reason == "this workload supports no verdict on equality: nobody loses on it"
    collapsed = s.sensitivity([seen, s.Control("random-k", None, collapsed=True)], 0.4)
    assert collapsed.sensitive
    assert collapsed.weakest == "one-worker"
    assert s.sensitivity([s.Control("random-k", None, collapsed=True)], 0.4).sensitive


def test_margin_is_at_most_half_the_weakest_loss():
    controls = [s.Control("a", interval(0.9, 1.1)), s.Control("b", interval(3.0, 5.0))]
    assert s.sensitivity(controls, 0.5).sensitive
    assert not s.sensitivity(controls, 0.51).sensitive


def test_failed_seeds_are_never_equal():
    good = interval(-0.1, 0.1)
    assert s.equality(good, 0.4, SENSITIVE, planned=6, done=6, diverged=0) == "yes"
    assert s.equality(good, 0.4, SENSITIVE, planned=7, done=6, diverged=1) == "no"
    assert s.equality(good, 0.4, SENSITIVE, planned=7, done=6, diverged=0) == "undecided"
    assert s.equality(None, 0.4, SENSITIVE, planned=6, done=2, diverged=0) == "undecided"


def test_a_measured_difference_stands_in_an_insensitive_study():
    blind = s.sensitivity([], 0.4)
    assert s.equality(interval(-5, -4), 0.4, blind, planned=6, done=6, diverged=0) == "no"
    assert s.equality(interval(-0.5, 0.1), 0.4, blind, planned=6, done=6, diverged=0) == "not sensitive"


def test_equal_is_rarely_said_of_a_method_at_the_margin():
    """A method that loses exactly the margin is called equal in at most 2.5 % of studies, and one at zero
    often is.
    """
    rng = np.random.default_rng(5)

    def share(loss: float) -> float:
        words = [s.equivalence(s.mean_interval(rng.normal(-loss, 0.25, 12)), 0.4) for _ in range(2000)]
        return words.count("yes") / len(words)

    assert share(0.4) <= 0.025 + 0.01
    assert share(0.0) >= 0.9
