"""Seconds to the target on each link that a session of the study timed, for trainings whose steps all cost the same.

The steps to the target come from the runs, the seconds a step from the session: the same rule joins them as everywhere
(`suite.analysis.join`). Where steps cost more or less as training goes on (a warm-up, rounds that lengthen), the seconds of
the first of them are not known from the tables, and nothing is said. Seconds a step are taken as known: the interval is that
of the steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.table import Cell, Column, Line, View
from report.drawing.theme import FAMILIES
from report.rendering import slug
from report.study.data import Panel, StudyData
from report.study.speed_data import SessionData
from report.study.speed_view import CHECKS, CONFIRMED
from suite.analysis.speed_columns import ARMS
from suite.analysis.tables import Row
from suite.timing.case import ROUND


def unit_steps(row: Row) -> int | None:
    """Steps of the unit that a training repeats: 1, or H where rounds of H steps are timed; None where its steps differ.

    A shorter last round does not count as another.
    """
    if row["steps_by_kind"] is None:
        return None
    units: Mapping[str, int] = json.loads(str(row["steps_by_kind"]))
    if len(units) == 1 and not next(iter(units)).startswith(ROUND):
        return 1
    lengths = {int(kind.removeprefix(ROUND)): n for kind, n in units.items() if kind.startswith(ROUND)}
    longest = max(lengths, default=0)
    shorter = sum(count for length, count in lengths.items() if length != longest)
    return longest if len(lengths) == len(units) and lengths and shorter <= 1 else None


def seconds_views(panel: Panel, rows: Sequence[Row], study: StudyData) -> list[View]:
    """A table a session of the study that timed this workload with as many workers. rows: of the panel, to the target."""
    return [
        _view(panel, rows, session)
        for session in study.sessions
        if session.sweep == study.sweep
        and session.usable
        and session.workload == panel.workload
        and session.facts["world_size"] == panel.world_size
    ]


def _view(panel: Panel, rows: Sequence[Row], session: SessionData) -> View:
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
    by_arm = {str(row["arm"]): row for row in rows}
    lines = [
        _line(by_arm[str(arm["arm"])], arm)
        for arm in sorted(session.rows(ARMS), key=lambda arm: str(arm["arm"]))
        if str(arm["arm"]) in by_arm and arm["sharding"] == panel.sharding
    ]
    order = [link.label for link in session.links]
    lines.sort(key=lambda line: (order.index(str(line.cells["link"].raw)), _known(line.cells["seconds"])))
    seen = {line.family for line in lines}
    chips = tuple((name, words) for name, words in FAMILIES.items() if name in seen)
    caption = f"Seconds to the target, {panel.workload}, {panel.title}, session {session.name}"
    return View(f"{panel.slug}-seconds-{slug(session.name)}", caption, columns, tuple(lines), chips)


def _known(cell: Cell) -> float:
    return cell.raw if isinstance(cell.raw, float) else math.inf


def _line(row: Row, arm: Row) -> Line:
    unit, step_s = unit_steps(arm), number(arm["step_s"])
    values: list[float | None] = [None] * 3
    why = ""
    if arm["refused"] or step_s is None:
        why = str(arm["reason"] or "the session has no number for it")
    elif unit is None:
        why = "its steps do not all cost the same"
    else:
        values = [_seconds(number(row[name]), unit, step_s) for name in ("steps", "steps_low", "steps_high")]
    check = None if arm["check"] is None else str(arm["check"])
    family = "control" if row["control"] else str(row["family"])
    value, low, high = values
    cells = {
        "method": Cell(str(row["arm"]), str(row["arm"]), css="arm"),
        "link": Cell(str(arm["link"]), str(arm["link"])),
        "seconds": Cell(_text(value), value, _interval(low, high), (low, high)),
        "reached": Cell(write.share(int(number(row["n_reached"]) or 0), int(number(row["n"]) or 0)), row["n_reached"]),
        "step": Cell(write.quantity(step_s, "seconds"), step_s),
        "rounds": Cell(str(arm["n"] if arm["n"] is not None else write.MISSING), arm["n"]),
        "check": Cell(check or write.MISSING, check, css=CHECKS.get(check or "", "")),
        "why": Cell(why, why, css="reason"),
    }  # fmt: skip
    return Line(cells, family)


def _seconds(steps: float | None, unit: int, step_s: float) -> float | None:
    if steps is None or math.isinf(steps):
        return steps
    begun = steps if unit == 1 else math.ceil(steps / unit) * unit
    return begun * step_s


def _text(value: float | None) -> str:
    return (
        write.MISSING if value is None else "never" if math.isinf(value) else write.quantity(value, "seconds")
    )


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"[{_text(low)}, {_text(high)}]"
