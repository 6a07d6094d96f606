"""What the pictures show, as plain data: one point an arm, one number a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from report.drawing.numbers import interval, number, ratio, signed
from report.drawing.svg import gid
from report.drawing.theme import FAMILIES
from report.study.data import Panel
from suite.analysis.tables import Row
from suite.runs.plan import MINIMUM_FOR_INTERVAL


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


NEVER = "never reached"
"""`censored` of a mark whose x is 0."""


def placed(point: Point, row: Row, column: str) -> Point:
    """The mark at its ratio at equal accuracy, a row of a table `iso` that has one."""
    x, low, high = (number(row[name]) for name in (column, "low", "high"))
    if x is None or low is None or high is None:
        raise ValueError(f"{point.arm} has no ratio at equal accuracy")
    return replace(point, x=x, x_low=low, x_high=high, censored=str(row["censored"] or ""))


def points(panel: Panel) -> tuple[list[Point], list[str]]:
    """The marks of a panel, and the names of the arms that have none, with the reason; x is bytes saved, at equal accuracy
    where the sweep has a budget ladder."""
    found, absent = [], []
    climbed = {str(row["arm"]): row for row in panel.iso if row["cost"] == "bytes"}
    for row in [*panel.methods, *panel.controls]:
        y, x = number(row["diff_mean"]), number(row["bytes_ratio"])
        name, seeds = str(row["arm"]), f"{row['n_pairs']} of {row['n']}"
        if y is None or x is None:
            lost = f"{row['n_diverged']} diverged" if row["n_diverged"] else "none finished"
            absent.append(f"{name} ({lost})")
            continue
        if climbed and climbed[name]["ratio"] is None:
            absent.append(f"{name} ({climbed[name]['reason']})")
            continue
        name = name.removeprefix("control-")
        text = name if row["n_pairs"] == row["n"] else f"{name} ({seeds})"
        family = "control" if row["control"] else str(row["family"])
        low, high = number(row["diff_low"]), number(row["diff_high"])
        x_low, x_high = number(row["bytes_ratio_low"]) or x, number(row["bytes_ratio_high"]) or x
        point = Point(name, family, x, x_low, x_high, y, low, high, text)
        found.append(placed(point, climbed[str(row["arm"])], "ratio") if climbed else point)
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
    planned = [int(number(row["n"]) or 0) for row in rows]
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


def hover(panel: Panel) -> dict[str, str]:
    """Hover text by group id."""
    titles, equal = {}, " to equal accuracy" if panel.iso else ""
    for index, point in enumerate(points(panel)[0]):
        if point.arm:
            ends = interval(point.low, point.high, panel.digits, sign=True)
            difference = f"{signed(point.y, panel.digits)} {ends}".strip()
            saved = (
                f"equal accuracy {point.censored}"
                if point.censored
                else f"{ratio(point.x)} fewer bytes{equal}"
            )
            titles[gid(index)] = f"{point.text}: {difference} {panel.unit}, {saved}"
    return titles


def paired(panel: Panel, rows: Sequence[Row]) -> list[tuple[str, float]]:
    """(arm, difference) for each seed that the arm and its baseline finished."""
    values = {(r["arm"], r["seed"]): number(r["value"]) for r in panel.runs if r["status"] == "done"}
    found = []
    for row in rows:
        for seed in sorted({r["seed"] for r in panel.runs if r["arm"] == row["arm"]}, key=str):
            own, other = values.get((row["arm"], seed)), values.get((row["baseline"], seed))
            if own is not None and other is not None:
                found.append((str(row["arm"]), own - other))
    return found


def families(panels: Sequence[Panel]) -> list[str]:
    """The families that occur in the pictures, in the order of the theme."""
    seen = {p.family for panel in panels for p in points(panel)[0]}
    return [*(f for f in FAMILIES if f in seen), *sorted(seen - set(FAMILIES))]
