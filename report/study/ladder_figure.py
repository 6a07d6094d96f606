"""The picture of a budget ladder: how far each method is from its target at every length of training.

Where a line crosses 0 the method has the accuracy that the uncompressed run of its optimizer has at the full budget.
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from report.drawing.numbers import number
from report.drawing.scales import bare, difference_axis, look, new_figure, per_point
from report.drawing.theme import COLOURS, colour, mark
from report.study.data import Panel
from report.study.figures import band
from suite.analysis.tables import Row

NAMES_WIDTH = 1.55
"""Inches beside the frame, for the names of the methods."""
LINE_POINTS = 9.6
"""Height of a name, in points."""


def climb(panel: Panel, width: float = 9.0) -> Figure:
    """One line a method over its rungs, with 95 % paired t intervals; x is logarithmic in steps."""
    lines = _lines(panel)
    height = max(4.2, 0.9 + len(lines) * LINE_POINTS / 72)
    with look():
        figure, (axes,) = new_figure(width, height)
        figure.subplots_adjust(
            left=0.62 / width, right=1 - NAMES_WIDTH / width, bottom=0.5 / height, top=1 - 0.12 / height
        )
        values = [v for rows in lines.values() for row in rows for v in _values(row)]
        difference_axis(axes, "y", values, panel.margin)
        if panel.facts["direction"] == "lower":
            axes.invert_yaxis()  # up is better, whatever the metric
        rungs = sorted({(number(row["steps"]) or 1.0, number(row["budget"]) or 1.0) for row in panel.ladder})
        axes.set_xscale("log")
        axes.set_xlim(rungs[0][0] / 1.06, rungs[-1][0] * 1.06)
        axes.xaxis.set_major_locator(FixedLocator([steps for steps, _ in rungs]))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{steps:g}\n{budget:g}×" for steps, budget in rungs]))
        axes.xaxis.set_minor_locator(NullLocator())
        bare(axes, "y")
        axes.grid(axis="x")
        band(axes, panel)
        families = {str(row["arm"]): _family(row) for row in panel.summary}
        for arm, rows in lines.items():
            _draw(axes, rows, families[arm])
        _names(axes, lines, families)
        unit = f" ({panel.unit})" if panel.unit else ""
        axes.set_xlabel("steps of the training, and as a multiple of the full budget")
        axes.set_ylabel(f"difference to the target at the full budget{unit}")
        return figure


def _lines(panel: Panel) -> dict[str, list[Row]]:
    """The rungs of each arm that have a pair, shortest first."""
    found: dict[str, list[Row]] = {}
    for row in sorted(panel.ladder, key=lambda row: (str(row["arm"]), number(row["budget"]) or 0.0)):
        if row["gap_mean"] is not None:
            found.setdefault(str(row["arm"]), []).append(row)
    return found


def _values(row: Row) -> list[float]:
    found = (number(row[name]) for name in ("gap_mean", "gap_low", "gap_high"))
    return [value for value in found if value is not None]


def _family(row: Row) -> str:
    return "control" if row["control"] else str(row["family"])


def _draw(axes: Axes, rows: list[Row], family: str) -> None:
    shade, faint = colour(family), 0.4 if family == "control" else 0.8
    xs, ys = ([number(row[name]) or 0.0 for row in rows] for name in ("steps", "gap_mean"))
    axes.plot(xs, ys, color=shade, linewidth=1.1, alpha=faint, zorder=2)
    axes.plot(xs, ys, mark(family), color=shade, markersize=4, markeredgewidth=0.0, linestyle="", zorder=4)
    for x, row in zip(xs, rows, strict=True):
        low, high = number(row["gap_low"]), number(row["gap_high"])
        if low is not None and high is not None:
            axes.plot(
                [x, x], [low, high], color=shade, linewidth=1.0, alpha=0.45, solid_capstyle="butt", zorder=3
            )


def _names(axes: Axes, lines: dict[str, list[Row]], families: dict[str, str]) -> None:
    """Each name beside the end of its line, pushed apart so that none covers another."""
    scale = per_point(axes)
    frame = axes.get_window_extent()
    ends = [
        (float(axes.transData.transform((1.0, number(rows[-1]["gap_mean"]) or 0.0))[1]) / scale, arm)
        for arm, rows in sorted(lines.items())
    ]
    heights = spread([y for y, _ in sorted(ends)], LINE_POINTS, float(frame.y1) / scale)
    for (y, arm), at in zip(sorted(ends), heights, strict=True):
        shade = colour(families[arm])
        share, own = ((v * scale - float(frame.y0)) / float(frame.height) for v in (at, y))
        axes.plot(
            [1.0, 1.03],
            [own, share],
            transform=axes.transAxes,
            clip_on=False,
            color=shade,
            linewidth=0.5,
            alpha=0.7,
        )
        axes.annotate(
            arm.removeprefix("control-"), (1.035, share), xycoords="axes fraction", va="center", fontsize=7.2,
            color=shade, annotation_clip=False,
        )  # fmt: skip
    axes.axhline(0, color=COLOURS["muted"], linewidth=0.9, zorder=1)


def spread(wanted: list[float], gap: float, top: float) -> list[float]:
    """Heights in their order, at least `gap` apart, none above `top`, as near to the wanted (rising) as that leaves."""
    found: list[float] = []
    for y in wanted:
        found.append(max(y, found[-1] + gap) if found else y)
    limit = top
    for index in reversed(range(len(found))):
        found[index] = min(found[index], limit)
        limit = found[index] - gap
    return found
