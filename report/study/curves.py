"""Mean curves of the metric, one line an arm, and their picture against bytes and against steps.

A picture a family keeps a crowd of methods readable: its arms are solid, numbered at the ends of their lines and named
beside them; the uncompressed runs that they are compared with are dashed. All pictures of a panel have the same axes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from report.drawing.numbers import byte_count, signed
from report.drawing.scales import GAP, bare, difference_axis, look, name_ends, new_figure, per_point, spread
from report.drawing.svg import inline, svg_file
from report.drawing.table import Row
from report.drawing.theme import COLOURS, FAMILIES, colour
from report.study.data import PANEL, Panel, StudyData
from suite.analysis.columns import ARM_COLUMNS, CURVES, declared
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, mean_interval

MOST_POINTS = 300
"""Most points of a curve that a picture draws; the table has all."""
MEAN_CURVES = declared("mean-curves", 0, ARM_COLUMNS + """
    step        int    completed steps
    n           int    finished seeds
    mean        float  of the metric over them
    low,high    float  95 % t interval of it
    wire_bytes  float  bytes sent so far, mean over ranks and seeds
    """)  # fmt: skip
"""The table of the mean curves, which the page offers as a download."""


@dataclass(frozen=True)
class Place:
    """One evaluation of an arm, over its finished seeds; no interval below six, bytes None where not recorded."""

    step: int
    mean: float
    low: float | None
    high: float | None
    wire_bytes: float | None


@dataclass(frozen=True)
class Curve:
    """One arm: the mean over the n seeds that finished, of so many planned."""

    arm: str
    family: str
    n: int
    planned: int
    places: tuple[Place, ...]


def panel_curves(study: StudyData) -> dict[str, dict[str, Curve]]:
    """Slug of each panel -> its curves by arm."""
    frame = study.frame(CURVES)
    by_panel = dict(list(frame.groupby(PANEL)))
    none = frame.iloc[:0]
    return {
        p.slug: curves(p, by_panel.get((p.workload, p.sharding, p.world_size), none)) for p in study.panels
    }


def curves(panel: Panel, frame: pd.DataFrame) -> dict[str, Curve]:
    """The curve of every arm with a finished seed that kept one.

    Args:
        panel: Says which seeds finished.
        frame: Of the table `curves`, the rows of the panel.

    Returns:
        By arm, in the order of the summary.
    """
    done = {(row["arm"], row["seed"]) for row in panel.runs if row["status"] == "done"}
    own = frame.loc[[pair in done for pair in zip(frame["arm"], frame["seed"], strict=True)]]
    seeds_of = own.groupby("arm")["seed"].unique()
    wide = own.pivot(index=["arm", "step"], columns="seed", values=["value", "wire_bytes"]).astype(float)
    found = {}
    for row in panel.summary:
        name = row["arm"]
        if name in seeds_of.index:
            family = "control" if row["control"] else row["family"]
            found[name] = Curve(
                name,
                family,
                len(seeds_of[name]),
                row["n"] or 0,
                _places(wide.loc[name], sorted(seeds_of[name])),
            )
    return found


def _places(own: pd.DataFrame, seeds: list[int]) -> tuple[Place, ...]:
    """At the steps that all its seeds have, but for those where one of them was not finite; own: a row a step."""
    values, sent = own["value"][seeds].dropna(), own["wire_bytes"][seeds]
    places = []
    for step, known, bytes_ in zip(
        values.index.tolist(),
        values.to_numpy().tolist(),
        sent.loc[values.index].to_numpy(float).tolist(),
        strict=True,
    ):
        interval = mean_interval(known) if len(known) >= MINIMUM_FOR_INTERVAL else None
        places.append(
            Place(
                int(step),
                fmean(known),
                interval.low if interval else None,
                interval.high if interval else None,
                None if any(map(math.isnan, bytes_)) else fmean(bytes_),
            )
        )
    return tuple(places)


def drawn(places: Sequence[Place]) -> list[Place]:
    """At most `MOST_POINTS` of them, evenly spread, the last among them."""
    every = math.ceil(len(places) / MOST_POINTS) or 1
    return list(places[::-1][::every])[::-1]


def mean_curves(study: StudyData, found: Mapping[str, Mapping[str, Curve]]) -> list[Row]:
    """The rows behind all pictures of the study, by the columns `MEAN_CURVES`. found: as of `panel_curves`."""
    return [
        {
            "workload": panel.workload,
            "sharding": panel.sharding,
            "world_size": panel.world_size,
            "arm": arm,
            "step": place.step,
            "n": curve.n,
            "mean": place.mean,
            "low": place.low,
            "high": place.high,
            "wire_bytes": place.wire_bytes,
        }
        for panel in study.panels
        for arm, curve in sorted(found[panel.slug].items())
        for place in curve.places
    ]


def curves_parts(study: StudyData, found: Mapping[str, Mapping[str, Curve]]) -> dict[str, Any]:
    """What the template needs: a part a panel whose uncompressed runs kept curves. found: as of `panel_curves`."""
    parts = [part for panel in study.panels if (part := _part(panel, found[panel.slug])) is not None]
    return {"panels": parts, "command": study.facts["command"]}


def _part(panel: Panel, found: Mapping[str, Curve]) -> dict[str, Any] | None:
    sign = 1 if panel.facts["direction"] == "higher" else -1
    of_baselines = [found[row["arm"]] for row in panel.baselines if row["arm"] in found]
    ends = [curve.places[-1].mean for curve in of_baselines if curve.places]
    if not ends:
        return None
    return {
        "slug": panel.slug,
        "pictures": _pictures(panel, found, max(ends, key=lambda end: sign * end)),
        "absent": [row["arm"] for row in panel.summary if row["arm"] not in found],
    }


def _pictures(panel: Panel, found: Mapping[str, Curve], zero: float) -> list[dict[str, str]]:
    """One picture a family that has something to draw, controls last. zero: the metric from which all are drawn."""
    baseline = {row["arm"]: row["baseline"] for row in panel.summary}
    metric = str(panel.facts["metric"]).replace("_", " ")
    families = {curve.family for curve in found.values()} - {"baseline"}
    pictures = []
    for family in sorted(
        families, key=lambda one: (list(FAMILIES).index(one) if one in FAMILIES else 99, one)
    ):
        own = sorted(
            (c for c in found.values() if c.family == family and baseline[c.arm]), key=lambda c: c.arm
        )
        if not own:
            continue
        wanted = [found[arm] for arm in sorted({str(baseline[curve.arm]) for curve in own} & found.keys())]
        figure = family_curves(panel, own, wanted, list(found.values()), zero)
        words = FAMILIES.get(family, family)
        label = f"{words}, {panel.workload}, {panel.title}: {metric} less the best uncompressed end, against bytes and steps"
        titles = hover(panel, [*own, *wanted], zero)
        pictures.append(
            {
                "title": f"{words[0].upper()}{words[1:]}: {metric} by bytes and by steps",
                "counts": _counts(own),
                "svg": inline(svg_file(figure), f"c-{panel.slug}-{family}", label, titles),
            }
        )
    return pictures


def _counts(own: Sequence[Curve]) -> str:
    counts = sorted({curve.n for curve in own})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


WIDTH, NAMES, LEFT = 5.5, 1.95, 0.6
"""Inches: of the picture, of the room for names, of that for the axis."""
NUMBER_GAP = 7.0
"""Least distance of two numbers at the ends of lines, in points."""


def twins(lines: int) -> tuple[Figure, Axes, Axes]:
    """Two axes beside each other with room for the names of so many lines on their right; inside of `look`."""
    height = max(2.35, 0.62 + (GAP / 72) * (lines + 1))
    figure, (left, right) = new_figure(WIDTH, height, 2)
    figure.subplots_adjust(
        left=LEFT / WIDTH, right=1 - NAMES / WIDTH, bottom=0.44 / height, top=1 - 0.08 / height, wspace=0.1
    )
    return figure, left, right


def family_curves(
    panel: Panel, own: Sequence[Curve], baselines: Sequence[Curve], every: Sequence[Curve], zero: float
) -> Figure:
    """Left against bytes (log), right against steps; up is better. every: all curves of the panel, for the axes."""
    lines = [*own, *baselines]
    with look():
        figure, by_bytes, by_steps = twins(len(lines))
        _axes(by_bytes, by_steps, panel, every, zero)
        for place, curve in enumerate(lines, start=1):
            _draw(by_bytes, by_steps, place, curve, zero, 0.0 if curve in baselines else 0.16 / len(own))
        _numbers(by_bytes, lines, zero)
        ends = [(place, curve) for place, curve in enumerate(lines, start=1) if curve.places]
        name_ends(
            by_steps,
            [(f"{n} {name(c)}", c.places[-1].mean - zero, c.family) for n, c in ends],
        )
        return figure


def _axes(by_bytes: Axes, by_steps: Axes, panel: Panel, every: Sequence[Curve], zero: float) -> None:
    values = [place.mean - zero for curve in every for place in curve.places]
    for axes in (by_bytes, by_steps):
        difference_axis(axes, "y", values, panel.margin)
        bare(axes, "y")
        if panel.facts["direction"] == "lower":
            axes.invert_yaxis()
        axes.axhline(0, color=COLOURS["muted"], linewidth=0.8, zorder=1)
    by_steps.tick_params(labelleft=False)
    by_steps.set_xlim(0, float(panel.facts["steps"]))
    by_steps.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    by_steps.set_xlabel("steps")
    sent = [p.wire_bytes for c in every for p in c.places if p.wire_bytes]
    if sent:
        by_bytes.set_xscale("log")
        by_bytes.set_xlim(min(sent) / 1.3, max(sent) * 2.2)
        by_bytes.xaxis.set_major_locator(FixedLocator(decades(*by_bytes.get_xlim())))
        by_bytes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: byte_count(value)))
        by_bytes.xaxis.set_minor_locator(NullLocator())
    else:
        by_bytes.set_xticks([])
        by_bytes.text(0.5, 0.5, "bytes not recorded", ha="center", transform=by_bytes.transAxes, fontsize=7)
    by_bytes.set_xlabel("bytes sent, a rank (log)")
    metric = str(panel.facts["metric"]).replace("_", " ")
    by_bytes.set_ylabel(f"{metric} less the best uncompressed{f' ({panel.unit})' if panel.unit else ''}")


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from low to high: every one, or so few of them, the greatest among these, that their names do not touch."""
    found = [10.0**k for k in range(-3, 19) if low <= 10.0**k <= high]
    every = -(-len(found) // 3) or 1
    return found[::-1][::every][::-1]


def gid(place: int, axis: str) -> str:
    """Group id of a line in the SVG."""
    return f"curve{place}-{axis}"


def hover(panel: Panel, lines: Sequence[Curve], zero: float) -> dict[str, str]:
    """Hover text by group id."""
    titles: dict[str, str] = {}
    for place, curve in enumerate(lines, start=1):
        if not curve.places:
            continue
        last = curve.places[-1]
        sent = "" if last.wire_bytes is None else f" after {byte_count(last.wire_bytes)}"
        behind = f"{signed(last.mean - zero, panel.digits)} {panel.unit}".strip()
        words = f"{name(curve)}: ends {behind} from the best uncompressed run"
        titles |= {gid(place, axis): f"{words}{sent}, n = {curve.n}" for axis in ("bytes", "steps")}
    return titles


def name(curve: Curve) -> str:
    """As it stands beside the picture: with how many seeds finished, where some did not."""
    short = curve.arm.removeprefix("control-")
    return short if curve.n == curve.planned else f"{short} ({curve.n} of {curve.planned})"


def _draw(by_bytes: Axes, by_steps: Axes, place: int, curve: Curve, zero: float, opacity: float) -> None:
    """A curve in both axes, its intervals in that opacity; dashed where they are not drawn."""
    shade, dashed = colour(curve.family), not opacity
    style: dict[str, Any] = {
        "color": shade, "linewidth": 1.1 if dashed else 1.3, "linestyle": (0, (4, 2)) if dashed else "-",
        "marker": "o", "markersize": 2.4,
    }  # fmt: skip
    for axes, axis in ((by_steps, "steps"), (by_bytes, "bytes")):
        places = drawn([p for p in curve.places if axis == "steps" or p.wire_bytes])
        if not places:
            continue
        xs = [float(p.step if axis == "steps" else p.wire_bytes or 0.0) for p in places]
        axes.plot(
            xs, [p.mean - zero for p in places], gid=gid(place, axis), zorder=3, markevery=[-1], **style
        )
        known = [
            (x, p.low, p.high)
            for x, p in zip(xs, places, strict=True)
            if p.low is not None and p.high is not None
        ]
        if known and not dashed:
            low, high = [low - zero for _, low, _ in known], [high - zero for _, _, high in known]
            axes.fill_between(
                [x for x, *_ in known], low, high, color=shade, alpha=opacity, linewidth=0, zorder=2
            )


def _numbers(axes: Axes, lines: Sequence[Curve], zero: float) -> None:
    """The number of every line at its end, moved up or down where others end nearby."""
    scale, frame = per_point(axes), axes.get_window_extent()
    ends = []
    for place, curve in enumerate(lines, start=1):
        if curve.places and (sent := curve.places[-1].wire_bytes):
            x, y = axes.transData.transform((sent, curve.places[-1].mean - zero)) / scale
            ends.append((float(x), float(y), str(place), colour(curve.family)))
    ends.sort()
    while ends:
        near = [end for end in ends if end[0] - ends[0][0] < NUMBER_GAP]
        ends = ends[len(near) :]
        edge = max(x for x, *_ in near) + 2
        spots = spread([y for _, y, *_ in near], NUMBER_GAP, float(frame.y0) / scale, float(frame.y1) / scale)
        for (_, _, text, shade), spot in zip(near, spots, strict=True):
            axes.annotate(
                text,
                (edge, spot),
                xycoords="figure points",
                va="center",
                fontsize=6.6,
                color=shade,
                annotation_clip=False,
            )
