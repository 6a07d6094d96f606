"""The picture: how much sooner a method is there, against what it costs in accuracy at the same number of steps.

There is where the uncompressed run of the same optimizer ends (speedup at equal accuracy), where the sweep has a budget
ladder; else it is the end of a fixed budget of steps.

One panel a link and sharding; panels beside each other share their axes, so that a faster link is seen to move
the marks. Nothing is drawn that was not measured: an arm whose speedup was refused is named under its panel.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.drawing.labels import Box
from report.drawing.numbers import weight
from report.drawing.scales import bare, difference_axis, look, new_figure, per_point, renderer
from report.drawing.theme import COLOURS
from report.study.data import Panel
from report.study.equal import draw_arrows, equal_axis, inside
from report.study.figures import across, band, draw_marks, write_names
from report.study.front import front, stairs
from report.study.points import Point

RIGHT_MARGIN = 0.62
"""Inches beside each panel, for the names of the other optimizers' uncompressed runs."""

TOP_MARGIN = 0.62
"""Inches above each row of panels, for a title and the names of the upright lines."""


@dataclass(frozen=True)
class Picture:
    """What one panel shows.

    marks: x is the speedup over the reference, y the difference to the own optimizer's uncompressed run. absent:
    arms without a speedup, with the reason. reference: name of the run at 1x. default: speedup of fp32 DDP as it
    is installed over the reference, None where it is the reference. others: the other optimizers' uncompressed
    runs and how they end against that of the reference's optimizer. rho: how much the link weighs, seconds of an
    fp32 ring over seconds of computing.
    """

    panel: Panel
    link: str
    marks: list[Point]
    absent: list[str]
    reference: str
    default: float | None
    others: list[tuple[str, float]]
    rho: float | None = None
    equal: bool = False
    """x is the speedup at equal accuracy, not at a fixed budget of steps."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    """Fixed-budget speedups by arm, of which the certainty of the front is told."""

    @property
    def best(self) -> list[Point]:
        """Its Pareto front."""
        return front(self.marks, self.panel.facts["direction"] == "higher")


def _ys(picture: Picture) -> list[float]:
    own = [v for p in picture.marks for v in (p.y, p.low, p.high) if v is not None]
    return [*own, *(y for _, y in picture.others)]


def _lines(axes: Axes, picture: Picture) -> list[Box]:
    """The reference and fp32 DDP as upright lines, named above the frame; returns the places they take."""
    axes.axvline(1.0, color=COLOURS["baseline"], linewidth=1.1, zorder=1)
    slower = picture.default is None or picture.default <= 1.0
    words = f"1× = {picture.reference}" + (", as it is installed" if picture.default is None else "")
    _above(axes, words, 1.0, 3, "baseline", "left" if slower else "right")
    taken = [1.0]
    if picture.default is not None:
        taken.append(picture.default)
        dashes: dict[str, Any] = {"color": COLOURS["muted"], "linewidth": 0.9, "linestyle": (0, (4, 2))}
        axes.axvline(picture.default, zorder=1, **dashes)
        top = 1 + 14 / 72 / _inches(axes)
        axes.plot(
            [picture.default] * 2, [1, top], transform=axes.get_xaxis_transform(), clip_on=False, **dashes
        )
        _above(axes, "DDP fp32, as it is installed", picture.default, 13, "muted", "left")
    scale, frame = per_point(axes), axes.get_window_extent(renderer(axes))
    pixels = [float(axes.transData.transform((x, 0))[0]) / scale for x in taken]
    return [Box(x - 0.6, float(frame.y0) / scale, x + 0.6, float(frame.y1) / scale) for x in pixels]


def _above(axes: Axes, words: str, x: float, points: float, role: str, side: str) -> None:
    """A name over the frame, beside the upright line at x."""
    axes.annotate(
        words, (x, 1.0), xycoords=("data", "axes fraction"), xytext=(2 if side == "left" else -2, points),
        textcoords="offset points", ha=side, va="bottom", fontsize=7.2, color=COLOURS[role], annotation_clip=False,
    )  # fmt: skip


def _inches(axes: Axes) -> float:
    """Height of the frame."""
    return float(axes.get_window_extent(renderer(axes)).height) / per_point(axes) / 72


def _others(axes: Axes, picture: Picture) -> list[Box]:
    """The other optimizers' uncompressed runs as dashed lines across, named beside the frame."""
    scale, frame = per_point(axes), axes.get_window_extent(renderer(axes))
    boxes: list[Box] = []
    bottom = float("-inf")
    for name, y in sorted(picture.others, key=lambda other: _height(axes, other[1])):
        axes.axhline(y, color=COLOURS["baseline"], linewidth=0.8, linestyle=(0, (5, 3)), alpha=0.75, zorder=1)
        at = _height(axes, y) / scale
        boxes.append(Box(float(frame.x0) / scale, at - 0.4, float(frame.x1) / scale, at + 0.4))
        words = name.replace("allreduce-", "allreduce-\n")
        stands = max(at - 5, bottom)
        bottom = stands + 8.5 * (1 + words.count("\n"))
        axes.annotate(
            words, (1, (stands * scale - float(frame.y0)) / float(frame.height)), xycoords="axes fraction",
            xytext=(4, 0), textcoords="offset points", ha="left", va="bottom", fontsize=6.8, linespacing=1.0,
            color=COLOURS["baseline"], annotation_clip=False,
        )  # fmt: skip
    return boxes


def _height(axes: Axes, y: float) -> float:
    return float(axes.transData.transform((1, y))[1])


def _draw(axes: Axes, picture: Picture, every: Sequence[Picture], ys: Sequence[float]) -> None:
    panel = picture.panel
    difference_axis(axes, "y", ys, panel.margin)
    marks = list(itertools.chain.from_iterable(p.marks for p in every))
    equal_axis(axes, marks, [p.default for p in every if p.default is not None])
    picture = replace(picture, marks=inside(picture.marks, axes))
    if panel.facts["direction"] == "lower":
        axes.invert_yaxis()  # up is better, whatever the metric
    bare(axes, "y")
    axes.grid(axis="x")
    band(axes, panel)
    draw_arrows(axes, picture.marks)
    boxes = [*_lines(axes, picture), *_others(axes, picture)]
    best = picture.best
    if best:
        left, bottom = axes.get_xlim()[0], axes.get_ylim()[0]
        axes.plot(
            *stairs(best, left, bottom),
            color=COLOURS["front"],
            linewidth=3.2,
            zorder=1.5,
            solid_joinstyle="miter",
        )
    stands = [mark.x for mark in picture.marks]  # where they are: a mark moved aside would show another speed
    draw_marks(axes, picture.marks, stands, faint=0.55)
    write_names(axes, panel, picture.marks, stands, best, boxes + across(axes, picture.marks, stands), True)


def speedups(
    pictures: Sequence[Picture],
    columns: int,
    axes_of: Sequence[Picture] = (),
    width: float = 5.5,
    height: float = 5.0,
) -> Figure:
    """A figure of the pictures, row by row; all share the axis of speedups, those of one sharding that of
    differences. `axes_of` are further pictures whose values the axes hold, for a figure of one of them.
    """
    every = [*pictures, *axes_of]
    rows = -(-len(pictures) // columns)
    above = TOP_MARGIN if len(pictures) > 1 else TOP_MARGIN - 0.2
    with look():
        figure, grid = new_figure(width * columns, height * rows, columns, rows)
        figure.subplots_adjust(
            left=0.62 / (width * columns), right=1 - RIGHT_MARGIN / (width * columns), bottom=0.5 / (height * rows),
            top=1 - above / (height * rows), wspace=(0.62 + RIGHT_MARGIN) / (width - 0.62 - RIGHT_MARGIN),
            hspace=(0.5 + above) / (height - 0.5 - above),
        )  # fmt: skip
        for axes, picture in zip(grid, pictures, strict=False):
            if len(pictures) > 1:
                rho = "" if picture.rho is None else f" (rho = {weight(picture.rho)})"
                title = f"{picture.link}{rho}, {picture.panel.title}"
                axes.set_title(title, loc="left", fontsize=10, weight="bold", pad=28)
            ys = [v for p in every if p.panel.slug == picture.panel.slug for v in _ys(p)]
            _draw(axes, picture, every, ys)
            unit = f" ({picture.panel.unit})" if picture.panel.unit else ""
            steps = picture.panel.facts["steps"]
            axes.set_xlabel(
                f"times faster to equal accuracy than {steps} steps of the reference"
                if picture.equal
                else f"times faster than the reference at a fixed budget of {steps} steps"
            )
            axes.set_ylabel(f"difference to the uncompressed run{unit}")
        for axes in grid[len(pictures) :]:
            axes.set_visible(False)
        return figure
