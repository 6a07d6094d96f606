"""The picture: bytes saved, at equal accuracy where there is a budget ladder, against what they cost in accuracy.

Nothing is drawn that was not measured: bytes are counted, differences are paired with the uncompressed run of
the same optimizer, and an arm without a finished pair is named under the picture instead of being drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from report.drawing.labels import Box, Label, place, side_by_side
from report.drawing.scales import bare, difference_axis, look, new_figure, per_point, renderer
from report.drawing.svg import gid
from report.drawing.theme import COLOURS, colour, mark
from report.study.data import Panel
from report.study.equal import draw_arrows, equal_axis, inside
from report.study.points import Point, points


def band(axes: Axes, panel: Panel) -> None:
    """The equivalence band, filled only where the study could have seen a bad method."""
    margin = panel.margin
    if panel.sensitive:
        axes.axhspan(-margin, margin, color=COLOURS["band"], linewidth=0, zorder=0)
    else:
        for y in (-margin, margin):
            axes.axhline(y, color=COLOURS["muted"], linewidth=0.6, linestyle=(0, (2, 3)), zorder=0)
    axes.axhline(0, color=COLOURS["muted"], linewidth=0.7, zorder=1)


def _draw(axes: Axes, panel: Panel) -> None:
    marks, _ = points(panel)
    difference_axis(
        axes, "y", [v for p in marks for v in (p.y, p.low, p.high) if v is not None], panel.margin
    )
    if panel.iso:
        equal_axis(axes, marks)
        marks, nothing = inside(marks, axes), 1.0
    else:
        nothing = _ratio_axis(axes, marks)
    band(axes, panel)
    bare(axes, "y")
    unit = f" ({panel.unit})" if panel.unit else ""
    axes.set_xlabel(
        "times fewer bytes to equal accuracy than the uncompressed run"
        if panel.iso
        else "fewer bytes on the wire a step than an fp32 ring all-reduce"
    )
    axes.set_ylabel(f"difference to the uncompressed run{unit}")
    if panel.facts["direction"] == "lower":
        axes.invert_yaxis()  # up is better, whatever the metric
    draw_arrows(axes, marks)
    xs = [mark.x for mark in marks] if panel.iso else stand_apart(axes, marks, nothing)
    draw_marks(axes, marks, xs)
    write_names(axes, panel, marks, xs, lines=across(axes, marks, xs) if panel.iso else ())


def draw_marks(axes: Axes, marks: Sequence[Point], xs: Sequence[float], faint: float = 1.0) -> None:
    """Each mark at its x with its intervals; hollow where it has no interval in y or is doubtful. `faint` is the opacity of
    intervals.
    """
    for index, (x, point) in enumerate(zip(xs, marks, strict=True)):
        shade = colour(point.family)
        thin: dict[str, Any] = {
            "color": shade,
            "linewidth": 1.3,
            "alpha": None if faint == 1.0 else faint,
            "zorder": 3,
        }
        if point.low is not None and point.high is not None:
            axes.plot([x, x], [point.low, point.high], solid_capstyle="butt", **thin)
        if point.x_high > point.x_low and math.isfinite(point.x_high):
            ends = [end * x / point.x for end in (point.x_low, point.x_high)]
            axes.plot(ends, [point.y] * 2, solid_capstyle="butt", **thin)
        solid = not point.doubtful and (point.low is not None or point.family == "baseline")
        axes.plot(
            [x], [point.y], mark(point.family), markersize=6, color=shade, gid=gid(index), zorder=4,
            markerfacecolor=shade if solid else COLOURS["paper"], markeredgewidth=0.0 if solid else 0.9,
        )  # fmt: skip


def across(axes: Axes, marks: Sequence[Point], xs: Sequence[float]) -> list[Box]:
    """The places of the intervals in x, which names keep away from."""
    scale, boxes = per_point(axes), []
    for x, point in zip(xs, marks, strict=True):
        ends = [
            axes.transData.transform((v * x / point.x, point.y)) / scale for v in (point.x_low, point.x_high)
        ]
        boxes.append(
            Box(float(ends[0][0]), float(ends[0][1]) - 1.5, float(ends[1][0]), float(ends[0][1]) + 1.5)
        )
    return boxes


def stand_apart(axes: Axes, marks: Sequence[Point], nothing: float = 1.0) -> list[float]:
    """Where each mark stands on the x axis: its ratio, moved by a mark's width where it would cover another."""
    scale = per_point(axes)
    pixels = [axes.transData.transform((nothing if math.isinf(p.x) else p.x, p.y)) / scale for p in marks]
    spans = []
    for point, (_, y) in zip(marks, pixels, strict=True):
        ends = [axes.transData.transform((1, v))[1] / scale for v in (point.low, point.high) if v is not None]
        spans.append((float(min([y - 4, *ends])), float(max([y + 4, *ends]))))
    moved = side_by_side([float(x) for x, _ in pixels], spans, 6.2)
    return [float(axes.transData.inverted().transform((x * scale, 0))[0]) for x in moved]


def write_names(
    axes: Axes,
    panel: Panel,
    marks: Sequence[Point],
    xs: Sequence[float],
    bold: Sequence[Point] = (),
    lines: Sequence[Box] = (),
    over_intervals: bool = False,
) -> None:
    """Write each name beside its mark, with a thin line where it had to move away.

    `bold` marks get bold names; names keep away from `lines`, boxes in points. `over_intervals`: where it is
    crowded a name may cross an interval, as long as it is near its mark.
    """
    scale = per_point(axes)
    labels, obstacles, strokes, texts = [], [], [], []
    for x_data, point in zip(xs, marks, strict=True):
        x, y = (float(v / scale) for v in axes.transData.transform((x_data, point.y)))
        ends = [axes.transData.transform((1, v))[1] / scale for v in (point.low, point.high) if v is not None]
        reach = float(min([y - 4, *ends])), float(max([y + 4, *ends]))
        if over_intervals:
            obstacles.append(Box(x - 4, y - 4, x + 4, y + 4))
            strokes.append(Box(x - 1.5, reach[0], x + 1.5, reach[1]))
        else:
            obstacles.append(Box(x - 3.5, reach[0], x + 3.5, reach[1]))
        text = axes.text(0, 0, point.text, fontsize=7.6, color=colour(point.family), zorder=6)
        text.set_fontweight("bold" if point in bold else "normal")
        extent = text.get_window_extent(renderer(axes))
        labels.append(Label(x, y, extent.width / scale, extent.height / scale))
        texts.append(text)
    frame = axes.get_window_extent(renderer(axes))
    inner = Box(*(float(v / scale) for v in (frame.x0, frame.y0, frame.x1, frame.y1))).grown(-1)
    zero = float(axes.transData.transform((1, 0))[1] / scale)
    avoided = [_band_note(axes, panel), Box(inner.x0, zero - 0.4, inner.x1, zero + 0.4), *strokes, *lines]
    back = axes.transData.inverted()
    for text, label, box, point in zip(
        texts, labels, place(labels, obstacles, avoided, inner), marks, strict=True
    ):
        left, low = back.transform((box.x0 * scale, (box.y0 + 1.6) * scale))
        text.set_position((float(left), float(low)))
        near = (min(max(label.x, box.x0), box.x1), min(max(label.y, box.y0), box.y1))
        if math.hypot(near[0] - label.x, near[1] - label.y) > 10:
            joined = back.transform(np.array([[label.x, label.y], near]) * scale)
            axes.plot(
                joined[:, 0], joined[:, 1], color=colour(point.family), linewidth=0.5, alpha=0.7, zorder=2
            )


def _band_note(axes: Axes, panel: Panel) -> Box:
    """Say what the band means, in its own corner; returns the place it takes."""
    unit = f" {panel.unit}" if panel.unit else ""
    words = (
        f"equal: within ±{panel.margin:g}{unit}"
        if panel.sensitive
        else f"±{panel.margin:g}{unit}: not sensitive"
    )
    text = axes.annotate(
        words, (1, panel.margin), xycoords=("axes fraction", "data"), xytext=(-3, 2), textcoords="offset points",
        ha="right", va="bottom", fontsize=6.8, style="italic", color=COLOURS["muted"],
    )  # fmt: skip
    extent = text.get_window_extent(renderer(axes))
    scale = per_point(axes)
    return Box(*(float(v / scale) for v in (extent.x0, extent.y0, extent.x1, extent.y1)))


def tradeoff(panels: Sequence[Panel], width: float = 5.5, height: float = 4.6) -> Figure:
    """x: times fewer bytes than fp32 (log); y: paired difference with 95 % t intervals; one panel beside the
    other.
    """
    with look():
        figure, every = new_figure(width * len(panels), height, len(panels))
        figure.subplots_adjust(
            left=0.62 / (width * len(panels)), right=1 - 0.1 / width, bottom=0.58 / height,
            top=1 - (0.36 if len(panels) > 1 else 0.1) / height, wspace=0.16,
        )  # fmt: skip
        for axes, panel in zip(every, panels, strict=True):
            if len(panels) > 1:
                axes.set_title(
                    f"{panel.title[0].upper()}{panel.title[1:]}", loc="left", fontsize=10, weight="bold"
                )
            _draw(axes, panel)
        return figure


def _ratio_axis(axes: Axes, points: Sequence[Point]) -> float:
    """Scale the x axis to byte ratios, logarithmic from 1x; returns where a method that sends nothing is
    drawn.
    """
    right = max([4.0, *(p.x_high for p in points if math.isfinite(p.x_high))])
    nothing = right * 2.2
    silent = any(math.isinf(p.x) for p in points)
    left = min([0.85, *(p.x_low * 0.85 for p in points)])
    axes.set_xscale("log")
    axes.set_xlim(left, nothing * 1.35 if silent else right * 1.6)
    ticks = [2.0**k for k in range(-3, 16) if left <= 2.0**k <= right * 1.25]
    while len(ticks) > 9:
        ticks = ticks[::2]
    labels = [f"{t:g}×" for t in ticks] + (["sends\nnothing"] if silent else [])
    axes.xaxis.set_major_locator(FixedLocator([*ticks, nothing] if silent else ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda _, i: labels[i] if i is not None else ""))
    axes.xaxis.set_minor_locator(NullLocator())
    return nothing
