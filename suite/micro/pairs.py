"""Readings in turns: what is timed and its control, so that a busy machine is busy for both."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, median_interval
from suite.analysis.tables import Value

__all__ = ["ENOUGH", "Pairs", "Run", "in_turns", "quartiles", "reading", "repetitions", "verdict"]

Run = Callable[[], object]

ENOUGH: Final = 20
"""Pairs from which on a bar is judged."""

TOLERANCE: Final = 0.97
"""A bar is met when the worse end of the interval meets it within 3 %."""

_SHORTEST_S: Final = 5e-4  # of a reading


def nothing() -> None:
    """What is prepared where nothing has to be."""


def reading(run: Run, times: int = 1, prepare: Run = nothing) -> float:
    """Seconds of a call, over `times` calls; `prepare` is not timed."""
    prepare()
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times


def repetitions(run: Run, prepare: Run = nothing) -> int:
    """Calls that fill a reading; also warms it up."""
    reading(run, 1, prepare)
    once = min(reading(run, 1, prepare) for _ in range(2))
    return 1 if prepare is not nothing else max(1, math.ceil(_SHORTEST_S / max(once, 1e-9)))


@dataclass(frozen=True)
class Pairs:
    """Seconds of a call of the control and of what is timed, pair by pair."""

    control_s: tuple[float, ...]
    own_s: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.own_s)

    def seconds(self) -> float:
        return float(np.median(self.own_s))

    def control_seconds(self) -> float:
        return float(np.median(self.control_s))

    def ratios(self) -> list[float]:
        """Control over own."""
        return [control / ours for control, ours in zip(self.control_s, self.own_s, strict=True)]

    def ratio_cells(self, name: str) -> dict[str, Value]:
        """Columns: the median of `ratios`, its quartiles, its interval."""
        ratios = self.ratios()
        q1, q2, q3 = quartiles(ratios)
        known = median_interval(ratios) if len(ratios) >= MINIMUM_FOR_INTERVAL else None
        return {
            name: q2, f"{name}_q1": q1, f"{name}_q3": q3,
            f"{name}_low": known.low if known else None, f"{name}_high": known.high if known else None,
        }  # fmt: skip


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    q1, q2, q3 = np.percentile(values, [25, 50, 75])
    return float(q1), float(q2), float(q3)


def in_turns(
    control: Run,
    own: Run,
    *,
    budget_s: float,
    least: int = 6,
    most: int = 31,
    prepare_control: Run = nothing,
    prepare_own: Run = nothing,
) -> Pairs:
    """Pairs until `most`, or once `budget_s` is spent and there are `least`.

    A pair is a reading of what is timed and the mean of the control's before it and after it; neighbours share one. Both have
    been called before.

    Args:
        control: What it is compared with.
        own: What is timed.
        budget_s: Seconds to spend, unless `least` pairs take longer.
        least: Fewest pairs.
        most: Most pairs.
        prepare_control: Called before each reading of the control, untimed.
        prepare_own: Called before each reading of what is timed, untimed.

    Returns:
        Seconds of a call of both, pair by pair.
    """
    counts = repetitions(control, prepare_control), repetitions(own, prepare_own)
    controls: list[float] = []
    owns: list[float] = []
    end = time.monotonic() + budget_s
    before = reading(control, counts[0], prepare_control)
    while len(owns) < most and (len(owns) < least or time.monotonic() < end):
        owns.append(reading(own, counts[1], prepare_own))
        after = reading(control, counts[0], prepare_control)
        controls.append((before + after) / 2)
        before = after
    return Pairs(tuple(controls), tuple(owns))


def verdict(cells: dict[str, Value], name: str, n: int, bar: float | None) -> str | None:
    """Whether a ratio of at least `bar` was reached.

    Args:
        cells: Columns that `Pairs.ratio_cells` made.
        name: Of the ratio among them.
        n: Pairs.
        bar: What is to be reached, or None.

    Returns:
        yes, no, or undecided (too few pairs, or the interval spans the bar); None without a bar.
    """
    low, high = cells[f"{name}_low"], cells[f"{name}_high"]
    if bar is None:
        return None
    if n < ENOUGH or not isinstance(low, float) or not isinstance(high, float):
        return "undecided"
    if low >= TOLERANCE * bar:
        return "yes"
    return "no" if high < TOLERANCE * bar else "undecided"
