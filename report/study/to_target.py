"""How soon, and with how few bytes and seconds, methods reach the target of their cell; and their performance profiles.

Seconds are given on each link that a session of the study timed, for trainings whose steps all cost the same: steps come from
the runs, seconds a step from the session, joined by the one rule (`suite.analysis.join`). Where steps cost more or less as
training goes on (a warm-up, rounds that lengthen) nothing is said. Seconds a step are taken as known: the interval is that of
the steps. A profile says in how many cells a method is within tau times the best, by bytes and by steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.scales import bare, look, name_ends
from report.drawing.svg import inline, svg_file
from report.drawing.table import Cell, Column, Line, Row, View, chips
from report.drawing.theme import FAMILIES, colour
from report.rendering import slug
from report.study.curves import Curve, family_curves, hover, twins
from report.study.data import PANEL, Panel, SessionData, StudyData
from report.study.sessions import CHECKS, CONFIRMED
from suite.analysis.columns import PROFILES, TO_TARGET
from suite.analysis.speed_columns import ARMS
from suite.analysis.statistics import LEAST_WORKLOADS, MINIMUM_FOR_INTERVAL
from suite.timing.case import ROUND

ORDER = "95 % order-statistic interval over seeds; a seed that never got there counts as infinite."
PAIRED = f"Of the uncompressed run of the same optimizer over those of the method, paired by seed. {ORDER}"


def to_target_parts(study: StudyData, found: Mapping[str, dict[str, Curve]]) -> dict[str, Any]:
    """What the template needs: a part a panel, or why there is none in words. found: curves by slug of panel and arm."""
    rows = study.rows(TO_TARGET)
    parts = [part for p in study.panels if (part := _part(p, study, rows, found[p.slug])) is not None]
    return {"panels": parts, "command": study.facts["command"], "schedules": _schedules(parts)}


def _part(
    panel: Panel, study: StudyData, rows: Sequence[Row], found: dict[str, Curve]
) -> dict[str, Any] | None:
    key = (panel.workload, panel.sharding, panel.world_size)
    own = [row for row in rows if (row["workload"], row["sharding"], row["world_size"]) == key]
    if not own:
        return None
    drawn = [row["arm"] for row in own if row["arm"] in found]
    return {
        "panel": panel,
        "slug": panel.slug,
        "sentence": _sentence(panel, own),
        "pictures": _pictures(panel, own, found),
        "absent": [row["arm"] for row in own if row["arm"] not in drawn],
        "view": to_target_view(panel, own),
        "seconds": seconds_views(panel, own, study),
    }


def _schedules(parts: Sequence[dict[str, Any]]) -> list[str]:
    """The schedules that lower the rate by the budget."""
    return sorted({str(part["panel"].facts["schedule"]) for part in parts} - {"constant"})


def _sentence(panel: Panel, rows: Sequence[Row]) -> str:
    """The target in words: what it is, who set it, how finely it is watched for."""
    reference, target = str(rows[0]["reference"]), number(rows[0]["target"])
    gaps = [(row["resolution"] or 0) for row in rows if row["resolution"] is not None]
    ended = next(row for row in panel.summary if row["arm"] == reference)
    unit = f" {panel.unit}" if panel.unit else ""
    words = "at least" if panel.facts["direction"] == "higher" else "at most"
    return (
        f"Target: {panel.metric} of {words} {write.plain(target, panel.digits)}, which is what {reference} ends at (median of "
        f"{ended['n_done']} finished seeds), given way by the margin of {panel.margin:g}{unit}. Evaluated at least every "
        f"{max(gaps, default=0)} steps of {panel.facts['steps']}."
    )


def _pictures(panel: Panel, rows: Sequence[Row], found: dict[str, Curve]) -> list[dict[str, str]]:
    """One picture a family that has something to draw, controls last."""
    target, baseline = number(rows[0]["target"]) or 0.0, {row["arm"]: row["baseline"] for row in rows}
    metric = str(panel.facts["metric"]).replace("_", " ")
    families = list(dict.fromkeys(curve.family for curve in found.values() if curve.family != "baseline"))
    pictures = []
    for family in sorted(
        families, key=lambda one: (list(FAMILIES).index(one) if one in FAMILIES else 99, one)
    ):
        own = sorted(
            (c for c in found.values() if c.family == family and baseline[c.arm]), key=lambda c: c.arm
        )
        wanted = sorted({str(baseline[curve.arm]) for curve in own} & found.keys())
        lines = [*own, *(found[arm] for arm in wanted)]
        if not own:
            continue
        figure = family_curves(panel, own, [found[arm] for arm in wanted], list(found.values()), target)
        words = FAMILIES.get(family, family)
        place = f"{words}, {panel.workload}, {panel.title}"
        label = f"{place}: {metric} less the target against bytes and against steps; the table has the times"
        pictures.append(
            {
                "title": f"{words[0].upper()}{words[1:]}: {metric} by bytes and by steps",
                "counts": _counts(own),
                "svg": inline(
                    svg_file(figure), f"c-{panel.slug}-{family}", label, hover(panel, lines, target)
                ),
            }
        )
    return pictures


def _counts(own: Sequence[Curve]) -> str:
    counts = sorted({curve.n for curve in own})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def _time(value: float | None, text: str) -> str:
    return write.MISSING if value is None else "never" if math.isinf(value) else text


def _steps(value: float | None) -> str:
    return _time(value, "" if value is None else f"{value:g}")


def _sent(value: float | None) -> str:
    return _time(value, write.byte_count(value))


def _times(value: float | None) -> str:
    return "never" if value == 0 else write.ratio(value)


def _median_cell(row: Row, name: str, text: Any) -> Cell:
    """A median with its interval, either of which may be never."""
    value, ends = number(row[name]), (number(row[f"{name}_low"]), number(row[f"{name}_high"]))
    note = "" if None in ends else f"[{text(ends[0])}, {text(ends[1])}]"
    return Cell(text(value), value, note, ends)


def to_target_view(panel: Panel, rows: Sequence[Row]) -> View:
    """Every arm of a panel: who reached the target, after how many steps and bytes; the soonest first."""
    columns = (
        Column("method", "method", "The sweep's label of a method with its options."),
        Column("reached", "reached", "Seeds that had the target at an evaluation, of those that finished or diverged.", True),
        Column("steps", "steps", f"To the first evaluation at the target, median over all seeds. {ORDER}", True, True),
        Column("fewer", "fewer steps", PAIRED, True, True),
        Column("bytes", "bytes", f"Sent on the wire until then, mean over ranks, median over all seeds. {ORDER}", True, True),
        Column("ratio", "fewer bytes", PAIRED, True, True),
        Column("diverged", "diverged", "Seeds that diverged: they count as never.", True),
        Column("pairs", "pairs", "Seeds with which the method or its baseline had the target: the n of the ratios.", True),
        Column("baseline", "baseline", "The uncompressed run of the same optimizer.", hidden=True),
        Column("family", "family", "What kind of method it is.", hidden=True),
    )  # fmt: skip
    lines = []
    for row in sorted(rows, key=lambda row: (_place(row, "steps"), _place(row, "wire_bytes"), row["arm"])):
        n, reached = (row["n"] or 0), (row["n_reached"] or 0)
        lost = row["n_diverged"] or 0
        family = "control" if row["control"] else row["family"]
        cells = {
            "method": Cell(row["arm"], row["arm"]),
            "reached": Cell(write.share(reached, n), reached, css="" if reached == n else "no"),
            "steps": _median_cell(row, "steps", _steps),
            "fewer": _median_cell(row, "steps_ratio", _times),
            "bytes": _median_cell(row, "wire_bytes", _sent),
            "ratio": _median_cell(row, "bytes_ratio", _times),
            "diverged": Cell(str(lost), lost, css="no" if lost else ""),
            "pairs": Cell(str(row["n_pairs"] if row["baseline"] else write.MISSING), row["n_pairs"]),
            "baseline": Cell(row["baseline"] or write.MISSING, row["baseline"]),
            "family": Cell(FAMILIES.get(family, family), family),
        }
        lines.append(Line(cells, family))
    caption = f"To the target, {panel.workload}, {panel.title}"
    return View(f"{panel.slug}-to-target", caption, columns, tuple(lines), chips(lines))


def _place(row: Row, name: str) -> float:
    value = number(row[name])
    return math.inf if value is None else value


def unit_steps(row: Row) -> int | None:
    """Steps of the unit that a training repeats: 1, or H where rounds of H steps are timed; None where its steps differ.

    A shorter last round does not count as another.
    """
    if row["steps_by_kind"] is None:
        return None
    units: Mapping[str, int] = json.loads(row["steps_by_kind"])
    if len(units) == 1 and not next(iter(units)).startswith(ROUND):
        return 1
    lengths = {int(kind.removeprefix(ROUND)): n for kind, n in units.items() if kind.startswith(ROUND)}
    longest = max(lengths, default=0)
    shorter = sum(count for length, count in lengths.items() if length != longest)
    return longest if len(lengths) == len(units) and lengths and shorter <= 1 else None


def seconds_views(panel: Panel, rows: Sequence[Row], study: StudyData) -> list[View]:
    """A table a session of the study that timed this workload with as many workers. rows: of the panel, to the target."""
    return [
        _seconds_view(panel, rows, session)
        for session in study.sessions
        if session.sweep == study.sweep
        and session.usable
        and session.timed(panel.workload)
        and session.facts["world_size"] == panel.world_size
    ]


def _seconds_view(panel: Panel, rows: Sequence[Row], session: SessionData) -> View:
    columns = (
        Column("method", "method", "The sweep's label of a method with its options."),
        Column("link", "link"),
        Column(
            "seconds", "seconds to the target",
            "Steps to the target, median over all seeds, times the seconds of a step on this link; the interval is that of the "
            "steps. A round that has begun counts whole.", True, True,
        ),
        Column("reached", "reached", "Seeds that had the target, of those that finished or diverged.", True),
        Column("step", "seconds a step", "Of the session, median over its rounds.", True),
        Column("rounds", "rounds", "The n of the seconds a step.", True),
        Column("check", "direct runs", CONFIRMED),
        Column("why", "why not", "Why there is no number."),
    )  # fmt: skip
    by_arm = {row["arm"]: row for row in rows}
    lines = [
        _seconds_line(by_arm[arm["arm"]], arm)
        for arm in sorted(session.rows(ARMS), key=lambda arm: arm["arm"])
        if arm["arm"] in by_arm and arm["sharding"] == panel.sharding
    ]
    order = [link.label for link in session.links]
    lines.sort(key=lambda line: (order.index(str(line.cells["link"].raw)), _known(line.cells["seconds"])))
    caption = f"Seconds to the target, {panel.workload}, {panel.title}, session {session.name}"
    return View(f"{panel.slug}-seconds-{slug(session.name)}", caption, columns, tuple(lines), chips(lines))


def _known(cell: Cell) -> float:
    return cell.raw if isinstance(cell.raw, float) else math.inf


def _seconds_line(row: Row, arm: Row) -> Line:
    unit, step_s = unit_steps(arm), arm["step_s"]
    values: list[float | None] = [None] * 3
    why = ""
    if arm["refused"] or step_s is None:
        why = arm["reason"] or "the session has no number for it"
    elif unit is None:
        why = "its steps do not all cost the same"
    else:
        values = [
            _seconds_of(number(row[name]), unit, step_s) for name in ("steps", "steps_low", "steps_high")
        ]
    check = None if arm["check"] is None else arm["check"]
    family = "control" if row["control"] else row["family"]
    value, low, high = values
    cells = {
        "method": Cell(row["arm"], row["arm"]),
        "link": Cell(arm["link"], arm["link"]),
        "seconds": Cell(_seconds_text(value), value, _seconds_interval(low, high), (low, high)),
        "reached": Cell(write.share((row["n_reached"] or 0), (row["n"] or 0)), row["n_reached"]),
        "step": Cell(write.quantity(step_s, "seconds"), step_s),
        "rounds": Cell(str(arm["n"] if arm["n"] is not None else write.MISSING), arm["n"]),
        "check": Cell(check or write.MISSING, check, css=CHECKS.get(check or "", "")),
        "why": Cell(why, why, css="reason"),
    }  # fmt: skip
    return Line(cells, family)


def _seconds_of(steps: float | None, unit: int, step_s: float) -> float | None:
    if steps is None or math.isinf(steps):
        return steps
    begun = steps if unit == 1 else math.ceil(steps / unit) * unit
    return begun * step_s


def _seconds_text(value: float | None) -> str:
    return (
        write.MISSING if value is None else "never" if math.isinf(value) else write.quantity(value, "seconds")
    )


def _seconds_interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{_seconds_text(low)}, {_seconds_text(high)}]"


TAUS = {"steps": (1.0, 2.0, 4.0, 16.0), "bytes": (1.0, 2.0, 4.0, 16.0)}
"""The tau of the table's columns; the pictures have all."""
HIDDEN = {("steps", 4.0), ("steps", 16.0), ("bytes", 2.0)}
"""Columns that the page does not show at first."""


@dataclass(frozen=True)
class Steps:
    """One method and quantity: tau rising, the share at each, its band, and the share of cells it never got to."""

    arm: str
    family: str
    taus: tuple[float, ...]
    share: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    never: float
    cells: int

    @property
    def missed(self) -> int:
        """Cells that it never got to."""
        return round(self.never * self.cells)

    @property
    def name(self) -> str:
        """As it stands beside a picture, with the cells that it never got to, if any."""
        return f"{self.arm}, never {self.missed}/{self.cells}" if self.missed else self.arm

    def at(self, tau: float) -> int:
        """Index of the last tau that is no greater."""
        return max(i for i, one in enumerate(self.taus) if one <= tau * (1 + 1e-9))


def profiles_parts(study: StudyData) -> dict[str, Any]:
    """What the template needs; without a profile, why there is none in words."""
    frame = study.frame(PROFILES)
    if frame.empty:
        return {"pictures": [], "absent": _absent(study)}
    found = {quantity: _profiles_of(frame[frame["quantity"] == quantity]) for quantity in ("bytes", "steps")}
    families = set(frame["family"]) - {"baseline"}
    baselines = _baselines(study)
    pictures = []
    for family in sorted(
        families, key=lambda one: (list(FAMILIES).index(one) if one in FAMILIES else 99, one)
    ):
        own = {arm for arm, one in found["steps"].items() if one.family == family}
        shown = sorted(own) + sorted({baselines[arm] for arm in own} & found["steps"].keys())
        words = FAMILIES.get(family, family)
        svg = svg_file(profile_figure(shown, own, found["bytes"], found["steps"]))
        label = f"Profiles of bytes and of steps to the target, {words}; the table has the shares"
        pictures.append(
            {
                "title": f"{words[0].upper()}{words[1:]}: share of the cells by bytes and by steps",
                "svg": inline(svg, f"p-{family}", label, _profile_hover(shown, found)),
            }
        )
    return {
        "pictures": pictures,
        "cells": frame["cells"].iloc[0],
        "seeds": frame["seeds"].iloc[0],
        "view": profiles_view(found, frame["cells"].iloc[0]),
    }


def _absent(study: StudyData) -> str:
    cells = study.frame(TO_TARGET).groupby(PANEL).ngroups
    return (
        f"A performance profile takes {LEAST_WORKLOADS} cells that share their arms, with {MINIMUM_FOR_INTERVAL} seeds each; "
        f"{cells} of this study {'has' if cells == 1 else 'have'} curves. "
        "`bandwise report profiles` makes the page of one that has enough."
    )


def _baselines(study: StudyData) -> dict[str, str]:
    """Arm -> the uncompressed run of its optimizer."""
    return {r["arm"]: r["baseline"] for panel in study.panels for r in panel.methods}


def _profiles_of(frame: pd.DataFrame) -> dict[str, Steps]:
    """By arm, of the rows of one quantity."""
    found = {}
    for arm, own in frame.groupby("arm", sort=False):
        taus, share, low, high = (tuple(own[name].tolist()) for name in ("tau", "share", "low", "high"))
        first = own.iloc[0]
        found[str(arm)] = Steps(
            str(arm), first["family"], taus, share, low, high, first["never"], first["cells"]
        )
    return found


def profile_figure(
    shown: Sequence[str], own: set[str], by_bytes: Mapping[str, Steps], by_steps: Mapping[str, Steps]
) -> Figure:
    """Left bytes, right steps. shown: the arms in order of their numbers; own: those that are no baseline."""
    with look():
        figure, left, right = twins(len(shown))
        for axes, found, what in ((left, by_bytes, "bytes"), (right, by_steps, "steps")):
            _profile_axes(axes, found, what)
            for place, arm in enumerate(shown, start=1):
                if arm in found:
                    _draw_profile(axes, found[arm], place, f"curve{place}-{what}", dashed=arm not in own)
        left.set_ylabel("share of the cells")
        right.tick_params(labelleft=False)
        ends = [(place, by_steps[arm]) for place, arm in enumerate(shown, start=1) if arm in by_steps]
        name_ends(right, [(f"{place} {one.name}", one.share[-1], one.family) for place, one in ends])
        return figure


def _profile_axes(axes: Axes, found: Mapping[str, Steps], what: str) -> None:
    bare(axes, "y")
    last = max((one.taus[-1] for one in found.values()), default=2.0)
    axes.set_xscale("log")
    axes.set_xlim(1, last)
    axes.set_ylim(-0.03, 1.03)
    every = 1 if last <= 16 else 2 if last <= 256 else 3
    axes.xaxis.set_major_locator(FixedLocator([2.0**k for k in range(0, 13, every) if 2.0**k <= last]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"τ × fewest {what} (log)")


def _draw_profile(axes: Axes, one: Steps, place: int, group: str, dashed: bool) -> None:
    shade = colour(one.family)
    axes.step(
        one.taus, one.share, where="post", color=shade, linewidth=1.1 if dashed else 1.4, gid=group, zorder=3,
        linestyle=(0, (4, 2)) if dashed else "-", clip_on=False,
    )  # fmt: skip
    if not dashed:
        axes.fill_between(
            one.taus, one.low, one.high, step="post", color=shade, alpha=0.1, linewidth=0, zorder=2
        )
    rise = next((i for i, share in enumerate(one.share) if share >= one.share[-1] / 2), 0)
    axes.annotate(
        str(place), (one.taus[rise], one.share[rise]), xytext=(2, 3), textcoords="offset points", fontsize=6.8,
        color=shade, annotation_clip=False,
    )  # fmt: skip


def _profile_hover(shown: Sequence[str], found: Mapping[str, Mapping[str, Steps]]) -> dict[str, str]:
    return {
        f"curve{place}-{quantity}": f"{arm}: {_percent(found[quantity][arm].share[0])} of the cells at the fewest {quantity}, "
        f"{_percent(found[quantity][arm].never)} never"
        for place, arm in enumerate(shown, start=1)
        for quantity in found
        if arm in found[quantity]
    }


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def profiles_view(found: Mapping[str, Mapping[str, Steps]], cells: int) -> View:
    """Shares at a few tau with their bands, and how many cells were never reached."""
    columns = [
        Column("method", "method", "The sweep's label of a method with its options."),
        Column("never", "never reached", f"Cells of {cells} in which the median of its seeds never had the target.", True),
    ]  # fmt: skip
    for quantity, taus in TAUS.items():
        for tau in taus:
            about = f"Share of the cells in which it took at most {tau:g} times the fewest {quantity}, with its 95 % band."
            columns.append(
                Column(
                    f"{quantity}{tau:g}",
                    f"{quantity}, {tau:g}×",
                    about,
                    True,
                    True,
                    (quantity, tau) in HIDDEN,
                )
            )
    lines = []
    for arm, one in sorted(found["steps"].items(), key=lambda item: (-sum(item[1].share), item[0])):
        cells_ = {
            "method": Cell(arm, arm),
            "never": Cell(f"{one.missed} of {cells}", one.missed, css="no" if one.missed else ""),
        }
        for quantity, taus in TAUS.items():
            for tau in taus:
                cells_[f"{quantity}{tau:g}"] = _share(found[quantity].get(arm), tau)
        lines.append(Line(cells_, one.family))
    return View("profiles", "Profiles over all cells", tuple(columns), tuple(lines), chips(lines))


def _share(one: Steps | None, tau: float) -> Cell:
    if one is None:
        return Cell("–")
    i = one.at(tau)
    note = f"[{_percent(one.low[i]).removesuffix(' %')}, {_percent(one.high[i])}]"
    return Cell(_percent(one.share[i]), one.share[i], note, (one.low[i], one.high[i]))
