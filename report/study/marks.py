"""Marks of the pictures against accuracy: where each lies, how it is drawn and named, and which of them are the Pareto front.

A mark is a method with its cost on the x axis (bytes, or seconds on a link) and its difference to the uncompressed run on the y
axis. Where a sweep trained with several budgets of steps, x is the cost to equal accuracy; one beyond the budgets is 0 (never
reached) or infinite (reached before the first budget): it stands at the edge of the frame with an arrow out of it, and its
one-sided interval ends where something is known. How sure a front is says the share of bootstrap draws of the seeds in which a
method is on it, at the fixed budget of steps; methods that lost a seed have no share, since draws are the same for all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator

from report.drawing.labels import NEAR, Box, Label, place, side_by_side
from report.drawing.numbers import number
from report.drawing.scales import MEASURE, per_point, speedup_axis
from report.drawing.svg import gid
from report.drawing.table import Row
from report.drawing.theme import COLOURS, FAMILIES, colour, mark
from report.study.data import Panel
from suite.analysis.statistics import pareto_front, pareto_shares
from suite.runs.plan import MINIMUM_FOR_INTERVAL

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
    doubtful: bool = False
    """Its x is not confirmed: drawn hollow."""
    censored: str = ""
    """On which side of the budget ladder its x lies, which is 0 or infinite then; empty: on it."""
    fill: Fill | None = None
    """How much of it is filled; None: all, but for one that is doubtful or has no interval."""


NEVER = "never reached"
"""`censored` of a mark whose x is 0."""


def placed(point: Point, row: Row, column: str) -> Point:
    """The mark at its ratio at equal accuracy, a row of a table `iso` that has one."""
    x, low, high = (number(row[name]) for name in (column, "low", "high"))
    if x is None or low is None or high is None:
        raise ValueError(f"{point.arm} has no ratio at equal accuracy")
    return replace(point, x=x, x_low=low, x_high=high, censored=(row["censored"] or ""))


def points(panel: Panel) -> tuple[list[Point], list[str]]:
    """The marks of a panel, and the names of the arms that have none, with the reason; x is bytes saved, at equal accuracy
    where the sweep has a budget ladder."""
    found, absent = [], []
    climbed = {row["arm"]: row for row in panel.equal_loss if row["cost"] == "bytes"}
    for row in [*panel.methods, *panel.controls]:
        y, x = row["diff_mean"], row["bytes_ratio"]
        name, seeds = row["arm"], f"{row['n_pairs']} of {row['n']}"
        if y is None or x is None:
            lost = f"{row['n_diverged']} diverged" if row["n_diverged"] else "none finished"
            absent.append(f"{name} ({lost})")
            continue
        if climbed and climbed[name]["ratio"] is None:
            absent.append(f"{name} ({climbed[name]['reason']})")
            continue
        name = name.removeprefix("control-")
        text = name if row["n_pairs"] == row["n"] else f"{name} ({seeds})"
        family = "control" if row["control"] else row["family"]
        low, high = row["diff_low"], row["diff_high"]
        x_low, x_high = row["bytes_ratio_low"] or x, row["bytes_ratio_high"] or x
        point = Point(name, family, x, x_low, x_high, y, low, high, text)
        found.append(placed(point, climbed[row["arm"]], "ratio") if climbed else point)
    if panel.baselines:
        found.append(Point("", "baseline", 1.0, 1.0, 1.0, 0.0, None, None, "uncompressed"))
    return found, absent


def hollow_words(panels: Sequence[Panel], also: str = "") -> str:
    """Why marks of these panels are hollow, as a sentence with its blank before it; empty where none is.

    also: another reason that the caller knows of, as it goes on after "hollow marks".
    """
    rows = [
        row for panel in panels for row in (*panel.methods, *panel.controls) if row["diff_mean"] is not None
    ]
    planned = [(row["n"] or 0) for row in rows]
    few = sorted({n for n in planned if n < MINIMUM_FOR_INTERVAL})
    lost = any(
        n >= MINIMUM_FOR_INTERVAL and row["diff_low"] is None for n, row in zip(planned, rows, strict=True)
    )
    said = (
        f" {' or '.join(map(str, few))} seeds: an interval needs {MINIMUM_FOR_INTERVAL}, so these marks have none and are hollow."
        if few
        else ""
    )
    reasons = ["have lost seeds and show no interval"] * lost + [also] * bool(also)
    return said + (f" Hollow marks {', or '.join(reasons)}." if reasons else "")


def paired(panel: Panel, rows: Sequence[Row]) -> list[tuple[str, float]]:
    """(arm, difference) for each seed that the arm and its baseline finished."""
    differences = panel.differences([row for row in rows if row["baseline"] is not None])
    return [(str(arm), float(value)) for arm in differences for value in differences[arm].dropna()]


def families(panels: Sequence[Panel]) -> list[str]:
    """The families that occur in the pictures, in the order of the theme."""
    seen = {p.family for panel in panels for p in points(panel)[0]}
    return [*(f for f in FAMILIES if f in seen), *sorted(seen - set(FAMILIES))]


EDGE = 0.035
"""Share of the axis between a censored mark and the edge."""
APART = 2.6
"""Factor between the outermost value and the edge where censored marks stand."""


def by_arm(rows: Iterable[Row], **cells: object) -> dict[str, Row]:
    """The rows that have these cells, by arm."""
    return {row["arm"]: row for row in rows if cells.items() <= row.items()}


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


def band(axes: Axes, panel: Panel) -> None:
    """The equivalence band, filled only where the study could have seen a bad method."""
    margin = panel.margin
    if panel.sensitive:
        axes.axhspan(-margin, margin, color=COLOURS["band"], linewidth=0, zorder=0)
    else:
        for y in (-margin, margin):
            axes.axhline(y, color=COLOURS["muted"], linewidth=0.6, linestyle=(0, (2, 3)), zorder=0)
    axes.axhline(0, color=COLOURS["muted"], linewidth=0.7, zorder=1)


def draw_marks(axes: Axes, marks: Sequence[Point], xs: Sequence[float], faint: float = 1.0) -> None:
    """Each mark at its x with its intervals; unless its `fill` says otherwise, hollow where it has no interval in y or is
    doubtful. `faint` is the opacity of intervals.
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
        fill = point.fill or ("full" if solid else "none")
        axes.plot(
            [x], [point.y], mark(point.family), markersize=6, color=shade, gid=gid(index), zorder=4,
            markerfacecolor=COLOURS["paper"] if fill == "none" else shade, markeredgewidth=0.0 if fill == "full" else 0.9,
            markerfacecoloralt=COLOURS["paper"], fillstyle="left" if fill == "left" else "full",
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


FAR: Final = 12.0
"""How many points away a name goes in a crowded picture, to leave a square point of a line free."""


def write_names(
    axes: Axes,
    panel: Panel | None,
    marks: Sequence[Point],
    xs: Sequence[float],
    bold: Sequence[Point] = (),
    lines: Sequence[Box] = (),
    crowded: bool = False,
) -> None:
    """Write each name beside its mark, with a thin line where it had to move away.

    `bold` marks get bold names; names keep away from `lines`, boxes in points, and from the band of what counts as equal in a
    `panel`, where y is a difference. `crowded`: a mark is its shape alone and its intervals are lines; names go far rather than
    over any of them.
    """
    scale = per_point(axes)
    labels, obstacles, strokes, texts = [], [], [], []
    for x_data, point in zip(xs, marks, strict=True):
        x, y = (float(v / scale) for v in axes.transData.transform((x_data, point.y)))
        ends = [axes.transData.transform((1, v))[1] / scale for v in (point.low, point.high) if v is not None]
        reach = float(min([y - 4, *ends])), float(max([y + 4, *ends]))
        if crowded:
            obstacles.append(Box(x - 4, y - 4, x + 4, y + 4))
            interval = Box(x - 1.5, reach[0], x + 1.5, reach[1])
            strokes.append(interval.grown(0.5))  # a text's own extent is up to so much larger than its box
        else:
            obstacles.append(Box(x - 3.5, reach[0], x + 3.5, reach[1]))
        text = axes.text(0, 0, point.text, fontsize=7.6, color=colour(point.family), zorder=6)
        text.set_fontweight("bold" if point in bold else "normal")
        extent = text.get_window_extent(MEASURE)
        labels.append(Label(x, y, extent.width / scale, extent.height / scale))
        texts.append(text)
    frame = axes.get_window_extent(MEASURE)
    inner = Box(*(float(v / scale) for v in (frame.x0, frame.y0, frame.x1, frame.y1))).grown(-1)
    avoided = [*strokes, *lines]
    if panel is not None:
        zero = float(axes.transData.transform((1, 0))[1] / scale)
        avoided = [_band_note(axes, panel), Box(inner.x0, zero - 0.4, inner.x1, zero + 0.4), *avoided]
    back = axes.transData.inverted()
    boxes = place(labels, obstacles, avoided, inner, FAR if crowded else 2.0)
    for text, label, box, point in zip(texts, labels, boxes, marks, strict=True):
        left, low = back.transform((box.x0 * scale, (box.y0 + 1.6) * scale))
        text.set_position((float(left), float(low)))
        near = (min(max(label.x, box.x0), box.x1), min(max(label.y, box.y0), box.y1))
        if math.hypot(near[0] - label.x, near[1] - label.y) > NEAR:
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
    extent = text.get_window_extent(MEASURE)
    scale = per_point(axes)
    return Box(*(float(v / scale) for v in (extent.x0, extent.y0, extent.x1, extent.y1)))


def front(marks: Sequence[Point], higher_is_better: bool = True) -> list[Point]:
    """The marks that no other one equals or beats both ways, slowest first; negative controls stand aside, and what never
    has the accuracy.

    Judged by the estimates, whatever their intervals. Of marks at one place the first in the order given stays.
    """
    sign = 1.0 if higher_is_better else -1.0
    able = [point for point in marks if point.family != "control" and point.censored != NEVER]
    return [able[i] for i in pareto_front([-p.x for p in able], [sign * p.y for p in able])][::-1]


def stairs(points: Sequence[Point], left: float, bottom: float) -> tuple[list[float], list[float]]:
    """The border of what the front equals or beats, as a line from the left edge down to the bottom one.

    Raises ValueError without points.
    """
    if not points:
        raise ValueError("a front without points has no border")
    xs, ys = [left], [points[0].y]
    for before, after in itertools.pairwise(points):
        xs += [before.x, before.x]
        ys += [before.y, after.y]
    return [*xs, points[-1].x, points[-1].x], [*ys, points[-1].y, bottom]


UNCOMPRESSED = ""
"""Stands for the uncompressed run in the shares by bytes, where all optimizers' are one point."""


def shares_by_bytes(panel: Panel) -> dict[str, float]:
    """By arm, against bytes a step."""
    sent = {
        (row["arm"], row["seed"]): row["wire_bytes_per_step"] for row in panel.runs if row["status"] == "done"
    }
    costs = {}
    for arm in _differences(panel):
        found = [value for (name, _), value in sorted(sent.items(), key=str) if name == arm and value]
        if found:
            costs[arm] = sum(found) / len(found)
    uncompressed = [row["wire_bytes_per_step"] for row in panel.baselines]
    full = [value for value in uncompressed if value is not None]
    return _shares(panel, costs | ({UNCOMPRESSED: min(full)} if full else {}))


def shares_by_speed(panel: Panel, speedups: Mapping[str, float]) -> dict[str, float]:
    """By arm, against the seconds that its speedup stands for. speedups: by arm, uncompressed runs among them."""
    return _shares(panel, {arm: 1 / value for arm, value in speedups.items() if 0 < value < math.inf})


def _shares(panel: Panel, costs: Mapping[str, float]) -> dict[str, float]:
    differences = _differences(panel)
    seeds = max((len(found) for found in differences.values()), default=0)
    level = {row["arm"] for row in panel.baselines} | {UNCOMPRESSED}
    known = {arm: [0.0] * seeds for arm in costs if arm in level}
    known |= {arm: found for arm, found in differences.items() if arm in costs and len(found) == seeds}
    if seeds < MINIMUM_FOR_INTERVAL or not known:
        return {}
    sign = 1.0 if panel.facts["direction"] == "higher" else -1.0
    values = [[sign * value for value in found] for found in known.values()]
    shares = pareto_shares([[costs[arm]] * seeds for arm in known], values)
    return dict(zip(known, shares, strict=True))


def _differences(panel: Panel) -> dict[str, list[float]]:
    """The differences to the own optimizer's uncompressed run by method, seeds in order; of those that lost none."""
    whole = panel.differences(panel.methods).dropna(axis=1)
    return {str(arm): whole[arm].tolist() for arm in whole}
