"""Equal, not equal, undecided, and the studies that cannot say."""

from __future__ import annotations

import numpy as np
import pytest

from suite.analysis import statistics as e
from suite.analysis.statistics import Interval, mean_interval


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 6)


SENSITIVE = e.sensitivity([e.Control("no-communication", interval(1.0, 1.4))], 0.4)


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
    assert e.equivalence(interval(low, high), 0.4) == word


def test_sensitivity_needs_controls_that_are_told_apart():
    assert not e.sensitivity([], 0.4).sensitive
    seen, hidden = e.Control("one-worker", interval(2.0, 3.0)), e.Control("random-k", interval(-0.1, 1.9))
    study = e.sensitivity([seen, hidden], 0.4)
    assert not study.sensitive
    assert "random-k cannot be told from the baseline" in study.reason
    assert study.weakest == "random-k"
    assert not e.sensitivity([seen, e.Control("random-k", None)], 0.4).sensitive
    assert e.sensitivity([seen], 0.4).sensitive
    refused = e.sensitivity([seen], 0.4, no_verdict="nobody loses on it")
    assert not refused.sensitive
    assert refused.reason == "this workload supports no verdict on equality: nobody loses on it"
    collapsed = e.sensitivity([seen, e.Control("random-k", None, collapsed=True)], 0.4)
    assert collapsed.sensitive
    assert collapsed.weakest == "one-worker"
    assert e.sensitivity([e.Control("random-k", None, collapsed=True)], 0.4).sensitive


def test_margin_is_at_most_half_the_weakest_loss():
    controls = [e.Control("a", interval(0.9, 1.1)), e.Control("b", interval(3.0, 5.0))]
    assert e.sensitivity(controls, 0.5).sensitive
    assert not e.sensitivity(controls, 0.51).sensitive


def test_failed_seeds_are_never_equal():
    good = interval(-0.1, 0.1)
    assert e.equality(good, 0.4, SENSITIVE, planned=6, done=6, diverged=0) == "yes"
    assert e.equality(good, 0.4, SENSITIVE, planned=7, done=6, diverged=1) == "no"
    assert e.equality(good, 0.4, SENSITIVE, planned=7, done=6, diverged=0) == "undecided"
    assert e.equality(None, 0.4, SENSITIVE, planned=6, done=2, diverged=0) == "undecided"


def test_a_measured_difference_stands_in_an_insensitive_study():
    blind = e.sensitivity([], 0.4)
    assert e.equality(interval(-5, -4), 0.4, blind, planned=6, done=6, diverged=0) == "no"
    assert e.equality(interval(-0.5, 0.1), 0.4, blind, planned=6, done=6, diverged=0) == "not sensitive"


def test_equal_is_rarely_said_of_a_method_at_the_margin():
    """A method that loses exactly the margin is called equal in at most 2.5 % of studies, and one at zero
    often is.
    """
    rng = np.random.default_rng(5)

    def share(loss: float) -> float:
        words = [e.equivalence(mean_interval(rng.normal(-loss, 0.25, 12)), 0.4) for _ in range(2000)]
        return words.count("yes") / len(words)

    assert share(0.4) <= 0.025 + 0.01
    assert share(0.0) >= 0.9
