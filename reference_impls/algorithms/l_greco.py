"""L-GreCo: a rank for each layer, of least size at the error that one rank for all would make. arXiv 2210.17357.

On top of PowerSGD. Every `choose_every` steps all matrices are sent with `max_rank` ("measure"). Since rows of a factor
depend on those before them alone, the squared lengths of Q's rows say by how much each rank would have missed: sum of
those left out. Dynamic programming then takes the ranks of least size whose errors together are at most `slack` times
those of `rank` everywhere. Q is the same on all ranks, so nothing is sent to agree.

Differences: only the abstract could be read: an algorithm that picks the compression parameters of layers for the best
ratio within an error constraint, re-run during training. That the constraint is the uniform error, that errors are squared
and added, the discretised dynamic programming and when it runs are our own reading; errors there may come from gradients
gathered over several steps and from exact decompositions. Its quantisers and sparsifiers are not here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reference_impls.algorithm import (
    DEFAULT,
    FOREVER,
    Clock,
    Shard,
    Timed,
    View,
    option,
)
from reference_impls.algorithms.powersgd import Matrix, PowerSGD
from reference_impls.codecs.low_rank import compresses
from reference_impls.codecs.sums import fixed_sum
from reference_impls.collectives import Group
from reference_impls.errors import UnsupportedError

Choice = tuple[float, float]
"""(cost, error)."""


@dataclass(frozen=True)
class LGreCo(PowerSGD):
    """Kinds of step: ``measure``, ``compressed``, and ``warm-up``."""

    rank: int = option(4, "rank whose error, taken everywhere, is the budget", ge=1)
    min_rank: int = option(1, "least rank of a layer", ge=1)
    max_rank: int = option(8, "largest rank of a layer", ge=1)
    choose_every: int = option(100, "steps between two choices of ranks", ge=1)
    slack: float = option(
        1.0, "budget of error, as a factor of that of `rank` everywhere, which it must not break", ge=1
    )
    bins: int = option(1000, "steps in which the budget is spent", ge=1)

    def check(self, world: Group) -> None:
        super().check(world)
        if not 1 <= self.min_rank <= self.rank <= self.max_rank:
            raise UnsupportedError(
                "ranks must satisfy 1 <= min_rank <= rank <= max_rank, got "
                f"{self.min_rank}, {self.rank}, {self.max_rank}"
            )

    def top_of(self, shape: Sequence[int]) -> tuple[int, int, int] | None:
        """(a, b, largest rank) of a tensor of this shape, None if it is sent uncompressed."""
        size = self.size_of(shape, self.rank)
        if size is None:
            return None
        a, b, rank = size
        higher = range(rank, min(self.max_rank, a, b) + 1)
        return a, b, max(r for r in higher if r == rank or compresses(a, b, r, self.min_compression_rate))

    def _factor(self, view: View, world: Group) -> tuple[int, ...] | None:
        found = self.top_of(tuple(view.param.shape))
        return (found[2], found[1]) if found and world.size > 1 else None

    def plan(self, clock: Clock) -> str:
        if clock.step < self.warmup_steps:
            return "warm-up"
        return "compressed" if (clock.step - self.warmup_steps) % self.choose_every else "measure"

    def matrices(self, shard: Shard) -> list[Matrix]:
        found = []
        for view in shard.views:
            size = self.top_of(tuple(view.param.shape))
            if size is not None:
                a, b, rank = size
                if shard.kind == "compressed":
                    rank = int(shard.clock.counters.get(f"rank of {view.name}", min(self.rank, a, b)))
                found.append(Matrix(view, a, b, rank))
        return found

    def remember(self, shards: Sequence[Shard], reduced: Sequence[Tensor]) -> Mapping[str, int | float]:
        if shards[0].kind != "measure" or shards[0].world.size == 1:
            return {}
        found = [(m, self.errors(s.state["q"][m.view.name])) for s in shards for m in self.matrices(s)]
        least = [min(self.min_rank, m.rank) for m, _ in found]
        layers = [
            [(r * (m.rows + m.columns), errors[r]) for r in range(low, m.rank + 1)]
            for (m, errors), low in zip(found, least, strict=True)
        ]
        usual = [min(self.rank, m.rows, m.columns) - low for (m, _), low in zip(found, least, strict=True)]
        budget = sum(layer[number][1] for layer, number in zip(layers, usual, strict=True))
        chosen = cheapest(layers, self.slack * budget, usual, self.bins)
        return {
            f"rank of {m.view.name}": low + number
            for (m, _), low, number in zip(found, least, chosen, strict=True)
        }

    @staticmethod
    def errors(q: Tensor) -> list[float]:
        """By rank r = 0, 1, ...: squared norm of what the first r rows miss of what all rows hold."""
        lengths = fixed_sum(q.to(torch.float64).square()).tolist()
        return [float(sum(lengths[r:])) for r in range(len(lengths) + 1)]

    timed: ClassVar[Timed] = {
        "measure": {"warmup_steps": 0, "choose_every": 1, "slack": DEFAULT, "bins": DEFAULT},
        "compressed": {"warmup_steps": 0, "choose_every": FOREVER},
        "warm-up": {"warmup_steps": FOREVER},
    }


def cheapest(
    layers: Sequence[Sequence[Choice]], budget: float, fallback: Sequence[int], bins: int = 1000
) -> list[int]:
    """The knapsack: for each layer the number of its choice; sum of errors at most `budget`, sum of costs as small as found.

    By dynamic programming over the error spent so far in `bins` equal steps of the budget. Errors are rounded up to whole
    bins, so what is chosen keeps the budget to the last digit; it may cost more than the best choice does if the bins are
    coarse. `fallback` is answered where nothing cheaper was found within the budget, or where an error or the budget is not a
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
