"""Marks at equal accuracy: where its budget ladder puts an arm on the x axis, and how one beyond the ladder is drawn.

A censored speedup is 0 (never reached) or infinite (reached before the first rung); such a mark stands at the edge of the
frame with an arrow out of it, and its one-sided interval ends where something is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator

from report.drawing.scales import speedup_axis
from report.drawing.theme import colour
from report.study.points import NEVER, Point
from suite.analysis.tables import Row

EDGE = 0.035
"""Share of the axis between a censored mark and the edge."""
APART = 2.6
"""Factor between the outermost value and the edge where censored marks stand."""


def by_arm(rows: Iterable[Row], **cells: object) -> dict[str, Row]:
    """The rows that have these cells, by arm."""
    return {str(row["arm"]): row for row in rows if cells.items() <= row.items()}


def on_axis(points: Iterable[Point]) -> list[float]:
    """The values of marks and intervals that an axis can hold."""
    found = [value for p in points for value in (p.x, p.x_low, p.x_high)]
    return [value for value in found if 0 < value < math.inf]


def inside(points: Sequence[Point], axes: Axes) -> list[Point]:
    """The marks with what lies beyond the axis brought to its edge; the axis has its scale and limits."""
    left, right = (math.log(end) for end in axes.get_xlim())

    def at(share: float) -> float:
        return math.exp(left + share * (right - left))

    def clipped(value: float) -> float:
        return min(max(value, at(0)), at(1))

    return [
        replace(
            p,
            x=(at(EDGE) if p.censored == NEVER else at(1 - EDGE)) if p.censored else p.x,
            x_low=clipped(p.x_low),
            x_high=clipped(p.x_high),
        )
        for p in points
    ]


def equal_axis(axes: Axes, points: Sequence[Point], values: Sequence[float] = ()) -> None:
    """Scale the x axis to ratios at equal accuracy, with a place at either end for the censored marks among `points`.

    values: what else has to lie on it.
    """
    never = any(p.censored == NEVER for p in points)
    early = any(p.censored and p.censored != NEVER for p in points)
    speedup_axis(axes, [*on_axis(points), *values], (APART if never else 1.25, APART if early else 1.5))
    left, right = (math.log(end) for end in axes.get_xlim())
    ends = [(EDGE, "never\nreached")] * never + [(1 - EDGE, "before\nrung 1")] * early
    places = [math.exp(left + share * (right - left)) for share, _ in ends]
    ticks = [t for t in axes.get_xticks() if all(abs(math.log(t / p)) > 0.1 * (right - left) for p in places)]
    axes.xaxis.set_major_locator(FixedLocator([*ticks, *places]))
    axes.xaxis.set_major_formatter(
        FixedFormatter([*(f"{t:.3g}×" for t in ticks), *(words for _, words in ends)])
    )


def draw_arrows(axes: Axes, points: Sequence[Point]) -> None:
    """An arrow out of the frame for each censored mark."""
    left, right = axes.get_xlim()
    for index, p in enumerate(points):
        if p.censored:
            edge = left if p.censored == NEVER else right
            arrow = axes.annotate(
                "", (edge, p.y), (p.x, p.y), annotation_clip=False, zorder=5,
                arrowprops={"arrowstyle": "-|>", "color": colour(p.family), "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
            if arrow.arrow_patch is not None:
                arrow.arrow_patch.set_gid(f"arrow{index}")
