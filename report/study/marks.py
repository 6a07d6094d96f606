"""Marks of the pictures of loss against time: where each lies, how it is drawn and named."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from matplotlib.axes import Axes

from report.drawing.labels import NEAR, Box, Label, place
from report.drawing.scales import MEASURE, per_point
from report.drawing.svg import gid
from report.drawing.table import Row
from report.drawing.theme import COLOURS, FAMILIES, colour, mark
from report.study.data import Panel

Fill = Literal["full", "left", "none"]


@dataclass(frozen=True)
class Point:
    """One mark: where it lies, its interval (None below six pairs), and what is written at it."""

    arm: str
    family: str
    x: float
    x_low: float
    x_high: float
    y: float
    low: float | None
    high: float | None
    text: str
    fill: Fill = "full"


def families(panel: Panel) -> list[str]:
    """The families that occur in a panel, in the order of the theme."""
    seen = {"control" if row["control"] else row["family"] for row in panel.summary}
    return [*(f for f in FAMILIES if f in seen), *sorted(seen - set(FAMILIES))]


def grouped(missing: Mapping[str, Iterable[str]]) -> list[str]:
    """`a, b (why)` for every reason, in the order given."""
    return [f"{', '.join(names)} ({why})" for why, names in missing.items()]


def by_arm(rows: Iterable[Row], **cells: object) -> dict[str, Row]:
    """The rows that have these cells, by arm."""
    return {row["arm"]: row for row in rows if cells.items() <= row.items()}


def draw_marks(axes: Axes, marks: Sequence[Point]) -> None:
    """Each mark with its intervals, filled as its `fill` says."""
    for index, point in enumerate(marks):
        shade = colour(point.family)
        thin: dict[str, Any] = {"color": shade, "linewidth": 1.3, "alpha": 0.55, "zorder": 3}
        if point.low is not None and point.high is not None:
            axes.plot([point.x, point.x], [point.low, point.high], solid_capstyle="butt", **thin)
        if point.x_high > point.x_low and math.isfinite(point.x_high):
            axes.plot([point.x_low, point.x_high], [point.y] * 2, solid_capstyle="butt", **thin)
        fill = point.fill
        axes.plot(
            [point.x], [point.y], mark(point.family), markersize=6, color=shade, gid=gid(index), zorder=4,
            markerfacecolor=COLOURS["paper"] if fill == "none" else shade, markeredgewidth=0.0 if fill == "full" else 0.9,
            markerfacecoloralt=COLOURS["paper"], fillstyle="left" if fill == "left" else "full",
        )  # fmt: skip


def across(axes: Axes, marks: Sequence[Point]) -> list[Box]:
    """The places of the intervals in x, which names keep away from."""
    scale, boxes = per_point(axes), []
    for point in marks:
        ends = [axes.transData.transform((v, point.y)) / scale for v in (point.x_low, point.x_high)]
        boxes.append(
            Box(float(ends[0][0]), float(ends[0][1]) - 1.5, float(ends[1][0]), float(ends[0][1]) + 1.5)
        )
    return boxes


FAR: Final = 12.0
"""How many points away a name goes, to leave a square point of a line free."""


def write_names(axes: Axes, marks: Sequence[Point], bold: Sequence[Point], lines: Sequence[Box]) -> None:
    """Write each name beside its mark, with a thin line where it had to move away.

    `bold` marks get bold names; names keep away from `lines`, boxes in points, and go far rather than over
    a mark or its interval.
    """
    scale = per_point(axes)
    labels, obstacles, strokes, texts = [], [], [], []
    for point in marks:
        x, y = (float(v / scale) for v in axes.transData.transform((point.x, point.y)))
        ends = [axes.transData.transform((1, v))[1] / scale for v in (point.low, point.high) if v is not None]
        reach = float(min([y - 4, *ends])), float(max([y + 4, *ends]))
        obstacles.append(Box(x - 4, y - 4, x + 4, y + 4))
        interval = Box(x - 1.5, reach[0], x + 1.5, reach[1])
        strokes.append(interval.grown(0.5))  # a text's own extent is up to so much larger than its box
        text = axes.text(0, 0, point.text, fontsize=7.6, color=colour(point.family), zorder=6)
        text.set_fontweight("bold" if point in bold else "normal")
        extent = text.get_window_extent(MEASURE)
        labels.append(Label(x, y, extent.width / scale, extent.height / scale))
        texts.append(text)
    frame = axes.get_window_extent(MEASURE)
    inner = Box(*(float(v / scale) for v in (frame.x0, frame.y0, frame.x1, frame.y1))).grown(-1)
    back = axes.transData.inverted()
    boxes = place(labels, obstacles, [*strokes, *lines], inner, FAR)
    for text, label, box, point in zip(texts, labels, boxes, marks, strict=True):
        left, low = back.transform((box.x0 * scale, (box.y0 + 1.6) * scale))
        text.set_position((float(left), float(low)))
        near = (min(max(label.x, box.x0), box.x1), min(max(label.y, box.y0), box.y1))
        if math.hypot(near[0] - label.x, near[1] - label.y) > NEAR:
            joined = back.transform(np.array([[label.x, label.y], near]) * scale)
            axes.plot(
                joined[:, 0], joined[:, 1], color=colour(point.family), linewidth=0.5, alpha=0.7, zorder=2
            )
