"""Pareto fronts: what nothing else beats both ways, and how sure it is that a point is on the front.

The certainty of a front is told as shares of bootstrap draws: seeds are drawn anew, all methods with the same draw
since their runs are paired by seed, and the front of the means is taken each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, StatisticsError, TooFewSamplesError

DRAWS: Final = 2000


def front(costs: Sequence[float], values: Sequence[float]) -> list[int]:
    """Places of the points that no other one equals or beats both ways, the cheapest first.

    Less cost and more value are better. Of points at one place the first stays. Raises StatisticsError for nan and for
    sequences of two lengths.
    """
    if len(costs) != len(values):
        raise StatisticsError(f"a front takes a cost and a value a point, not {len(costs)} and {len(values)}")
    if np.isnan([*costs, *values]).any():
        raise StatisticsError("a front has no place for nan; leave the point out")
    found: list[int] = []
    for place in sorted(range(len(costs)), key=lambda i: (costs[i], -values[i])):
        if not found or values[place] > values[found[-1]]:
            found.append(place)
    return found


def front_shares(
    costs: Sequence[Sequence[float]], values: Sequence[Sequence[float]], draws: int = DRAWS, seed: int = 0
) -> list[float]:
    """For each point the share of bootstrap draws in which it is on the front of the means over seeds.

    costs[i][k], values[i][k]: of point i with seed k; every point has the same seeds, six or more. The same arguments
    give the same shares.
    """
    cost, value = np.asarray(costs, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if cost.ndim != 2 or cost.shape != value.shape:
        raise StatisticsError(
            f"shares take a cost and a value for each point and seed, not shapes {cost.shape} and {value.shape}"
        )
    points, seeds = cost.shape
    if seeds < MINIMUM_FOR_INTERVAL:
        raise TooFewSamplesError(
            f"the certainty of a front takes {MINIMUM_FOR_INTERVAL} seeds and got {seeds}"
        )
    drawn = np.random.default_rng(seed).integers(seeds, size=(draws, seeds))
    count = np.zeros(points)
    for mean_cost, mean_value in zip(
        cost[:, drawn].mean(-1).T.tolist(), value[:, drawn].mean(-1).T.tolist(), strict=True
    ):
        count[front(mean_cost, mean_value)] += 1
    return [float(share) for share in count / draws]
