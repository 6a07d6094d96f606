"""The pictures of scaling: break-even rates as lines, weak scaling as a small panel a method, strong scaling predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from report.drawing.methods import family
from report.drawing.numbers import MISSING, bit_rate
from report.drawing.scales import bare, look, name_lines, new_figure
from report.drawing.theme import COLOURS, colour, mark
from report.sheets.scaling_data import Curve, Setting
from suite.analysis.tables import Row, number
from suite.costs.break_even import AGREES, DISAGREES, UNDECIDED
from suite.links.link import rate_words

LINE_HEIGHT: Final = 0.25
LEFT, RIGHT = 1.6, 1.15
"""Inches for names, and for numbers beside the frame."""
COLUMNS: Final = 4
TICKS: Final = (1, 2, 4, 8, 16, 32, 64)
KEY: Final = (
    ("●", "measured faster"),
    ("○", "measured slower"),
    ("·", "not clear"),
    ("✕", "other than predicted"),
)


def rate_text(mbit: float | None) -> str:
    """A break-even rate in words."""
    if mbit is None:
        return MISSING
    return "never" if mbit == 0 else "always" if math.isinf(mbit) else bit_rate(1e6 * mbit)


def break_even_text(row: Row) -> str:
    """Below which rate a method wins; `never` and `always` where there is none."""
    if row["refused"] is not None:
        return "cannot serve so many"
    below = number(row, "below_mbit")
    if below == 0 and row["wins"]:
        low = float(str(row["wins"]).split()[0].partition("-")[0])
        return f"above {rate_text(low)}"
    return rate_text(below) if below == 0 or math.isinf(below) else f"below {rate_text(below)}"


def stretches_of(row: Row) -> list[tuple[float, float]]:
    """Mbit/s between which a method wins, as the table writes them."""
    return [
        (float(low), float(high))
        for low, _, high in (part.partition("-") for part in str(row["wins"] or "").split())
    ]


def break_even_lines(setting: Setting) -> Figure:
    """One line a method, the highest break-even on top: shaded where it wins, the band of the model's error, and what
    sessions measured."""
    rows = sorted(
        (row for row in setting.rows if row["refused"] is None),
        key=lambda row: (-number(row, "below_mbit"), -number(row, "below_high_mbit"), str(row["method"])),
    )
    height, width = 0.86 + LINE_HEIGHT * max(len(rows), 2), 6.5
    with look():
        figure, (axes,) = new_figure(width, height)
        figure.subplots_adjust(
            left=LEFT / width, right=1 - RIGHT / width, bottom=0.46 / height, top=1 - 0.3 / height
        )
        low, high = _reach(setting)
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        bare(axes, "x")
        for line, row in enumerate(rows):
            _stretches(axes, line, row, (low, high))
            for check in setting.checks:
                if check["method"] == row["method"]:
                    _measured(axes, line, check, (low, high))
            axes.annotate(
                break_even_text(row), (1, line), xycoords=("axes fraction", "data"), xytext=(8, 0),
                textcoords="offset points", ha="left", va="center", fontsize=7.6, color=colour(family(row)),
                annotation_clip=False,
            )  # fmt: skip
        name_lines(axes, [(str(row["method"]), family(row)) for row in rows])
        _rates(axes, low, high)
        if setting.checks:
            words = "     ".join(f"{sign} {text}" for sign, text in KEY)
            axes.annotate(
                words, (0, 1), xycoords="axes fraction", xytext=(0, 5), textcoords="offset points", ha="left",
                va="bottom", fontsize=7.2, color=COLOURS["muted"], annotation_clip=False,
            )  # fmt: skip
        axes.annotate(
            "faster than the\nbest uncompressed", (1, 1), xycoords="axes fraction", xytext=(8, 3),
            textcoords="offset points", ha="left", va="bottom", fontsize=7.2, linespacing=1.05, color=COLOURS["muted"],
            annotation_clip=False,
        )  # fmt: skip
        return figure


def _reach(setting: Setting) -> tuple[float, float]:
    """Mbit/s at the ends of the axis: whole decades around all that is finite."""
    values = [
        float(value)
        for row in setting.rows
        for value in (row["below_mbit"], row["below_low_mbit"], row["below_high_mbit"])
        if isinstance(value, float) and 0 < value < math.inf
    ]
    values += [
        number(check, "rate_mbit") for check in setting.checks if math.isfinite(number(check, "rate_mbit"))
    ]
    values = values or [10.0, 1e4]
    return 10.0 ** math.floor(math.log10(min(values)) - 0.1), 10.0 ** math.ceil(math.log10(max(values)) + 0.1)


def _stretches(axes: Axes, line: int, row: Row, ends: tuple[float, float]) -> None:
    shade = colour(family(row))
    for begin, end in stretches_of(row):
        left, right = max(begin, ends[0]), min(end, ends[1])
        if right > left:
            axes.plot(
                [left, right], [line, line], color=shade, linewidth=6.0, alpha=0.22, solid_capstyle="butt"
            )
    low, high = number(row, "below_low_mbit"), number(row, "below_high_mbit")
    band = max(low, ends[0]), min(high, ends[1])
    if high > low and band[1] > band[0]:
        axes.plot(band, [line, line], color=shade, linewidth=1.4, solid_capstyle="butt", zorder=3)
    below = number(row, "below_mbit")
    if ends[0] < below < ends[1]:
        axes.plot([below], [line], "|", color=shade, markersize=11, markeredgewidth=2.0, zorder=4)


def _measured(axes: Axes, line: int, check: Row, ends: tuple[float, float]) -> None:
    at = min(number(check, "rate_mbit"), ends[1] / 1.12)  # an unshaped link stands at the edge
    ink = COLOURS["exposed"] if check["verdict"] == DISAGREES else COLOURS["ink"]
    if check["verdict"] == UNDECIDED:
        axes.plot([at], [line], "o", color=COLOURS["muted"], markersize=2.2, markeredgewidth=0, zorder=5)
        return
    faster = number(check, "speedup") > 1
    axes.plot(
        [at], [line], "o", color=ink, markersize=4.6, markeredgewidth=0.9, zorder=5,
        markerfacecolor=ink if faster else COLOURS["paper"],
    )  # fmt: skip
    if check["verdict"] != AGREES:
        axes.plot([at], [line], "x", color=ink, markersize=9, markeredgewidth=1.1, zorder=6)


def _rates(axes: Axes, low: float, high: float) -> None:
    decades = [10.0**k for k in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    axes.xaxis.set_major_locator(FixedLocator(decades))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: rate_words(1e6 * value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("each worker's link")


def weak_panels(curve: Curve) -> Figure:
    """A panel a method: efficiency over workers. Marks are measured, the line is predicted for the same cores, the dashed one
    for machines of their own; grey is the better of the uncompressed two."""
    methods = curve.methods
    rows = -(-len(methods) // COLUMNS)
    width, height = 8.0, 0.35 + 1.42 * rows
    with look():
        figure, grid = new_figure(width, height, COLUMNS, rows)
        figure.subplots_adjust(
            left=0.66 / width, right=1 - 0.08 / width, bottom=0.42 / height, top=1 - 0.24 / height, wspace=0.12,
            hspace=0.42,
        )  # fmt: skip
        low = _least(curve)
        plain = _best_uncompressed(curve)
        for index, (axes, name) in enumerate(zip(grid, methods, strict=False)):
            _panel(axes, curve, name, plain, low)
            axes.tick_params(
                labelleft=index % COLUMNS == 0, labelbottom=index + COLUMNS >= len(methods), length=0
            )
        for axes in grid[len(methods) :]:
            axes.set_visible(False)
        figure.text(
            0.5, 0.06 / height, "workers", ha="center", va="bottom", fontsize=8, color=COLOURS["muted"]
        )
        figure.text(
            0.04 / width,
            0.5,
            "efficiency",
            rotation=90,
            ha="left",
            va="center",
            fontsize=8,
            color=COLOURS["muted"],
        )
        return figure


def _least(curve: Curve) -> float:
    values = [number(row, "efficiency") for row in [*curve.measured(), *curve.weak(False), *curve.weak(True)]]
    return max(min(values) * 0.8, 1e-3)


def _best_uncompressed(curve: Curve) -> list[tuple[float, float]]:
    found: dict[float, float] = {}
    for row in curve.weak(False):
        if row["algorithm"] is None:
            n = number(row, "world_size")
            found[n] = max(found.get(n, 0.0), number(row, "efficiency"))
    return sorted(found.items())


def _panel(axes: Axes, curve: Curve, name: str, plain: Sequence[tuple[float, float]], low: float) -> None:
    own = [row for row in curve.measured() if row["method"] == name]
    shade = colour(family(own[0]))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(0.85, 76)
    axes.set_ylim(low, 1.25)
    if plain:
        axes.plot(
            *zip(*plain, strict=True), color=COLOURS["rule"], linewidth=2.6, solid_capstyle="butt", zorder=1
        )
    for machines, dashes in ((False, {}), (True, {"linestyle": (0, (4, 2))})):
        line = sorted(
            (number(row, "world_size"), number(row, "efficiency"))
            for row in curve.weak(machines)
            if row["method"] == name
        )
        given: dict[str, Any] = {"linewidth": 0.9 if machines else 1.2, **dashes}
        axes.plot(*zip(*line, strict=True), color=shade, **given)
    for row in own:
        n = number(row, "world_size")
        ends = [number(row, "efficiency_low"), number(row, "efficiency_high")]
        axes.plot([n, n], ends, color=shade, linewidth=1.2, solid_capstyle="butt", zorder=3)
        axes.plot(
            [n],
            [number(row, "efficiency")],
            mark(family(row)),
            color=shade,
            markersize=4.6,
            markeredgewidth=0,
        )
    axes.set_title(name, loc="left", fontsize=7.6, color=shade, pad=3)
    bare(axes, "y")
    axes.xaxis.set_major_locator(FixedLocator([1, 4, 16, 64]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _percent(axes, low)


def _percent(axes: Axes, low: float) -> None:
    ticks = [tick for tick in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0) if tick >= low]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())


def strong_lines(curve: Curve) -> Figure:
    """Predicted: how many times sooner n workers do what one does, a line a method, named at its end."""
    width, height = 7.6, 3.9
    with look():
        figure, (axes,) = new_figure(width, height)
        figure.subplots_adjust(
            left=0.6 / width, right=1 - 1.7 / width, bottom=0.5 / height, top=1 - 0.1 / height
        )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.plot([1, 64], [1, 64], color=COLOURS["muted"], linewidth=0.8, linestyle=(0, (4, 3)))
        ends: list[tuple[float, str, str]] = []
        for name in curve.methods:
            line = sorted(
                (number(row, "world_size"), number(row, "efficiency") * number(row, "world_size"))
                for row in curve.strong()
                if row["method"] == name
            )
            row = next(row for row in curve.strong() if row["method"] == name)
            axes.plot(*zip(*line, strict=True), color=colour(family(row)), linewidth=1.1)
            if line[-1][0] == TICKS[-1]:
                ends.append((line[-1][1], name, colour(family(row))))
            else:
                axes.annotate(
                    name, line[-1], xytext=(3, 0), textcoords="offset points", fontsize=6.8, va="center",
                    color=colour(family(row)),
                )  # fmt: skip
        axes.axhline(1.0, color=COLOURS["muted"], linewidth=0.8)
        axes.set_xlim(0.9, 70)
        axes.set_ylim(min([0.5, *(y for y, _, _ in ends)]) / 1.2, 64)
        _at_the_end(axes, ends)
        axes.xaxis.set_major_locator(FixedLocator(list(TICKS)))
        axes.yaxis.set_major_locator(FixedLocator([2.0**k for k in range(-6, 7)]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.set_xlabel("workers, which share the work")
        axes.set_ylabel("times sooner than one worker")
        bare(axes, "y")
        return figure


def _at_the_end(axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names at the right, the lowest in its place, others moved up where they would cover each other."""
    least, low = 0.0, axes.get_ylim()[0]
    apart = (axes.get_ylim()[1] / low) ** 0.034
    for y, name, ink in sorted(ends):
        least = max(y, apart * least, low)
        axes.annotate(
            name, (TICKS[-1], least), xytext=(10, 0), textcoords="offset points", ha="left", va="center", fontsize=6.8,
            color=ink, annotation_clip=False,
        )  # fmt: skip
