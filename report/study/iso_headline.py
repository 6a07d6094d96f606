"""What a budget ladder says in sentences: who is ahead at equal accuracy, in bytes and on each link, and who is not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from report.drawing.numbers import factor, number, ratio
from report.study.data import Panel
from report.study.points import NEVER, Point, points
from report.study.speedup import Picture
from suite.analysis.evidence import DOUBT


def equal_bytes_sentence(panel: Panel, place: str) -> str | None:
    """How many methods get by with fewer bytes at equal accuracy; None without a ladder."""
    if not panel.iso:
        return None
    marks = [mark for mark in points(panel)[0] if mark.family not in {"baseline", "control"}]
    words = _standing(marks, len(panel.methods), "need fewer bytes", "fewer")
    return (
        f"{place}, to the accuracy of the uncompressed run of the same optimizer: {words}. {_basis([panel])}"
    )


def equal_seconds_sentence(link: str, shown: Sequence[Picture]) -> str:
    """The same in seconds on a link."""
    parts = [f"{one.panel.title}: {seconds_words(one)}" for one in shown]
    steps = " or ".join(dict.fromkeys(str(one.panel.facts["steps"]) for one in shown))
    return (
        f"{link}, against {steps} steps of {shown[0].reference}, to the accuracy of the uncompressed run of the same "
        f"optimizer: {'; '.join(parts)}. {_basis([one.panel for one in shown])}"
    )


def seconds_words(shown: Picture) -> str:
    """Who is ahead in one picture at equal accuracy."""
    marks = [mark for mark in shown.marks if mark.family not in {"baseline", "control"}]
    return _standing(marks, len(shown.panel.methods), "be faster", "as fast")


def _standing(marks: Sequence[Point], methods: int, shown: str, unit: str) -> str:
    """`3 of 7 methods are shown to be faster: qsr-sgd most, 2.9× [2.5, 3.3] as fast; 2 never have it on the ladder`."""
    if not marks:
        return "no method has a ratio"
    doubted = sorted((m for m in marks if m.doubtful and m.x_low > 1), key=lambda m: (-m.x, m.arm))
    ahead = sorted(
        (m for m in marks if m.x_low > 1 and not m.doubtful), key=lambda m: (-m.x, -m.x_low, m.arm)
    )
    best = f", {ahead[0].arm} most ({_said(ahead[0])} {unit})" if ahead else ""
    reached = [m for m in marks if m.censored != NEVER]
    counts = (
        (sum(m.x_low <= 1 <= m.x_high for m in reached), "is undecided", "are undecided"),
        (sum(m.x_high < 1 for m in reached), "is shown not to", "are shown not to"),
        (len(marks) - len(reached), "never has it on the ladder", "never have it on the ladder"),
        (methods - len(marks), "has no ratio", "have no ratio"),
    )
    doubt = (
        [f"{len(doubted)} more would be, {doubted[0].arm} most ({_said(doubted[0])} {unit}), but {DOUBT}"]
        if doubted
        else []
    )
    rest = doubt + [f"{count} {one if count == 1 else many}" for count, one, many in counts if count]
    return "; ".join([f"{len(ahead)} of {methods} methods are shown to {shown}{best}", *rest])


def _said(mark: Point) -> str:
    """2.9× [2.5, 3.3], or more than 3.1× where it is there before the first rung."""
    if math.isinf(mark.x):
        return f"more than {ratio(mark.x_low)}"
    high = "∞" if math.isinf(mark.x_high) else factor(mark.x_high)
    return f"{ratio(mark.x)} [{factor(mark.x_low)}, {high}]"


def _basis(panels: Sequence[Panel]) -> str:
    counts = sorted(
        {int(number(row["n"]) or 0) for panel in panels for row in panel.iso if row["ratio"] is not None}
    )
    n = "0" if not counts else str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"(Read off the budget ladder, n = {n} seeds, 95 % intervals.)"
