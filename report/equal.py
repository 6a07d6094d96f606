"""Marks at equal accuracy: where its budget ladder puts an arm on the x axis, and how one beyond the ladder is drawn.

A censored speedup is 0 (never reached) or infinite (reached before the first rung); such a mark stands at the edge of the
frame with an arrow out of it, and its one-sided interval ends where something is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from matplotlib.axes import Axes

from report.labels import Box
from report.points import NEVER, Point
from report.scales import per_point, renderer
from report.theme import COLOURS, colour
from suite.analysis.tables import Row

EDGE = 0.035
"""Share of the axis between a censored mark and the edge."""


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


def draw_arrows(axes: Axes, points: Sequence[Point]) -> list[Box]:
    """An arrow out of the frame for each censored mark, and in words what it means; returns the places of the words."""
    left, right = axes.get_xlim()
    for p in points:
        if p.censored:
            edge = left if p.censored == NEVER else right
            axes.annotate(
                "", (edge, p.y), (p.x, p.y), annotation_clip=False, zorder=5,
                arrowprops={"arrowstyle": "-|>", "color": colour(p.family), "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
    notes = []
    if any(p.censored == NEVER for p in points):
        notes.append(_note(axes, "◂ not reached on the ladder", 0.0, "left"))
    if any(p.censored and p.censored != NEVER for p in points):
        notes.append(_note(axes, "reached before its first rung ▸", 1.0, "right"))
    return notes


def _note(axes: Axes, words: str, x: float, side: str) -> Box:
    text = axes.annotate(
        words, (x, 0), xycoords="axes fraction", xytext=(3 if side == "left" else -3, 4), textcoords="offset points",
        ha=side, va="bottom", fontsize=6.8, style="italic", color=COLOURS["muted"],
    )  # fmt: skip
    extent, scale = text.get_window_extent(renderer(axes)), per_point(axes)
    return Box(*(float(v / scale) for v in (extent.x0, extent.y0, extent.x1, extent.y1)))
