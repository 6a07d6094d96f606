"""Loss against time: in the same seconds on a link, does training with a method end better than plain training?

A picture a link has the seconds of whole trainings over those of the reference across, the workload's metric upright (up is
better), the reference at its budgets as a curve, and every method as a mark: what lies above the curve beats plain
training. The verdict is that of the table `net`, which sets a method against one worker alone, too, with tests paired by
seed; a mark is filled where it is worth it, hollow where it is not, and half filled where that is undecided. One table has
the net speedups of all links, and what each training is worth in steps of the reference, which needs no session.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.interpolate import PchipInterpolator

from report.drawing import numbers as write
from report.drawing.labels import Box
from report.drawing.numbers import factor, interval, plain, times
from report.drawing.scales import MEASURE, bare, look, new_figure, per_point, speedup_axis
from report.drawing.svg import gid, inline, svg_file
from report.drawing.table import Cell, Column, Line, Row, View, chips
from report.drawing.theme import COLOURS, FAMILIES, SHAPES, colour
from report.rendering import slug
from report.study.data import LinkData, Panel, StudyData
from report.study.marks import Fill, Point, across, by_arm, draw_marks, families, grouped, write_names
from suite.analysis.columns import ONE_WORKER
from suite.links.link import REAL
from suite.runs.sweep import WHOLE

WORTH_IT, NOT, UNDECIDED = "worth it", "not worth it", "undecided"
FILLS: Final = MappingProxyType[str, Fill]({WORTH_IT: "full", NOT: "none", UNDECIDED: "left"})
SIGNS: Final = MappingProxyType({WORTH_IT: ("●", "yes"), NOT: ("○", "no"), UNDECIDED: ("◐", "maybe")})
"""Verdict -> the mark of its cell, filled as in the pictures, and its colour."""
NAMED: Final = 3
"""Methods, or controls, that a sentence names."""
ROOM: Final = 3
"""Links beside which the table has room for what needs none; beside more of them the menu of columns has it."""
CONFIRMED: Final = "confirmed"
EDGE: Final = 0.035
"""Share of the axis between the edge and a mark that lies beyond it."""
FENCE: Final = 3.0
"""Interquartile ranges below the lower quartile, from where on a mark stands at the edge (Tukey's outer fence)."""
CURVE_POINTS: Final = 120
RUNS: Final = "of the training, mean over the finished seeds, with its 95 % t interval"


@dataclass(frozen=True)
class Curve:
    """The reference by budget, rising: its mean, and the ends of its interval where every budget has one."""

    arm: str
    budgets: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def at(self, budgets: np.ndarray, values: Sequence[float] = ()) -> np.ndarray:
        """The mean, or other values by budget, between budgets: a monotone cubic along the logarithm, as the test has it."""
        found: np.ndarray = PchipInterpolator(np.log(self.budgets), values or self.mean)(np.log(budgets))
        return found


@dataclass(frozen=True)
class Timed:
    """One link of a panel: the rows of `net` by arm, how the link is called, and a name for anchors."""

    link: LinkData
    label: str
    slug: str
    net: dict[str, Row]


def curve_of(panel: Panel) -> Curve | None:
    """The reference of a panel at its budgets; None where fewer than two have a mean."""
    if not panel.worth:
        return None
    name = panel.worth[0]["reference"]
    rows = sorted(
        (row for row in panel.budgets if row["arm"] == name and row["mean"] is not None),
        key=lambda row: row["budget"],
    )
    if len(rows) < 2:
        return None
    columns = {key: tuple(row[key] for row in rows) for key in ("budget", "mean", "ci_low", "ci_high")}
    ends = (
        (columns["ci_low"], columns["ci_high"])
        if None not in (*columns["ci_low"], *columns["ci_high"])
        else ()
    )
    return Curve(name, columns["budget"], columns["mean"], *ends)


def timed_links(study: StudyData, panel: Panel) -> list[Timed]:
    """The links on which sessions of the study timed a panel, slowest first."""
    found = [
        (session, link)
        for session in study.sessions
        if session.sweep == study.sweep
        and session.timed(panel.workload)
        and session.facts["world_size"] == panel.world_size
        for link in session.links
    ]
    labels = [link.label for _, link in found]
    timed = [
        Timed(
            link,
            link.label if labels.count(link.label) == 1 else f"{link.label}, {session.name}",
            f"{slug(session.name)}-{link.slug}",
            rows,
        )
        for session, link in found
        if (rows := by_arm(link.net, sharding=panel.sharding))
    ]
    return sorted(timed, key=lambda one: _rate_bps(one.link.facts["link"]))


def _rate_bps(link: Mapping[str, Any]) -> float:
    """Of an emulated link what it holds, of a real one what was measured."""
    return link.get("rate_bps") or link.get(REAL, {}).get("rate_bps") or math.inf


def equal_time_parts(study: StudyData) -> list[dict[str, Any]]:
    """What the template shows: a part for every panel that the table `worth` has; empty where there is none."""
    several = len({(panel.workload, panel.world_size) for panel in study.panels}) > 1
    return [_part(study, panel, several) for panel in study.panels if panel.worth]


def _part(study: StudyData, panel: Panel, several: bool) -> dict[str, Any]:
    links, curve = timed_links(study, panel), curve_of(panel)
    place = f"{panel.title[0].upper()}{panel.title[1:]}"
    return {
        "heading": f"{panel.workload}, {panel.title}, {panel.world_size} workers" if several else place,
        "setting": f"{panel.workload}, {panel.world_size} workers, {panel.facts['steps']} steps, {panel.title}, {_seeds(panel)}",
        "sentences": sentences(panel, links),
        "key": [
            (name, FAMILIES.get(name, name), SHAPES.get(name, SHAPES["sign"])) for name in families(panel)
        ],
        "pictures": [_picture(panel, curve, one) for one in links] if curve else [],
        "reference": panel.worth[0]["reference"],
        "view": equal_time_view(panel, links, curve),
        "timed": bool(links),
    }


def _seeds(panel: Panel) -> str:
    """12 seeds, or 10 to 12 seeds: the n of the intervals of all methods."""
    counts = sorted(row["n"] for row in panel.worth)
    return f"{counts[0]}{f' to {counts[-1]}' if counts[-1] > counts[0] else ''} seeds"


def _picture(panel: Panel, curve: Curve, one: Timed) -> dict[str, Any]:
    marks, absent = marks_of(panel, one)
    place = f"{one.label}, {panel.title}"
    return {
        "heading": place,
        "budget": f"{panel.workload}, {panel.world_size} workers, {panel.facts['steps']} steps",
        "figure": inline(
            svg_file(loss_against_time(panel, curve, [(one.label, marks)])),
            f"e-{one.slug}-{panel.slug}",
            f"{place}: {panel.metric} over seconds of the training; the net speedups are in the table below",
            hover(panel, one, marks),
        )
        if marks
        else "",
        "absent": absent,
    }


def marks_of(panel: Panel, one: Timed) -> tuple[list[Point], list[str]]:
    """The marks of a link in the order of its rows, and who has none, with why. x: time, y: the metric."""
    worth, ends = by_arm(panel.worth), by_arm(panel.summary)
    marks: list[Point] = []
    missing: dict[str, list[str]] = {}
    for arm, row in one.net.items():
        mean, x = worth[arm]["mean"], row["time"]
        if x is None or mean is None or row["verdict"] is None:
            missing.setdefault(row["reason"] or "no run finished", []).append(arm)
            continue
        name, low, high = arm.removeprefix("control-"), ends[arm]["ci_low"], ends[arm]["ci_high"]
        lost = worth[arm]["n_diverged"]
        marks.append(
            Point(
                name, _family(ends[arm]), x, row["time_low"], row["time_high"], mean, low, high,
                f"{name} ({lost} diverged)" if lost else name, fill=FILLS[row["verdict"]],
            )
        )  # fmt: skip
    return marks, grouped(missing)


def _family(row: Row) -> str:
    """One worker alone is an alternative that compresses nothing, and no negative control of what takes seconds."""
    if row["algorithm"] == ONE_WORKER:
        return "baseline"
    return "control" if row["control"] else str(row["family"])


def _negative(panel: Panel) -> list[Row]:
    return [row for row in panel.controls if row["algorithm"] != ONE_WORKER]


def _floor(panel: Panel, curve: Curve, marks: Sequence[Point]) -> float:
    """The worst metric that the pictures of a panel hold: of its methods, but neither of outliers nor beyond the reference's
    least budget; at least what the reference loses with half of the steps.
    """
    sign = 1.0 if panel.facts["direction"] == "higher" else -1.0
    ys = np.array([sign * mark.y for mark in marks if mark.family != "control"])
    half = sign * float(curve.at(np.array([max(curve.budgets[0], WHOLE / 2)]))[0])
    if not len(ys):
        return sign * half
    quartile, upper = np.quantile(ys, [0.25, 0.75])
    held = ys[ys >= quartile - FENCE * (upper - quartile)]
    return sign * min(half, max(float(held.min()), sign * curve.mean[0]))


def loss_against_time(
    panel: Panel, curve: Curve, links: Sequence[tuple[str, Sequence[Point]]], width: float = 5.5
) -> Figure:
    """A figure of a panel with a picture for each (link's label, marks), side by side; upright they share their axis."""
    height = 5.0
    every = [mark for _, marks in links for mark in marks]
    with look():
        figure, grid = new_figure(width * len(links), height, len(links))
        figure.subplots_adjust(
            left=0.72 / (width * len(links)), right=1 - 0.14 / (width * len(links)), bottom=0.5 / height,
            top=1 - (0.34 if len(links) > 1 else 0.12) / height, wspace=0.86 / (width - 0.86),
        )  # fmt: skip
        for axes, (label, marks) in zip(grid, links, strict=True):
            if len(links) > 1:
                axes.set_title(label, loc="left", fontsize=10, weight="bold")
            _draw(axes, panel, curve, marks, _floor(panel, curve, every))
            axes.set_xlabel("seconds of the training over the reference's: left is faster")
            axes.set_ylabel(f"{panel.metric}: up is better")
        return figure


def _draw(axes: Axes, panel: Panel, curve: Curve, marks: Sequence[Point], floor: float) -> None:
    higher = panel.facts["direction"] == "higher"
    _scale(axes, curve, marks, floor, higher)
    bare(axes, "y")
    axes.grid(axis="x")
    lines = [*_draw_curve(axes, curve), *_sides(axes)]
    bottom, top = axes.get_ylim()
    edge = bottom + EDGE * (top - bottom)
    shown = [
        mark if (mark.y - edge) * (top - bottom) >= 0 else _at_edge(axes, mark, edge, bottom)
        for mark in marks
    ]
    own = Point("", "baseline", 1.0, 1.0, 1.0, float(curve.at(np.array([1.0]))[0]), None, None, curve.arm)
    named = [*shown, own]
    draw_marks(axes, named)
    write_names(axes, named, [own], [*lines, *across(axes, named)])


def _scale(axes: Axes, curve: Curve, marks: Sequence[Point], floor: float, higher: bool) -> None:
    """Both axes: x holds all marks and the reference at budget 1, y what is no worse than the floor; up is better."""
    speedup_axis(axes, [v for mark in marks for v in (mark.x_low, mark.x_high)], (1.25, 1.25))
    sign = 1.0 if higher else -1.0
    ys = [v for mark in marks for v in (mark.y, mark.low, mark.high) if v is not None]
    ys += [floor, *curve.at(np.array([b for b in curve.budgets if b <= axes.get_xlim()[1]]))]
    best, worst = max(sign * v for v in ys), sign * floor
    pad = 0.08 * (best - worst)
    axes.set_ylim(sign * (worst - pad), sign * (best + 1.5 * pad))


def _at_edge(axes: Axes, mark: Point, edge: float, bottom: float) -> Point:
    """A mark that lies below the frame, at its lower edge with an arrow out of it."""
    axes.annotate(
        "", (mark.x, bottom), (mark.x, edge), annotation_clip=False, zorder=5,
        arrowprops={"arrowstyle": "-|>", "color": colour(mark.family), "linewidth": 1.1, "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip
    return Point(
        mark.arm, mark.family, mark.x, mark.x_low, mark.x_high, edge, None, None, mark.text, fill=mark.fill
    )


def _draw_curve(axes: Axes, curve: Curve) -> list[Box]:
    """The reference with its band, and squares at its budgets; returns the places that the line takes."""
    at = np.geomspace(curve.budgets[0], curve.budgets[-1], CURVE_POINTS)
    means, shade = curve.at(at), COLOURS["baseline"]
    if curve.low:
        ends = curve.at(at, curve.low), curve.at(at, curve.high)
        axes.fill_between(at, *ends, color=shade, alpha=0.16, linewidth=0, zorder=1)
    axes.plot(at, means, color=shade, linewidth=1.6, zorder=2, gid="reference")
    axes.plot(curve.budgets, curve.mean, "s", color=shade, markersize=2.6, markeredgewidth=0, zorder=2)
    points = axes.transData.transform(np.column_stack([at, means])) / per_point(axes)
    return [
        Box(float(min(a[0], b[0])), float(min(a[1], b[1])), float(max(a[0], b[0])), float(max(a[1], b[1]))).grown(0.8)
        for a, b in itertools.pairwise(points)
    ]  # fmt: skip


def _sides(axes: Axes) -> list[Box]:
    """Say on which side of the curve is what; returns the places that the words take."""
    boxes, scale = [], per_point(axes)
    for words, at, side, up in (
        ("above the curve: beats plain training", (0.012, 0.99), "left", "top"),
        ("below: behind it", (0.988, 0.012), "right", "bottom"),
    ):
        text = axes.text(
            *at, words, transform=axes.transAxes, ha=side, va=up, fontsize=7.6, style="italic", color=COLOURS["muted"]
        )  # fmt: skip
        extent = text.get_window_extent(MEASURE)
        boxes.append(Box(*(float(v / scale) for v in (extent.x0, extent.y0, extent.x1, extent.y1))))
    return boxes


def hover(panel: Panel, one: Timed, marks: Sequence[Point]) -> dict[str, str]:
    """Hover text by group id."""
    rows = {arm.removeprefix("control-"): row for arm, row in one.net.items()}
    titles = {}
    for index, mark in enumerate(marks):
        row = rows[mark.arm]
        ends = interval(mark.low, mark.high, panel.digits)
        titles[gid(index)] = (
            f"{mark.text}: {row['verdict']}, net speedup {net_words(row)}; {factor(mark.x)} "
            f"{interval(mark.x_low, mark.x_high, 3)} of the reference's seconds, "
            f"{f'{plain(mark.y, panel.digits)} {ends}'.strip()} {panel.unit}".strip()
        )
    return titles


def net_words(row: Row) -> str:
    """4.20× [4.00, 4.52]."""
    return f"{times(row['net'])} {_bounds(row['net_low'], row['net_high'])}"


def _bounds(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return ""
    return f"[{factor(low)}, {factor(high)}]"


def equal_time_view(panel: Panel, links: Sequence[Timed], curve: Curve | None) -> View:
    """The one table: a row a method, a column of net speedups a link, best on the slowest link first."""
    reference = panel.worth[0]["reference"]
    about = (
        f"Net speedup: seconds of {reference} to the method's metric over the method's seconds, with its 95 % interval of seeds, "
        "tuning and timing."
    )
    crowded = len(links) > ROOM
    columns = (
        Column("method", "method", "The sweep's label of a method with its options."),
        *(Column(f"net-{one.slug}", one.label, about, True, True) for one in links),
        Column(
            "worth", "worth, % of steps",
            f"After what share of its steps {reference} ends as well as the method, with its 95 % interval of seeds and tuning.",
            True, True, crowded,
        ),
        Column("mean", "ends at", f"Metric at the end {RUNS}.", True, True, crowded),
        Column("n", "seeds", "Paired with the reference; the n of all intervals of the row.", True, hidden=crowded),
        Column("family", "family", "What kind of method it is.", hidden=True),
        Column("reason", "why not", "Why there is no number."),
    )  # fmt: skip
    ends = by_arm(panel.summary)
    lines = [_line(row, ends[row["arm"]], panel, links, curve) for row in _ordered(panel, links)]
    if all(line.cells["reason"].raw is None for line in lines):
        columns = columns[:-1]
    return View(
        f"{panel.slug}-equal-time", f"Equal time, {panel.workload}, {panel.title}", columns, tuple(lines), chips(lines)
    )  # fmt: skip


def _ordered(panel: Panel, links: Sequence[Timed]) -> list[Row]:
    """Rows of `worth`, the greatest net speedup on the slowest link first; without links what is worth most."""

    def place(row: Row) -> tuple[float, float, str]:
        net = links[0].net.get(row["arm"], {}).get("net") if links else None
        net, worth = (-math.inf if value is None else value for value in (net, row["worth"]))
        return -net, -worth, row["arm"]

    return sorted(panel.worth, key=place)


def _line(row: Row, end: Row, panel: Panel, links: Sequence[Timed], curve: Curve | None) -> Line:
    nets = [one.net.get(row["arm"]) for one in links]
    reasons = dict.fromkeys(r["reason"] for r in (row, *nets) if r is not None and r["reason"])
    why = "; ".join(reasons)
    family = _family(end)
    cells = {
        "method": Cell(row["arm"], row["arm"]),
        **{f"net-{one.slug}": _net_cell(net, curve) for one, net in zip(links, nets, strict=True)},
        "worth": _worth_cell(row, curve),
        "mean": Cell(
            plain(row["mean"], panel.digits), row["mean"],
            interval(end["ci_low"], end["ci_high"], panel.digits), (end["ci_low"], end["ci_high"]),
        ),
        "n": Cell(str(row["n"]), row["n"]),
        "family": Cell(family, family),
        "reason": Cell(why, why or None, css="reason"),
    }  # fmt: skip
    return Line(cells, family)


def _beyond(value: float, scale: float, curve: Curve | None, text: Any) -> str:
    """A number; where it lies beyond the reference's budgets, below or above what."""
    if value > 0 and math.isfinite(value):
        return str(text(value))
    if curve is None:
        return "below" if value == 0 else "above"
    return f"{'<' if value == 0 else '>'} {text(curve.budgets[0 if value == 0 else -1] / scale)}"


def _net_cell(row: Row | None, curve: Curve | None) -> Cell:
    """A net speedup, with the sign of its verdict."""
    if row is None or row["net"] is None:
        return Cell(write.MISSING, None, css="quiet")
    sign, css = SIGNS.get(row["verdict"], ("", ""))
    note = _bounds(row["net_low"], row["net_high"]) + ("" if row["check"] == CONFIRMED else "†")
    text = _beyond(row["net"], row["time"], curve, times)
    return Cell(
        text, row["net"], note, (row["net_low"], row["net_high"]), css, items=(Cell(sign, css=css, note=row["verdict"]),)
    )  # fmt: skip


def _worth_cell(row: Row, curve: Curve | None) -> Cell:
    if row["worth"] is None:
        return Cell(write.MISSING, None, css="quiet")
    if row["n_diverged"]:
        return Cell(f"{row['n_diverged']} diverged", row["worth"], css="no")
    ends = row["low"], row["high"]
    text = _beyond(row["worth"], 1.0, curve, _percent)
    return Cell(text, row["worth"], _bounds(*(100 * end for end in ends)), ends)


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


def sentences(panel: Panel, links: Sequence[Timed]) -> list[str]:
    """What is worth it, a line a link, and how much is decided; sentences of at most 25 words."""
    methods = [row["arm"] for row in panel.methods]
    if not links:
        return _worth_sentences(panel, methods)
    nets = [one.net[arm] for one in links for arm in methods if arm in one.net]
    decided = sum(row["verdict"] in (WORTH_IT, NOT) for row in nets)
    return [
        *(_link_sentences(panel, one, methods) for one in links),
        f"{decided} of {len(nets)} pairs of method and link are decided. "
        f"Nothing was timed over a link faster than {links[-1].label}: `bandwise advise` computes there.",
    ]


def _link_sentences(panel: Panel, one: Timed, methods: Sequence[str]) -> str:
    rows = {arm: one.net[arm] for arm in methods if arm in one.net}
    ahead = sorted(
        (arm for arm, row in rows.items() if row["verdict"] == WORTH_IT),
        key=lambda arm: (-rows[arm]["net"], arm),
    )
    undecided = sum(row["verdict"] == UNDECIDED for row in rows.values())
    said = [_count(one.label, len(ahead), len(rows), undecided)]
    beats, alone = (sum(row[name] == WORTH_IT for row in rows.values()) for name in ("plain", "alone"))
    timed = any(row["alone"] for row in rows.values())
    told = f"{alone} one worker alone" if timed else "and one worker alone was not timed"
    said.append(f"{beats} beat plain training, {told}.")
    if ahead:
        said.append(_best({arm: rows[arm] for arm in ahead if rows[arm]["check"] == CONFIRMED}))
    controls = [
        row["arm"] for row in _negative(panel) if one.net.get(row["arm"], {}).get("verdict") == WORTH_IT
    ]
    if controls:
        who = "one negative control" if len(controls) == 1 else f"{len(controls)} negative controls"
        names = f": {_listed(controls)}" if len(controls) <= NAMED else ""
        said.append(f"So {'is' if len(controls) == 1 else 'are'} {who}{names}.")
    return " ".join(said)


def _count(label: str, ahead: int, of: int, undecided: int) -> str:
    """How many are worth it: none that is known is no proof that none is, where some are undecided."""
    who = (
        f"none of {of} methods is shown to be"
        if not ahead
        else f"{ahead} of {of} methods {'is' if ahead == 1 else 'are'}"
    )
    open_ = f"; {undecided} {'is' if undecided == 1 else 'are'} undecided" if undecided else ""
    return f"{label}: {who} worth it{open_}."


def _best(rows: dict[str, Row]) -> str:
    """The best by name; only what direct runs of the very method confirm is quoted."""
    if not rows:
        return "Direct runs have confirmed the seconds of none of them, so none is quoted."
    named = [f"{arm} {net_words(row)}" for arm, row in list(rows.items())[:NAMED]]
    return f"Best confirmed by direct runs: {_listed(named)}."


def _listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _worth_sentences(panel: Panel, arms: Sequence[str]) -> list[str]:
    """Without a session: who ends better after as many steps, whether the controls are seen, and what that leaves open."""
    reference = panel.worth[0]["reference"]
    methods = [arm for arm in arms if arm != reference]
    rows = [row for row in panel.worth if row["arm"] in methods and row["worth"] is not None]
    better = [row["arm"] for row in rows if row["low"] > WHOLE]
    worse = sum(row["high"] < WHOLE for row in rows)
    unknown = len(rows) - len(better) - worse
    absent = len(methods) - len(rows)
    said = [
        f"After as many steps as plain training ({reference}), {len(better)} of {len(methods)} methods "
        f"{'ends' if len(better) == 1 else 'end'} better{f' ({_listed(better[:NAMED])})' if better else ''} and {worse} worse; "
        f"{unknown} {'is' if unknown == 1 else 'are'} undecided{f', {absent} without a number' if absent else ''}."
    ]
    controls = [row for row in panel.worth if row["arm"] in by_arm(_negative(panel))]
    unseen = [row["arm"] for row in controls if row["high"] is None or row["high"] >= WHOLE]
    if unseen:
        said.append(f"Not seen to be worse, so that the study cannot tell: {_listed(unseen)}.")
    elif controls:
        said.append(f"All {len(controls)} negative controls end worse, as they must.")
    said.append("No link was timed yet: whether the time that a method saves makes up for this is open.")
    return said


def equal_time_figures(study: StudyData) -> dict[str, Figure]:
    """The figures by name, all links of a panel in one."""
    found: dict[str, Figure] = {}
    for panel in study.panels:
        curve = curve_of(panel)
        shown = [
            (one.label, marks) for one in timed_links(study, panel) if (marks := marks_of(panel, one)[0])
        ]
        if curve and shown:
            found[f"equal-time-{panel.slug}"] = loss_against_time(panel, curve, shown)
    return found
