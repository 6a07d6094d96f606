"""What a budget ladder and the bootstrap add to the tables: ratios at equal accuracy, shares of the front, every rung."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.table import Cell, Column, Line, View
from report.study.certainty import shares_by_bytes, shares_by_speed
from report.study.data import Panel
from report.study.equal import by_arm
from report.study.points import NEVER
from report.study.speed_data import SessionData
from report.study.speed_points import speedups_of
from suite.analysis.tables import Row

WORDS = {"": "", NEVER: "never", "reached before the first rung": "from the start"}
"""Censored -> the word in a cell."""
WHERE = "where it has the accuracy that the uncompressed run of its optimizer has at the full budget"
HOW = "read off the budget ladder, with the 95 % interval that inverts the paired t test"
FRONT = "Share of 2,000 bootstrap draws of the seeds in which it is on the Pareto front of difference against"


def with_certainty(view: View, panel: Panel, sessions: Sequence[SessionData]) -> View:
    """A panel's table of methods with ratios at equal accuracy, where there is a ladder, and shares of the front."""
    links = [
        link for session in sessions if session.sweep is not None for link in session.links if link.usable
    ]
    added: list[tuple[Column, Mapping[str, Cell]]] = []
    if panel.iso:
        about = f"Bytes of that run over the bytes sent {WHERE}; {HOW}."
        column = Column("equal-bytes", "fewer bytes, equal accuracy", about, True, True)
        added.append((column, _ratios(by_arm(panel.iso, cost="bytes"), "ratio")))
        about = f"Steps of that run over the steps taken {WHERE}; {HOW}."
        column = Column("equal-steps", "fewer steps, equal accuracy", about, True, True, hidden=True)
        added.append((column, _ratios(by_arm(panel.iso, cost="steps"), "ratio")))
    for link in links:
        climbed = by_arm(link.iso, sharding=panel.sharding)
        if climbed:
            about = f"Seconds of the reference's full budget over the seconds {WHERE}; {HOW}, widened by the session's."
            column = Column(f"equal-{link.slug}", f"faster, equal accuracy, {link.label}", about, True, True)
            added.append((column, _ratios(climbed, "speedup")))
    column = Column("front", "on the front, bytes", f"{FRONT} bytes a step, at the fixed budget.", True)
    added.append((column, _shares(shares_by_bytes(panel))))
    for link in links:
        about = f"{FRONT} seconds on this link, at the fixed budget."
        column = Column(f"front-{link.slug}", f"on the front, {link.label}", about, True, hidden=True)
        added.append((column, _shares(shares_by_speed(panel, speedups_of(panel, link)))))
    at = 1 + [column.key for column in view.columns].index("ratio")
    fixed = {
        f"speed-{link.slug}" for link in links if any(row["sharding"] == panel.sharding for row in link.iso)
    }
    before = tuple(replace(c, hidden=True) if c.key in fixed else c for c in view.columns[:at])
    columns = (*before, *(column for column, _ in added), *view.columns[at:])
    return replace(view, columns=columns, lines=tuple(_wider(line, added) for line in view.lines))


def _wider(line: Line, added: Sequence[tuple[Column, Mapping[str, Cell]]]) -> Line:
    name = str(line.cells["method"].raw)
    more = {column.key: found.get(name, Cell(write.MISSING)) for column, found in added}
    return replace(line, cells=line.cells | more)


def ratio_at_equal(row: Row | None, column: str) -> Cell:
    """A ratio at equal accuracy as a cell, with its interval or what is known of it."""
    value = None if row is None else number(row[column])
    if row is None or value is None:
        return Cell(write.MISSING, None, css="quiet")
    ends = number(row["low"]), number(row["high"])
    word = WORDS[str(row["censored"] or "")]
    return Cell(word or write.ratio(value), value, bounds(row), ends, css="maybe" if word else "")


def bounds(row: Mapping[str, object]) -> str:
    """[3.1, 4.2], or where one side is open <4.2, >3.1; nothing where both are."""
    low, high = number(row["low"]), number(row["high"])
    if low is None or high is None or (low == 0 and math.isinf(high)):
        return ""
    if low == 0:
        return f"< {write.factor(high)}×"
    return f"> {write.factor(low)}×" if math.isinf(high) else f"[{write.factor(low)}, {write.factor(high)}]"


def _ratios(rows: Mapping[str, Row], column: str) -> dict[str, Cell]:
    return {arm: ratio_at_equal(row, column) for arm, row in rows.items()}


def _shares(found: Mapping[str, float]) -> dict[str, Cell]:
    return {arm: Cell(f"{100 * share:.0f} %", share) for arm, share in found.items()}


def ladder_view(panel: Panel) -> View:
    """Every rung of the ladder: the distance to what is to be reached, a column a budget."""
    rungs = sorted({(number(row["budget"]) or 0.0, int(number(row["steps"]) or 0)) for row in panel.ladder})
    unit = f" ({panel.unit})" if panel.unit else ""
    about = (
        f"Mean difference{unit} to the target at the full budget, paired by seed, with its 95 % t interval."
    )
    columns = (
        Column("method", "method"),
        *(Column(f"gap-{steps}", f"{budget:g}× ({steps} steps)", about, True, True) for budget, steps in rungs),
        Column("bytes", "fewer bytes", f"Bytes of the target over the bytes sent {WHERE}; {HOW}.", True, True),
        Column("steps", "fewer steps", f"Steps of the target over the steps taken {WHERE}; {HOW}.", True, True),
        Column("lost", "diverged", "Runs on all rungs that diverged; an arm with one has no ratio.", True),
        Column("seeds", "seeds", "Finished at every budget and by the target: the n of the ratios.", True),
        Column("target", "target", "The uncompressed run of the same optimizer, at the full budget."),
        Column("reason", "why no ratio", "Of bytes, and of steps where that is another one."),
    )  # fmt: skip
    families = {str(row["arm"]): "control" if row["control"] else str(row["family"]) for row in panel.summary}
    iso = {cost: by_arm(panel.iso, cost=cost) for cost in ("bytes", "steps")}
    lines = []
    for arm in sorted({str(row["arm"]) for row in panel.ladder}, key=lambda name: _order(panel, name)):
        own = [row for row in panel.ladder if row["arm"] == arm]
        lost = sum(int(number(row["n_diverged"]) or 0) for row in own)
        n = int(number(iso["bytes"][arm]["n"]) or 0)
        cells = {
            "method": Cell(arm, arm, css="arm"),
            **{f"gap-{row['steps']}": _gap(row, panel.digits) for row in own},
            "bytes": ratio_at_equal(iso["bytes"][arm], "ratio"),
            "steps": ratio_at_equal(iso["steps"][arm], "ratio"),
            "lost": Cell(str(lost), lost, css="no" if lost else ""),
            "seeds": Cell(str(n), n),
            "target": Cell(str(own[0]["target"]), str(own[0]["target"])),
            "reason": _reasons([iso["bytes"][arm], iso["steps"][arm]]),
        }
        lines.append(Line(cells, families.get(arm, "")))
    return View(
        f"{panel.slug}-ladder", f"Budget ladder, {panel.workload}, {panel.title}", columns, tuple(lines)
    )


def _reasons(rows: Sequence[Row]) -> Cell:
    """Why there is no ratio, each reason once; empty where there are all."""
    words = "; ".join(dict.fromkeys(str(row["reason"]) for row in rows if row["reason"]))
    return Cell(words, words or None, css="reason")


def _order(panel: Panel, arm: str) -> tuple[bool, bool, str, str]:
    """Uncompressed runs, methods by family, controls."""
    row = next(row for row in panel.summary if row["arm"] == arm)
    return bool(row["control"]), row["baseline"] is not None, str(row["family"]), arm


def _gap(row: Row, digits: int) -> Cell:
    value, ends = number(row["gap_mean"]), (number(row["gap_low"]), number(row["gap_high"]))
    return Cell(write.signed(value, digits), value, write.interval(*ends, digits, sign=True), ends)
