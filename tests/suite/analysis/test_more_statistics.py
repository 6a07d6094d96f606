"""Coverage by simulation of the censored median, the speedup at equal accuracy and fronts; their known values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from suite.analysis import statistics as s
from suite.analysis.statistics import pareto_front


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
