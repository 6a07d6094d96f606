"""The tables of scaling and break-even as a page shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from report.drawing import numbers as write
from report.drawing.methods import family
from report.drawing.table import PAIRED, Cell, Column, Line, View
from report.drawing.theme import FAMILIES
from report.sheets.scaling_data import ScalingData, Setting
from report.sheets.scaling_figures import break_even_text, rate_text, stretches_of
from suite.analysis.tables import Row, number
from suite.costs.break_even import AGREES, DISAGREES, UNDECIDED

VERDICTS: Final = MappingProxyType({DISAGREES: "no", UNDECIDED: "quiet", AGREES: "yes"})
"""Verdict -> class, in the order in which lines stand: what calls for a look comes first."""
EVEN_COLUMNS: Final = (
    Column("method", "method"),
    Column("setting", "setting", "Of sessions held here, or the example, which nobody held."),
    Column("workers", "workers", numeric=True),
    Column(
        "below", "faster on links", "Than the fastest uncompressed DDP, predicted: where the two steps take as long.", True, True,
    ),
    Column("band", "band", "Where the speedup differs from 1 by less than the model's median error.", False),
    Column("error", "model's error", "Median relative error of a step, that rate or model left out.", True),
    Column("agree", "measured alike", "Measured speedups clear of 1 on the predicted side, of all that are clear.", True),
    Column("undecided", "not clear", "Measured speedups whose 95 % interval holds 1.", True),
    Column("stretches", "all ranges", "Every range of rates in which it is faster.", hidden=True),
    Column("about", "what decides it", "Besides the link.", hidden=True),
    Column("compute", "computing", "Of a worker's step, while the others compute too.", True, hidden=True),
    Column("refused", "why not", hidden=True),
)  # fmt: skip
CHECK_COLUMNS: Final = (
    Column("method", "method"),
    Column("setting", "setting"),
    Column("session", "session"),
    Column("rate", "link", "Of each worker.", True),
    Column("speedup", "measured speedup", "Over the fastest uncompressed DDP. " + PAIRED, True, True),
    Column("n", "rounds", "The n of the speedup.", True),
    Column("predicted", "predicted", "By the curve that the break-even was found with.", True),
    Column("foretold", "rate unseen", "Predicted with nothing that was measured at this rate.", True),
    Column("foretold_verdict", "its sign", "Whether the interval lies on that side of 1."),
    Column("verdict", "sign", "Whether the interval lies on the predicted side of 1."),
)  # fmt: skip
WEAK_COLUMNS: Final = (
    Column("method", "method"),
    Column("workload", "workload"),
    Column("link", "link"),
    Column("workers", "workers", numeric=True),
    Column("efficiency", "efficiency", "One worker's step that sends nothing over this one; ends from both.", True, True),
    Column("predicted", "predicted", "By the cost model, for workers that share the same cores.", True),
    Column("step", "seconds a step", "Median over rounds; 95 % order-statistic interval.", True, True),
    Column("n", "rounds", "The n of seconds a step.", True),
    Column("single", "one worker", "Its step that sends nothing, as many to a core, in the same session.", True, hidden=True),
    Column("session", "session"),
)  # fmt: skip


def band_text(row: Row) -> str:
    """The band of a break-even rate."""
    low, high = number(row, "below_low_mbit"), number(row, "below_high_mbit")
    return rate_text(low) if low == high else f"{rate_text(low)} to {rate_text(high)}"


def _chips(lines: Sequence[Line]) -> tuple[tuple[str, str], ...]:
    seen = {line.family for line in lines}
    return tuple((name, words) for name, words in FAMILIES.items() if name in seen)


def _text(value: object, css: str = "") -> Cell:
    return Cell(
        write.MISSING if value is None else str(value), None if value is None else str(value), css=css
    )


def _number(row: Row, name: str) -> Cell:
    value = row[name]
    return Cell(write.MISSING, None) if value is None else Cell(f"{number(row, name):g}", number(row, name))


def even_view(data: ScalingData) -> View:
    """A line a method and setting."""
    lines = [Line(_even(row, one), family(row)) for one in data.settings for row in one.rows]
    return View("break-even", "Break-even bandwidths", EVEN_COLUMNS, tuple(lines), _chips(lines))


def _even(row: Row, setting: Setting) -> dict[str, Cell]:
    refused = row["refused"] is not None
    below: float | None = None
    ends: tuple[float | None, float | None] = (None, None)
    if not refused:
        below = number(row, "below_mbit")
        ends = number(row, "below_low_mbit"), number(row, "below_high_mbit")
    decided = row["n_decided"]
    agree = Cell(write.MISSING, None)
    if decided:
        alike, of = int(number(row, "n_agree")), int(number(row, "n_decided"))
        agree = Cell(write.share(alike, of), alike, css="" if alike == of else "maybe")
    name = str(row["workload"] or "example")
    size = "" if setting.held else f"{number(row, 'parameters') / 1e6:.3g} M parameters"
    return {
        "method": _text(row["method"], "arm"),
        "setting": Cell(name, name, size),
        "workers": _number(row, "world_size"),
        "about": _text(setting.about),
        "below": Cell(break_even_text(row), below, ends=ends, css="quiet" if refused or not row["wins"] else ""),
        "band": Cell(write.MISSING if refused else band_text(row), None if refused else band_text(row)),
        "error": Cell(f"{100 * number(row, 'error'):.2g} %", number(row, "error"), f"a {row['left_out']} unseen"),
        "agree": agree,
        "undecided": _number(row, "n_undecided"),
        "stretches": _text(_ranges(row)),
        "compute": Cell(write.quantity(number(row, "compute_s"), "seconds"), number(row, "compute_s")),
        "refused": _text(row["refused"], "reason") if refused else Cell(""),
    }  # fmt: skip


def _ranges(row: Row) -> str:
    """All stretches in words."""
    found = stretches_of(row)
    words = [
        "always" if low == 0 and math.isinf(high) else f"below {rate_text(high)}" if low == 0
        else f"above {rate_text(low)}" if math.isinf(high) else f"{rate_text(low)} to {rate_text(high)}"
        for low, high in found
    ]  # fmt: skip
    return ", ".join(words) or "none"


def check_view(data: ScalingData) -> View:
    """A line a measured speedup, disagreements first."""
    order = list(VERDICTS)
    rows = sorted(data.checks, key=lambda row: order.index(str(row["verdict"])))
    families = {str(row["method"]): family(row) for row in data.break_even}
    lines = [
        Line(
            {
                "method": _text(row["method"], "arm"),
                "setting": _text(f"{row['workload']}, {row['world_size']} workers"),
                "session": _text(row["session"]),
                "rate": Cell(str(row["link"]), number(row, "rate_mbit")),
                "speedup": _ratio(row, "speedup", "speedup_low", "speedup_high"),
                "n": _number(row, "n"),
                "predicted": Cell(write.ratio(number(row, "predicted")), number(row, "predicted")),
                "foretold": Cell(write.ratio(write.number(row["foretold"])), write.number(row["foretold"])),
                "foretold_verdict": _text(
                    row["foretold_verdict"], VERDICTS.get(str(row["foretold_verdict"]), "quiet")
                ),
                "verdict": _text(row["verdict"], VERDICTS[str(row["verdict"])]),
            },
            families.get(str(row["method"]), ""),
        )
        for row in rows
    ]
    return View(
        "checks", "Measured speedups beside predicted ones", CHECK_COLUMNS, tuple(lines), _chips(lines)
    )


def _ratio(row: Row, value: str, low: str, high: str) -> Cell:
    ends = number(row, low), number(row, high)
    return Cell(write.ratio(number(row, value)), number(row, value), f"[{ends[0]:.3g}, {ends[1]:.3g}]", ends)


def weak_view(data: ScalingData) -> View:
    """A line a method, session and number of workers."""
    lines = []
    for curve in data.curves:
        predicted = {(row["method"], row["world_size"]): row for row in curve.weak(False)}
        for row in curve.measured():
            beside = predicted.get((row["method"], row["world_size"]))
            lines.append(Line(_weak(row, beside), family(row)))
    return View("weak", "Weak scaling as measured", WEAK_COLUMNS, tuple(lines), _chips(lines))


def _weak(row: Row, predicted: Row | None) -> dict[str, Cell]:
    step = number(row, "step_s")
    ends = number(row, "step_low"), number(row, "step_high")
    efficiency = number(row, "efficiency_low"), number(row, "efficiency_high")
    beside = None if predicted is None else number(predicted, "efficiency")
    return {
        "method": _text(row["method"], "arm"),
        "workload": _text(row["workload"]),
        "link": Cell(str(row["link"]), str(row["link"])),
        "workers": _number(row, "world_size"),
        "efficiency": Cell(
            f"{100 * number(row, 'efficiency'):.3g} %", number(row, "efficiency"),
            f"[{100 * efficiency[0]:.3g}, {100 * efficiency[1]:.3g}]", efficiency,
        ),
        "predicted": Cell(write.MISSING if beside is None else f"{100 * beside:.3g} %", beside),
        "step": Cell(write.quantity(step, "seconds"), step, write.seconds_ends(step, *ends), ends),
        "n": _number(row, "n"),
        "single": Cell(
            write.quantity(number(row, "single_s"), "seconds"), number(row, "single_s"),
            f"median of {row['n_single']}",
        ),
        "session": _text(row["source"]),
    }  # fmt: skip
