"""What the pictures show, as plain data: one point an arm, one number a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from report.data import Panel
from report.numbers import interval, ratio, signed
from report.theme import FAMILIES
from suite.analysis.tables import Row


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


def number(value: object) -> float | None:
    """A table's cell as a number, or None where it is empty."""
    return float(value) if isinstance(value, int | float) else None


def points(panel: Panel) -> tuple[list[Point], list[str]]:
    """The marks of a panel, and the names of the arms that have none, with the reason."""
    found, absent = [], []
    for row in [*panel.methods, *panel.controls]:
        y, x = number(row["diff_mean"]), number(row["bytes_ratio"])
        name, seeds = str(row["arm"]), f"{row['n_pairs']} of {row['n']}"
        if y is None or x is None:
            lost = f"{row['n_diverged']} diverged" if row["n_diverged"] else "none finished"
            absent.append(f"{name} ({lost})")
            continue
        name = name.removeprefix("control-")
        text = name if row["n_pairs"] == row["n"] else f"{name} ({seeds})"
        family = "control" if row["control"] else str(row["family"])
        low, high = number(row["diff_low"]), number(row["diff_high"])
        x_low, x_high = number(row["bytes_ratio_low"]) or x, number(row["bytes_ratio_high"]) or x
        found.append(Point(name, family, x, x_low, x_high, y, low, high, text))
    if panel.baselines:
        found.append(Point("", "baseline", 1.0, 1.0, 1.0, 0.0, None, None, "uncompressed"))
    return found, absent


def gid(index: int) -> str:
    """Group id of a mark in the SVG."""
    return f"mark{index}"


def hover(panel: Panel) -> dict[str, str]:
    """Hover text by group id."""
    titles = {}
    for index, point in enumerate(points(panel)[0]):
        if point.arm:
            ends = interval(point.low, point.high, panel.digits, sign=True)
            difference = f"{signed(point.y, panel.digits)} {ends}".strip()
            titles[gid(index)] = f"{point.text}: {difference} {panel.unit}, {ratio(point.x)} fewer bytes"
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
