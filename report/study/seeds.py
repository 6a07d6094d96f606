"""The picture of every seed: each paired difference as a dot, the mean with its interval over it."""

from __future__ import annotations

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from report.drawing.numbers import number
from report.drawing.scales import bare, difference_axis, look, new_figure
from report.drawing.theme import COLOURS, colour
from report.study.data import Panel
from report.study.points import paired

LINE_HEIGHT = 0.2
"""Inches a method."""
SEPARATE = 1500
"""More dots than these are drawn as one path a method, in a fifth of the bytes; dots on each other then look like one."""
DOT = 3.4
"""Points across."""


def _many(axes: Axes, dots: list[tuple[str, float]], names: list[str], shades: list[str]) -> None:
    """The dots of each method as strokes without length, whose round ends are the dots."""
    values: dict[str, list[float]] = {name: [] for name in names}
    for name, value in dots:
        values[name].append(value)
    for line, (name, shade) in enumerate(zip(names, shades, strict=True)):
        ends = [(value, line) for value in values[name] for _ in range(2)]
        if not ends:
            continue
        path = Path(ends, [Path.MOVETO, Path.LINETO] * (len(ends) // 2))
        path.should_simplify = False
        axes.add_patch(
            PathPatch(path, fill=False, edgecolor=shade, alpha=0.45, linewidth=DOT, capstyle="round")
        )


def seeds(panel: Panel, width: float = 5.5) -> Figure:
    """One line a method, best on top: dots are seeds, the bar is the mean, the line its 95 % t interval."""
    rows = [row for row in [*panel.methods, *panel.controls] if row["diff_mean"] is not None]
    sign = 1 if panel.facts["direction"] == "lower" else -1
    rows.sort(key=lambda row: ((number(row["diff_mean"]) or 0.0) * sign, str(row["arm"])))
    names = [str(row["arm"]) for row in rows]
    shades = [colour("control" if row["control"] else str(row["family"])) for row in rows]
    dots = paired(panel, rows)
    height = 0.55 + LINE_HEIGHT * max(len(rows), 2)
    with look():
        figure, (axes,) = new_figure(width, height)
        figure.subplots_adjust(
            left=1.9 / width, right=1 - 0.12 / width, bottom=0.45 / height, top=1 - 0.06 / height
        )
        bounds = [number(row[c]) for row in rows for c in ("diff_low", "diff_high")]
        values = [*(d for _, d in dots), *(b for b in bounds if b is not None)]
        difference_axis(axes, "x", values, panel.margin)
        bare(axes, "x")
        if panel.sensitive:
            axes.axvspan(-panel.margin, panel.margin, color=COLOURS["band"], linewidth=0, zorder=0)
        axes.axvline(0, color=COLOURS["muted"], linewidth=0.7, zorder=1)
        if len(dots) > SEPARATE:
            _many(axes, dots, names, shades)
        elif dots:
            labels = [name for name, _ in dots]
            sns.stripplot(
                x=[d for _, d in dots], y=labels, order=names, hue=labels, hue_order=names, palette=shades,
                jitter=False, size=DOT, alpha=0.45, legend=False, ax=axes,
            )  # fmt: skip
        for line, (row, shade) in enumerate(zip(rows, shades, strict=True)):
            low, high, mean = (number(row[name]) for name in ("diff_low", "diff_high", "diff_mean"))
            if low is not None and high is not None:
                axes.plot([low, high], [line, line], color=shade, linewidth=1.6, zorder=3)
            if mean is not None:
                axes.plot([mean], [line], "|", color=shade, markersize=9, markeredgewidth=1.6)
        axes.set_yticks(range(len(names)), names)
        for tick, shade in zip(axes.get_yticklabels(), shades, strict=True):
            tick.set_color(shade)
        axes.set_ylim(len(names) - 0.4, -0.6)
        unit = f" ({panel.unit})" if panel.unit else ""
        axes.set_xlabel(f"difference to the uncompressed run of the same seed{unit}")
        axes.set_ylabel("")
        return figure
