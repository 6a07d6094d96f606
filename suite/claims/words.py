"""Verdicts on record in words and figures, for the command line, the document and the page alike."""

from __future__ import annotations

from collections.abc import Sequence

from suite.analysis.tables import Row


def deciding(row: Row, parts: Sequence[Row]) -> Row | None:
    """The part that stands for its claim: the first with the claim's own verdict, else the first; None without parts."""
    own = [part for part in parts if part["role"] == "part"]
    return next((part for part in own if part["verdict"] == row["verdict"]), own[0] if own else None)


def effect(part: Row) -> str:
    """``-4.85 [-5.24, -4.45] points``, ``9711``; why there is none. The level stands where it is not 95 %."""
    value, low, high = part["effect"], part["low"], part["high"]
    if value is None:
        return str(part["reason"] or "nothing measured")
    tail = f" {part['unit']}" if part["unit"] else ""
    if low is None or high is None:
        return figure(value) + tail
    value, low, high = (figure(one, signed=part["unit"] != "times") for one in (value, low, high))
    level = part["level"]
    wide = f" ({level:.3g} %)" if isinstance(level, float) and (level := 100 * level) != 95 else ""
    return f"{value} [{low}, {high}]{tail}{wide}"


def figure(value: object, *, signed: bool = False) -> str:
    """Whole numbers whole, others to two places, or to two digits where they are small."""
    assert isinstance(value, int | float)
    sign = "+" if signed and value > 0 else ""
    if value in (float("inf"), float("-inf")):
        return "no bound"
    if float(value).is_integer():
        return f"{sign}{int(value)}"
    if abs(value) >= 1e6 or abs(value) < 1e-3:
        return f"{sign}{value:.2g}"
    return f"{sign}{value:.2f}" if abs(value) >= 0.05 else f"{sign}{value:.2g}"
