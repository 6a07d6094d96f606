"""What trainings of several lengths say: cost to equal accuracy, as a table, a picture and sentences.

The picture shows how far each method is from its target at every length of training: where a line crosses 0 the method has the
accuracy that the uncompressed run of its optimizer has at the full budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from report.drawing import numbers as write
from report.drawing.numbers import factor, number, times
from report.drawing.scales import bare, difference_axis, look, new_figure, per_point
from report.drawing.table import Cell, Column, Line, Row, View
from report.drawing.theme import COLOURS, colour, mark
from report.study.data import Panel
from report.study.marks import NEVER, Point, band, by_arm, points
from suite.analysis.evidence import DOUBT

WORDS = {"": "", NEVER: "never", "reached before the first rung": "from the start"}
"""Censored -> the word in a cell."""
WHERE = "where it has the accuracy that the uncompressed run of its optimizer has at the full budget"
HOW = "read off the budget ladder, with the 95 % interval that inverts the paired t test"


def ratio_at_equal(row: Row | None, column: str) -> Cell:
    """A ratio at equal accuracy as a cell, with its interval or what is known of it."""
    value = None if row is None else number(row[column])
    if row is None or value is None:
        return Cell(write.MISSING, None, css="quiet")
    ends = row["low"], row["high"]
    word = WORDS[(row["censored"] or "")]
    return Cell(word or write.times(value), value, bounds(row), ends, css="maybe" if word else "")


def bounds(row: Mapping[str, Any]) -> str:
    """[3.10, 4.20], or where one side is open < 4.20, > 3.10; nothing where both are."""
    low, high = row["low"], row["high"]
    if low is None or high is None or (low == 0 and math.isinf(high)):
        return ""
    if low == 0:
        return f"< {write.times(high)}"
    return f"> {write.times(low)}" if math.isinf(high) else f"[{write.factor(low)}, {write.factor(high)}]"


def budgets_view(panel: Panel) -> View:
    """Every budget of the sweep: the distance to what is to be reached, a column a budget."""
    rungs = sorted({(row["budget"] or 0.0, int(number(row["steps"]) or 0)) for row in panel.budgets})
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
    families = {row["arm"]: "control" if row["control"] else row["family"] for row in panel.summary}
    iso = {cost: by_arm(panel.equal_loss, cost=cost) for cost in ("bytes", "steps")}
    lines = []
    for arm in sorted({row["arm"] for row in panel.budgets}, key=lambda name: _order(panel, name)):
        own = [row for row in panel.budgets if row["arm"] == arm]
        lost = sum((row["n_diverged"] or 0) for row in own)
        n = int(number(iso["bytes"][arm]["n"]) or 0)
        cells = {
            "method": Cell(arm, arm),
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
    words = "; ".join(dict.fromkeys(row["reason"] for row in rows if row["reason"]))
    return Cell(words, words or None, css="reason")


def _order(panel: Panel, arm: str) -> tuple[bool, bool, str, str]:
    """Uncompressed runs, methods by family, controls."""
    row = next(row for row in panel.summary if row["arm"] == arm)
    return bool(row["control"]), row["baseline"] is not None, row["family"], arm


def _gap(row: Row, digits: int) -> Cell:
    value, ends = row["gap_mean"], (row["gap_low"], row["gap_high"])
    return Cell(write.signed(value, digits), value, write.interval(*ends, digits, sign=True), ends)


NAMES_WIDTH = 1.55
"""Inches beside the frame, for the names of the methods."""
LINE_POINTS = 9.6
"""Height of a name, in points."""


def budgets_figure(panel: Panel, width: float = 9.0) -> Figure:
    """One line a method over its rungs, with 95 % paired t intervals; x is logarithmic in steps."""
    lines = _lines(panel)
    height = max(4.2, 0.9 + len(lines) * LINE_POINTS / 72)
    with look():
        figure, (axes,) = new_figure(width, height)
        figure.subplots_adjust(
            left=0.62 / width, right=1 - NAMES_WIDTH / width, bottom=0.5 / height, top=1 - 0.12 / height
        )
        values = [v for rows in lines.values() for row in rows for v in _values(row)]
        difference_axis(axes, "y", values, panel.margin)
        if panel.facts["direction"] == "lower":
            axes.invert_yaxis()  # up is better, whatever the metric
        rungs = sorted({(number(row["steps"]) or 1.0, row["budget"] or 1.0) for row in panel.budgets})
        axes.set_xscale("log")
        axes.set_xlim(rungs[0][0] / 1.06, rungs[-1][0] * 1.06)
        axes.xaxis.set_major_locator(FixedLocator([steps for steps, _ in rungs]))
        axes.xaxis.set_major_formatter(FixedFormatter([f"{steps:g}\n{budget:g}×" for steps, budget in rungs]))
        axes.xaxis.set_minor_locator(NullLocator())
        bare(axes, "y")
        axes.grid(axis="x")
        band(axes, panel)
        families = {row["arm"]: _family(row) for row in panel.summary}
        for arm, rows in lines.items():
            _draw(axes, rows, families[arm])
        _names(axes, lines, families)
        unit = f" ({panel.unit})" if panel.unit else ""
        axes.set_xlabel("steps of the training, and as a multiple of the full budget")
        axes.set_ylabel(f"difference to the target at the full budget{unit}")
        return figure


def _lines(panel: Panel) -> dict[str, list[Row]]:
    """The rungs of each arm that have a pair, shortest first."""
    found: dict[str, list[Row]] = {}
    for row in sorted(panel.budgets, key=lambda row: (row["arm"], row["budget"] or 0.0)):
        if row["gap_mean"] is not None:
            found.setdefault(row["arm"], []).append(row)
    return found


def _values(row: Row) -> list[float]:
    found = (number(row[name]) for name in ("gap_mean", "gap_low", "gap_high"))
    return [value for value in found if value is not None]


def _family(row: Row) -> str:
    return "control" if row["control"] else row["family"]


def _draw(axes: Axes, rows: list[Row], family: str) -> None:
    shade, faint = colour(family), 0.4 if family == "control" else 0.8
    xs, ys = ([number(row[name]) or 0.0 for row in rows] for name in ("steps", "gap_mean"))
    axes.plot(xs, ys, color=shade, linewidth=1.1, alpha=faint, zorder=2)
    axes.plot(xs, ys, mark(family), color=shade, markersize=4, markeredgewidth=0.0, linestyle="", zorder=4)
    for x, row in zip(xs, rows, strict=True):
        low, high = row["gap_low"], row["gap_high"]
        if low is not None and high is not None:
            axes.plot(
                [x, x], [low, high], color=shade, linewidth=1.0, alpha=0.45, solid_capstyle="butt", zorder=3
            )


def _names(axes: Axes, lines: dict[str, list[Row]], families: dict[str, str]) -> None:
    """Each name beside the end of its line, pushed apart so that none covers another."""
    scale = per_point(axes)
    frame = axes.get_window_extent()
    ends = [
        (float(axes.transData.transform((1.0, rows[-1]["gap_mean"] or 0.0))[1]) / scale, arm)
        for arm, rows in sorted(lines.items())
    ]
    heights = spread_below([y for y, _ in sorted(ends)], LINE_POINTS, float(frame.y1) / scale)
    for (y, arm), at in zip(sorted(ends), heights, strict=True):
        shade = colour(families[arm])
        share, own = ((v * scale - float(frame.y0)) / float(frame.height) for v in (at, y))
        axes.plot(
            [1.0, 1.03],
            [own, share],
            transform=axes.transAxes,
            clip_on=False,
            color=shade,
            linewidth=0.5,
            alpha=0.7,
        )
        axes.annotate(
            arm.removeprefix("control-"), (1.035, share), xycoords="axes fraction", va="center", fontsize=7.2,
            color=shade, annotation_clip=False,
        )  # fmt: skip
    axes.axhline(0, color=COLOURS["muted"], linewidth=0.9, zorder=1)


def spread_below(wanted: list[float], gap: float, top: float) -> list[float]:
    """Heights in their order, at least `gap` apart, none above `top`, as near to the wanted (rising) as that leaves."""
    found: list[float] = []
    for y in wanted:
        found.append(max(y, found[-1] + gap) if found else y)
    limit = top
    for index in reversed(range(len(found))):
        found[index] = min(found[index], limit)
        limit = found[index] - gap
    return found


def equal_bytes_sentence(panel: Panel, place: str) -> str | None:
    """How many methods get by with fewer bytes at equal accuracy; None without a ladder."""
    if not panel.equal_loss:
        return None
    marks = [mark for mark in points(panel)[0] if mark.family not in {"baseline", "control"}]
    words = standing_words(marks, len(panel.methods), "need fewer bytes", "fewer")
    return f"{place}, to the accuracy of the uncompressed run of the same optimizer: {words}. {basis_words([panel])}"


def standing_words(marks: Sequence[Point], methods: int, shown: str, unit: str) -> str:
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
    """2.90× [2.54, 3.31], or more than 3.10× where it is there before the first rung."""
    if math.isinf(mark.x):
        return f"more than {times(mark.x_low)}"
    return f"{times(mark.x)} [{factor(mark.x_low)}, {factor(mark.x_high)}]"


def basis_words(panels: Sequence[Panel]) -> str:
    counts = sorted(
        {(row["n"] or 0) for panel in panels for row in panel.equal_loss if row["ratio"] is not None}
    )
    n = "0" if not counts else str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"(Read off the budget ladder, n = {n} seeds, 95 % intervals.)"
