"""One choice for each of several layers, of least cost within a budget of error. Plain Python.

The knapsack behind layer-wise compression (L-GreCo, arXiv 2210.17357), by dynamic programming over the error spent so far
in `bins` equal steps of the budget. Errors are rounded up to whole bins, so what is chosen keeps the budget to the last
digit; it may cost more than the best choice does if the bins are coarse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["cheapest"]

Choice = tuple[float, float]
"""(cost, error)."""


def cheapest(
    layers: Sequence[Sequence[Choice]], budget: float, fallback: Sequence[int], bins: int = 1000
) -> list[int]:
    """For each layer the number of its choice; sum of errors at most `budget`, sum of costs as small as found.

    `fallback` is answered where nothing cheaper was found within the budget, or where an error or the budget is not a
    number. Of equal costs the earlier error, and then the earlier choice, is taken.
    """
    known = list(fallback)
    errors = [error for layer in layers for _, error in layer]
    if not all(math.isfinite(error) for error in [*errors, budget]) or budget < 0:
        return known
    best = [0.0] * (bins + 1)  # least cost of the layers so far, by bins spent at most
    taken: list[list[int]] = []
    for layer in layers:
        found, numbers = [math.inf] * (bins + 1), [0] * (bins + 1)
        for number, (cost, error) in enumerate(layer):
            width = _bins(error, budget, bins)
            for spent in range(width, bins + 1):
                total = best[spent - width] + cost
                if total < found[spent]:
                    found[spent], numbers[spent] = total, number
        best = found
        taken.append(numbers)
    if not best[bins] < sum(layer[number][0] for layer, number in zip(layers, known, strict=True)):
        return known
    left, chosen = bins, []
    for layer, numbers in zip(reversed(layers), reversed(taken), strict=True):
        chosen.append(numbers[left])
        left -= _bins(layer[numbers[left]][1], budget, bins)
    return chosen[::-1]


def _bins(error: float, budget: float, bins: int) -> int:
    """Whole bins that hold the error; more than there are if it is over the budget."""
    if error <= 0:
        return 0
    return math.ceil(error / budget * bins) if error <= budget else bins + 1
