"""The picture of a session without trainings: how much faster a step is, one line an arm, no axis of accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.drawing.numbers import ratio
from report.drawing.scales import bare, look, name_lines, new_figure, speedup_axis
from report.drawing.theme import COLOURS, colour, mark

LINE_HEIGHT = 0.27
"""Inches an arm."""

LEFT, RIGHT = 1.95, 1.25
"""Inches for the names and for the numbers beside the frame."""


@dataclass(frozen=True)
class Ratio:
    """A speedup with the interval of its median; None where too few rounds allow none."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Bar:
    """One line: what was timed, and how much faster it is than the reference and than fp32 DDP as installed."""

    name: str
    family: str
    over_reference: Ratio
    over_default: Ratio | None


def _one(axes: Axes, line: int, found: Ratio, family: str, solid: bool) -> None:
    """A mark with its interval; hollow for what is over fp32 DDP."""
    shade = colour(family)
    if found.low is not None and found.high is not None:
        axes.plot(
            [found.low, found.high], [line, line], color=shade, linewidth=1.6 if solid else 1.0, zorder=3
        )
    axes.plot(
        [found.value], [line], mark(family), markersize=6.5, color=shade, zorder=4,
        markerfacecolor=shade if solid else COLOURS["paper"], markeredgewidth=0.0 if solid else 1.0,
    )  # fmt: skip


def forest(bars: Sequence[Bar], reference: str, values: Sequence[float] = (), width: float = 6.4) -> Figure:
    """Fastest on top. Solid: over the reference, which `reference` names; hollow: over fp32 DDP as installed.

    Figures that get the same `values` have the same axis.
    """
    bars = sorted(bars, key=lambda bar: (-bar.over_reference.value, bar.name))
    height = 0.98 + LINE_HEIGHT * max(len(bars), 2)
    with look():
        figure, (axes,) = new_figure(width, height)
        figure.subplots_adjust(
            left=LEFT / width, right=1 - RIGHT / width, bottom=0.5 / height, top=1 - 0.46 / height
        )
        speedup_axis(axes, [*values, *(v for bar in bars for v in extent(bar))], (1.15, 1.15))
        bare(axes, "x")
        axes.axvline(1.0, color=COLOURS["baseline"], linewidth=1.1, zorder=1)
        for line, bar in enumerate(bars):
            if bar.over_default is not None:
                _one(axes, line, bar.over_default, bar.family, False)
            _one(axes, line, bar.over_reference, bar.family, True)
            for at, found in ((0.55, bar.over_reference), (1.15, bar.over_default)):
                axes.annotate(
                    ratio(found.value if found else None), (1, line), xycoords=("axes fraction", "data"),
                    xytext=(at * 72, 0), textcoords="offset points", ha="right", va="center", fontsize=8.2,
                    weight="bold" if at < 1 else "normal", color=colour(bar.family), annotation_clip=False,
                )  # fmt: skip
        _heads(axes)
        name_lines(axes, [(bar.name, bar.family) for bar in bars])
        axes.set_xlabel(f"times faster a step; 1× = {reference}")
        return figure


def extent(bar: Bar) -> list[float]:
    """All numbers that a line's marks and intervals reach."""
    found = [bar.over_reference] + ([bar.over_default] if bar.over_default else [])
    return [v for r in found for v in (r.value, r.low, r.high) if v is not None]


def _heads(axes: Axes) -> None:
    """What the two columns of numbers are over."""
    for at, words in ((0.55, "● over the\nreference"), (1.15, "○ over\nDDP fp32")):
        axes.annotate(
            words, (1, 1), xycoords="axes fraction", xytext=(at * 72, 4), textcoords="offset points", ha="right",
            va="bottom", fontsize=7.2, linespacing=1.05, color=COLOURS["muted"], annotation_clip=False,
        )  # fmt: skip
