"""How much sooner a method is there, against what it costs in accuracy at the same number of steps.

There is where the uncompressed run of the same optimizer ends (speedup at equal accuracy), where the sweep has several budgets;
else it is the end of a fixed budget of steps. One panel a link and sharding; panels beside each other share their axes, so that
a faster link is seen to move the marks. Nothing is drawn that was not measured: an arm whose speedup was refused is named under
its panel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from report.drawing import numbers as write
from report.drawing.labels import Box
from report.drawing.numbers import factor, interval, number, signed, times, weight
from report.drawing.scales import MEASURE, bare, difference_axis, look, new_figure, per_point
from report.drawing.svg import gid, inline, svg_file
from report.drawing.table import PAIRED, Cell, Column, Row, View, ratio_cell
from report.drawing.theme import COLOURS
from report.rendering import slug
from report.study.budget_sweep import basis_words, standing_words
from report.study.data import LinkData, Panel, SessionData, StudyData
from report.study.marks import (
    Point,
    across,
    band,
    by_arm,
    draw_arrows,
    draw_marks,
    equal_axis,
    front,
    inside,
    placed,
    shares_by_speed,
    stairs,
    write_names,
)
from suite.analysis.evidence import DOUBT, UNCONFIRMED, against

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
    scale, frame = per_point(axes), axes.get_window_extent(MEASURE)
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
    return float(axes.get_window_extent(MEASURE).height) / per_point(axes) / 72


def _others(axes: Axes, picture: Picture) -> list[Box]:
    """The other optimizers' uncompressed runs as dashed lines across, named beside the frame."""
    scale, frame = per_point(axes), axes.get_window_extent(MEASURE)
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


def _draw_picture(axes: Axes, picture: Picture, every: Sequence[Picture], ys: Sequence[float]) -> None:
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
            _draw_picture(axes, picture, every, ys)
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


ANCHOR = "allreduce-sgd"
"""The uncompressed run that the others are drawn against."""


def drawn(arm: Row) -> bool:
    """Whether an arm's speedup may stand in a picture: not refused. What is merely unconfirmed is drawn hollow."""
    return not arm["refused"] and arm["speedup"] is not None


def pictures(study: StudyData) -> list[Picture]:
    """One for every sharding and link with numbers, link beside link."""
    return [
        picture(panel, link)
        for session in study.sessions
        if session.sweep == study.sweep
        for panel in study.panels
        if panel.world_size == session.facts["world_size"]
        for link in session.links
        if link.usable and any(arm["sharding"] == panel.sharding for arm in link.arms)
    ]


def picture(panel: Panel, link: LinkData) -> Picture:
    """The marks of one panel and link, and why arms have none."""
    rows = {row["arm"]: row for row in [*panel.baselines, *panel.methods, *panel.controls]}
    marks: list[Point] = []
    missing: dict[str, list[str]] = {}
    climbed = by_arm(link.equal_loss, sharding=panel.sharding)
    for arm in link.arms:
        row = rows.get(arm["arm"])
        if arm["sharding"] != panel.sharding or row is None:
            continue
        found = _point(arm, row)
        if isinstance(found, Point) and climbed:
            iso = climbed[arm["arm"]]
            found = iso["reason"] if iso["speedup"] is None else placed(found, iso, "speedup")
        if isinstance(found, Point):
            marks.append(found)
        else:
            missing.setdefault(found, []).append(arm["arm"])
    reference = link.reference["case"] if link.reference else ""
    rho = (link.facts["rho"] or {}).get("value")
    return Picture(
        panel, link.label, marks, grouped(missing), reference, _default(link), _other_baselines(panel), rho, bool(climbed),
        speedups_of(panel, link),
    )  # fmt: skip


def speedups_of(panel: Panel, link: LinkData) -> dict[str, float]:
    """The fixed-budget speedups on a link of what may be on its front, by arm."""
    able = {row["arm"] for row in (*panel.baselines, *panel.methods)}
    return {
        arm["arm"]: arm["speedup"] or 0.0
        for arm in link.arms
        if arm["sharding"] == panel.sharding and arm["arm"] in able and drawn(arm)
    }


def _point(arm: Row, row: Row) -> Point | str:
    """The mark of an arm, or the reason why there is none."""
    x, y = arm["speedup"], row["diff_mean"]
    if not drawn(arm) or x is None:
        return arm["reason"] or "no speedup"
    name, family = row["arm"], "control" if row["control"] else row["family"]
    doubtful = arm["check"] in UNCONFIRMED
    ends = arm["speedup_low"], arm["speedup_high"]
    across = (ends[0] or x, ends[1] or x)
    if row["baseline"] is None and not row["control"]:
        return Point(name, "baseline", x, *across, 0.0, None, None, name, doubtful)
    if y is None:
        lost = f"{row['n_diverged']} diverged" if row["n_diverged"] else "none finished"
        return f"no pair of runs finished: {lost}"
    short = name.removeprefix("control-")
    text = short if row["n_pairs"] == row["n"] else f"{short} ({row['n_pairs']} of {row['n']})"
    return Point(short, family, x, *across, y, row["diff_low"], row["diff_high"], text, doubtful)


def grouped(missing: Mapping[str, Iterable[str]]) -> list[str]:
    """`a, b (why)` for every reason, in the order given."""
    return [f"{', '.join(names)} ({why})" for why, names in missing.items()]


def _default(link: LinkData) -> float | None:
    """Speedup of fp32 DDP as installed over the reference, None where it is the reference itself."""
    row = link.default
    return None if row is None or row["reference"] else row["speedup"]


def anchor(panel: Panel) -> Row | None:
    """The uncompressed run that the others are drawn against: all-reduced SGD, or the first there is."""
    found = sorted(panel.baselines, key=lambda row: (row["arm"] != ANCHOR, row["arm"]))
    return found[0] if found else None


def _other_baselines(panel: Panel) -> list[tuple[str, float]]:
    """The other uncompressed runs and their mean difference to the anchor, where all have finished."""
    own = anchor(panel)
    if own is None or own["n_done"] != own["n"]:
        return []
    level = own["mean"] or 0.0
    return [
        (row["arm"], (row["mean"] or 0.0) - level)
        for row in panel.baselines
        if row is not own and row["n_done"] == row["n"]
    ]


def hover(shown: Picture) -> dict[str, str]:
    """Hover text by group id."""
    panel, titles = shown.panel, {}
    shares = shares_by_speed(panel, shown.fixed)
    for index, point in enumerate(shown.marks):
        faster = f"{times(point.x)} {_ends(point)}".strip()
        if point.family == "baseline":
            titles[gid(index)] = f"{point.text}: uncompressed, {faster} the speed of {shown.reference}"
            continue
        difference = (
            f"{signed(point.y, panel.digits)} {interval(point.low, point.high, panel.digits, sign=True)}"
        )
        speed = f"{faster} the speed of {shown.reference}" + (" to equal accuracy" if shown.equal else "")
        if point.censored:
            speed = f"equal accuracy {point.censored}"
        sure = (
            f", on the front at the fixed budget in {100 * shares[point.arm]:.0f} % of draws"
            if point.arm in shares
            else ""
        )
        titles[gid(index)] = f"{point.text}: {speed}, {difference.strip()} {panel.unit}{sure}"
    return titles


def _ends(point: Point) -> str:
    if not point.x_high > point.x_low:
        return ""
    return interval(point.x_low, point.x_high).replace("inf", "∞")


DOUBTED: Final = "have a speed that direct runs do not confirm to within 10 % (see the tables)"


def picture_parts(shown: Picture, every: list[Picture]) -> dict[str, Any]:
    """One picture of speed against accuracy; its axes hold those of `every` one."""
    place = f"{shown.link}, {shown.panel.title}"
    return {
        "heading": place,
        "link": shown.link,
        "budget": f"{shown.panel.workload}, {shown.panel.world_size} workers, {shown.panel.facts['steps']} steps"
        + ("" if shown.rho is None else f", rho = {weight(shown.rho)}"),
        "figure": inline(
            svg_file(speedups([shown], 1, every)),
            f"v-{slug(shown.link)}-{shown.panel.slug}",
            f"{place}: difference to the uncompressed run over speedup {_at(shown)}; the numbers are in the tables below",
            hover(shown),
        )
        if shown.marks
        else "",
        "absent": shown.absent,
    }


def _at(shown: Picture) -> str:
    return "at equal accuracy" if shown.equal else "at a fixed budget"


def with_speed(view: View, panel: Panel, sessions: Sequence[SessionData]) -> View:
    """A panel's table of methods with a column of speedups for every link that the sweep was timed on."""
    links = [
        link for session in sessions if session.sweep is not None for link in session.links if link.usable
    ]
    added = tuple(
        Column(f"speed-{link.slug}", f"faster, {link.label}", f"Than {_over(link)}, at the fixed budget. {PAIRED}", True, True)
        for link in links
    )  # fmt: skip
    if not added:
        return view
    cells = [{r["arm"]: _speed(r) for r in link.arms if r["sharding"] == panel.sharding} for link in links]
    lines = tuple(
        replace(
            line,
            cells=line.cells
            | {
                column.key: found.get(str(line.cells["method"].raw), Cell(write.MISSING))
                for column, found in zip(added, cells, strict=True)
            },
        )
        for line in view.lines
    )
    at = 1 + [column.key for column in view.columns].index("difference")
    return replace(view, columns=(*view.columns[:at], *added, *view.columns[at:]), lines=lines)


def _over(link: LinkData) -> str:
    return link.reference["case"] if link.reference else "the reference"


def _speed(row: Row) -> Cell:
    if row["refused"]:
        return Cell(write.MISSING, None, "refused")
    cell = ratio_cell(row, "speedup", "speedup_low", "speedup_high")
    doubt = f"{cell.note} {row['check']}" if row["check"] in UNCONFIRMED else ""
    return replace(cell, note=doubt, css="maybe") if doubt else cell


def equal_seconds_sentence(link: str, shown: Sequence[Picture]) -> str:
    """The same in seconds on a link."""
    parts = [f"{one.panel.title}: {seconds_words(one)}" for one in shown]
    steps = " or ".join(dict.fromkeys(str(one.panel.facts["steps"]) for one in shown))
    return (
        f"{link}, against {steps} steps of {shown[0].reference}, to the accuracy of the uncompressed run of the same "
        f"optimizer: {'; '.join(parts)}. {basis_words([one.panel for one in shown])}"
    )


def seconds_words(shown: Picture) -> str:
    """Who is ahead in one picture at equal accuracy."""
    marks = [mark for mark in shown.marks if mark.family not in {"baseline", "control"}]
    return standing_words(marks, len(shown.panel.methods), "be faster", "as fast")


def joined_sentence(link: LinkData, panels: Sequence[Panel]) -> str | None:
    """For each sharding the fastest method that is equal, or else the fastest with what it costs."""
    shown = [picture(panel, link) for panel in panels]
    if not shown:
        return None
    if any(one.equal for one in shown):
        return equal_seconds_sentence(link.label, [one for one in shown if one.equal])
    parts = [f"{p.panel.title}: {_fastest(p, link)}" for p in shown]
    steps = " or ".join(dict.fromkeys(str(p.panel.facts["steps"]) for p in shown))
    return (
        f"{link.label}, against {shown[0].reference}, at a fixed budget of {steps} steps: {'; '.join(parts)}. "
        f"(Speed: median over {rounds_words(link)} rounds with its order-statistic interval; 95 %.)"
    )


def rounds_words(link: LinkData) -> str:
    counts = sorted({(row["n_pairs"] or 0) for row in link.arms if drawn(row)})
    if not counts:
        return "0"
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _fastest(shown: Picture, link: LinkData) -> str:
    panel = shown.panel
    methods = {row["arm"]: row for row in panel.methods}
    marks = sorted((m for m in shown.marks if m.arm in methods), key=lambda m: (-m.x, m.arm))
    if not marks:
        return "; ".join(["no method has a speedup", *shown.absent])
    judged = {m.arm: panel.judged(methods[m.arm]) for m in marks}
    every = [m for m in marks if judged[m.arm].word == "equal"]
    equal = [
        m for m in every if not against(methods[m.arm], judged[m.arm], link.timed_of(m.arm, panel.sharding))
    ]
    doubted = [m for m in every if m.doubtful and m.x_low > 1 and m not in equal]
    unit = f" {panel.unit}" if panel.unit else ""
    band = f"±{panel.margin:g}{unit}"
    if equal and equal[0].x_low > 1:
        first = f"{equal[0].arm} is the fastest shown to be within {band}, {_said(equal[0], shown, link)}"
        return first + _doubted(doubted, shown, link)
    if equal:
        return (
            f"none of the methods within {band} is shown to be faster; {equal[0].arm} comes nearest, "
            f"{_said(equal[0], shown, link)}" + _doubted(doubted, shown, link)
        )
    if every:
        who = "the one method" if len(every) == 1 else f"each of the {len(every)} methods"
        none = f"{who} within {band} lacks a speedup that holds"
        return none + _doubted(doubted, shown, link)
    why = f"no method is shown to be within {band}" if panel.sensitive else "not sensitive"
    doubt = f", but {DOUBT}" if marks[0].doubtful else ""
    return f"{why}; {marks[0].arm} is the fastest, {_said(marks[0], shown, link)}{doubt}"


def _doubted(marks: Sequence[Point], shown: Picture, link: LinkData) -> str:
    """Speedups over 1 that direct runs do not confirm, the fastest by name; nothing where there are none."""
    if not marks:
        return ""
    more = f" and {len(marks) - 1} more" if len(marks) > 1 else ""
    return f"; {marks[0].arm}{more} would be, {_said(marks[0], shown, link)}, but {DOUBT}"


def _said(mark: Point, shown: Picture, link: LinkData) -> str:
    """`4.2× [4, 4.5] as fast (8× DDP fp32 as it is installed) at -0.06 [-0.22, +0.10] points`."""
    panel = shown.panel
    row = next(r for r in link.arms if (r["arm"], r["sharding"]) == (mark.arm, panel.sharding))
    over = row["default_speedup"]
    default = (
        f" ({times(over)} DDP fp32 as installed)" if over is not None and shown.default is not None else ""
    )
    ends = interval(mark.low, mark.high, panel.digits, sign=True)
    unit = f" {panel.unit}" if panel.unit else ""
    return f"{ratio_words(row)} as fast{default} at {f'{signed(mark.y, panel.digits)} {ends}'.strip()}{unit}"


def ratio_words(row: Row, stem: str = "speedup", low: str = "speedup_low", high: str = "speedup_high") -> str:
    value, ends = number(row[stem]), (number(row[low]), number(row[high]))
    if ends[0] is None or ends[1] is None:
        return times(value)
    return f"{times(value)} [{factor(ends[0])}, {factor(ends[1])}]"
