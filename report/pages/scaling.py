"""The page of scaling and break-even bandwidths: where a method pays, and what further workers cost it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from report.drawing import numbers as write
from report.drawing.numbers import MISSING, bit_rate
from report.drawing.scales import bare, look, name_lines, new_figure
from report.drawing.svg import inline, svg_file
from report.drawing.table import (
    PAIRED,
    Cell,
    Column,
    Line,
    Row,
    View,
    chips,
    count_cell,
    ratio_cell,
    text_cell,
)
from report.drawing.theme import COLOURS, colour, family, mark
from report.rendering import ALONE, Links, ReportError, slug, write_page
from suite.analysis.document import rows_of
from suite.analysis.published import origin_words
from suite.analysis.tables import number
from suite.costs.break_even import AGREES, DISAGREES, UNDECIDED, measured_once
from suite.costs.columns import BREAK_EVEN, BREAK_EVEN_CHECKS, PREDICTED, SCALING
from suite.costs.scaling import STRONG, WEAK, held_of, series_of
from suite.links.link import rate_words

COMMAND: Final = "bandwise costs scaling"
FEW: Final = 3
"""Settings with no more methods than that are shown last."""
SETTING: Final = ("workload", "bucket_bytes", "cores", "world_size")
SERIES: Final = ("workload", "batch_size", "bucket_bytes", "link")


@dataclass(frozen=True)
class Setting:
    """Break-even rates of the methods in one setting, and what sessions measured there."""

    rows: tuple[Row, ...]
    checks: tuple[Row, ...]

    @property
    def held(self) -> bool:
        """Whether sessions held it; else it is the example."""
        return self.rows[0]["workload"] is not None

    @property
    def title(self) -> str:
        """For people."""
        row = self.rows[0]
        if not self.held:
            return f"{number(row, 'parameters') / 1e6:.3g} M parameters, {row['world_size']} workers"
        return f"{row['workload']}, {row['world_size']} workers"

    @property
    def about(self) -> str:
        """What decides it besides the link."""
        row = self.rows[0]
        size, compute = number(row, "parameters") / 1e6, 1e3 * number(row, "compute_s")
        crowd = f"sharing {row['cores']} cores" if self.held else "a machine each"
        cut = f", buckets of {number(row, 'bucket_bytes') / 2**20:.3g} MiB" if self.held else ""
        return f"{size:.3g} M parameters, {crowd}, computing {compute:.3g} ms a step{cut}"


@dataclass(frozen=True)
class Curve:
    """Weak and strong scaling of the methods of one series."""

    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.rows[0]['workload']}, {self.rows[0]['link']}"

    @property
    def about(self) -> str:
        """What the sessions have in common, and their workers."""
        row = self.rows[0]
        sizes = ", ".join(map(str, self.sizes))
        return (
            f"batch {row['batch_size']} a worker, buckets of {number(row, 'bucket_bytes') / 2**20:.3g} MiB; measured with "
            f"{sizes} workers"
        )

    @property
    def sizes(self) -> list[int]:
        """Numbers of workers of the sessions."""
        return sorted({int(number(row, "world_size")) for row in self.measured()})

    def measured(self) -> list[Row]:
        """What sessions measured."""
        return [row for row in self.rows if row["source"] != PREDICTED]

    def weak(self, own_machines: bool) -> list[Row]:
        """The curve for workers that share the sessions' cores, or have machines of their own."""
        return [
            row
            for row in self.rows
            if row["source"] == PREDICTED
            and row["scaling"] == WEAK
            and (row["cores"] is None) == own_machines
        ]

    def strong(self) -> list[Row]:
        """The curve of work that is shared."""
        return [row for row in self.rows if row["scaling"] == STRONG]

    @property
    def methods(self) -> list[str]:
        """The most efficient with the most workers that were measured first."""
        best: dict[str, tuple[float, float]] = {}
        for row in self.measured():
            place = (row["world_size"] == self.sizes[-1], number(row, "efficiency"))
            best[row["method"]] = max(best.get(row["method"], (False, 0.0)), place)
        return sorted(best, key=lambda name: (-best[name][0], -best[name][1], name))


@dataclass(frozen=True)
class ScalingData:
    """All that the page shows. alone: what could not be joined, in words."""

    settings: tuple[Setting, ...]
    curves: tuple[Curve, ...]
    alone: tuple[str, ...]
    rows: tuple[Row, ...]
    break_even: tuple[Row, ...]
    checks: tuple[Row, ...]


def load_scaling(results_root: Path) -> ScalingData:
    """From tables alone. Raises ReportError where they were not made, TableError for a damaged one."""
    rows, even, checks = (rows_of(results_root, table) for table in (SCALING, BREAK_EVEN, BREAK_EVEN_CHECKS))
    if rows is None or even is None or checks is None:
        raise ReportError(
            f"scaling and break-even bandwidths have not been worked out: run `{COMMAND}` first "
            "(it needs `bandwise costs score`, and that sessions)"
        )
    settings = [
        Setting(own, tuple(row for row in checks if _at(SETTING)(row) == _at(SETTING)(own[0])))
        for own in _grouped(even, _at(SETTING))
    ]
    return ScalingData(
        tuple(sorted(settings, key=lambda one: (one.held, len(one.rows) <= FEW, _order(one.rows[0])))),
        tuple(map(Curve, _grouped(rows, _at(SERIES)))),
        tuple(series_of(held_of(results_root))[1]),
        tuple(rows),
        tuple(even),
        tuple(checks),
    )


Key = tuple[object, ...]


def _at(names: Sequence[str]) -> Callable[[Row], Key]:
    return lambda row: tuple(row[name] for name in names)


def _grouped(rows: Sequence[Row], key: Callable[[Row], Key]) -> list[tuple[Row, ...]]:
    """In the order of the table, which is sorted by its key."""
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return [tuple(group) for group in found.values()]


def _order(row: Row) -> tuple[float, str, float, float]:
    """Large models first, then few workers."""
    return (
        -number(row, "parameters"),
        row["workload"],
        number(row, "world_size"),
        float(row["bucket_bytes"] or 0),
    )


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
        low = float(row["wins"].split()[0].partition("-")[0])
        return f"above {rate_text(low)}"
    return rate_text(below) if below == 0 or math.isinf(below) else f"below {rate_text(below)}"


def stretches_of(row: Row) -> list[tuple[float, float]]:
    """Mbit/s between which a method wins, as the table writes them."""
    return [
        (float(low), float(high))
        for low, _, high in (part.partition("-") for part in (row["wins"] or "").split())
    ]


def break_even_lines(setting: Setting) -> Figure:
    """One line a method, the highest break-even on top: shaded where it wins, the band of the model's error, and what
    sessions measured."""
    rows = sorted(
        (row for row in setting.rows if row["refused"] is None),
        key=lambda row: (-number(row, "below_mbit"), -number(row, "below_high_mbit"), row["method"]),
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
        name_lines(axes, [(row["method"], family(row)) for row in rows])
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


def even_view(data: ScalingData) -> View:
    """A line a method and setting."""
    lines = [Line(_even(row, one), family(row)) for one in data.settings for row in one.rows]
    return View("break-even", "Break-even bandwidths", EVEN_COLUMNS, tuple(lines), chips(lines))


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
    name = row["workload"] or "example"
    size = "" if setting.held else f"{number(row, 'parameters') / 1e6:.3g} M parameters"
    return {
        "method": text_cell(row["method"]),
        "setting": Cell(name, name, size),
        "workers": count_cell(row["world_size"]),
        "about": text_cell(setting.about),
        "below": Cell(break_even_text(row), below, ends=ends, css="quiet" if refused or not row["wins"] else ""),
        "band": Cell(write.MISSING if refused else band_text(row), None if refused else band_text(row)),
        "error": Cell(f"{100 * number(row, 'error'):.2g} %", number(row, "error"), f"a {row['left_out']} unseen"),
        "agree": agree,
        "undecided": count_cell(row["n_undecided"]),
        "stretches": text_cell(_ranges(row)),
        "compute": Cell(write.quantity(number(row, "compute_s"), "seconds"), number(row, "compute_s")),
        "refused": text_cell(row["refused"], "reason") if refused else Cell(""),
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
    rows = sorted(data.checks, key=lambda row: order.index(row["verdict"]))
    families = {row["method"]: family(row) for row in data.break_even}
    lines = [
        Line(
            {
                "method": text_cell(row["method"]),
                "setting": text_cell(f"{row['workload']}, {row['world_size']} workers"),
                "session": text_cell(row["session"]),
                "rate": Cell(row["link"], number(row, "rate_mbit")),
                "speedup": ratio_cell(row, "speedup", "speedup_low", "speedup_high"),
                "n": count_cell(row["n"]),
                "predicted": Cell(write.times(number(row, "predicted")), number(row, "predicted")),
                "foretold": Cell(write.times(write.number(row["foretold"])), write.number(row["foretold"])),
                "foretold_verdict": text_cell(
                    row["foretold_verdict"], VERDICTS.get(row["foretold_verdict"], "quiet")
                ),
                "verdict": text_cell(row["verdict"], VERDICTS[row["verdict"]]),
            },
            families.get(row["method"], ""),
        )
        for row in rows
    ]
    return View(
        "checks", "Measured speedups beside predicted ones", CHECK_COLUMNS, tuple(lines), chips(lines)
    )


def weak_view(data: ScalingData) -> View:
    """A line a method, session and number of workers."""
    lines = []
    for curve in data.curves:
        predicted = {(row["method"], row["world_size"]): row for row in curve.weak(False)}
        for row in curve.measured():
            beside = predicted.get((row["method"], row["world_size"]))
            lines.append(Line(_weak(row, beside), family(row)))
    return View("weak", "Weak scaling as measured", WEAK_COLUMNS, tuple(lines), chips(lines))


def _weak(row: Row, predicted: Row | None) -> dict[str, Cell]:
    step = number(row, "step_s")
    ends = number(row, "step_low"), number(row, "step_high")
    efficiency = number(row, "efficiency_low"), number(row, "efficiency_high")
    beside = None if predicted is None else number(predicted, "efficiency")
    return {
        "method": text_cell(row["method"]),
        "workload": text_cell(row["workload"]),
        "link": Cell(row["link"], row["link"]),
        "workers": count_cell(row["world_size"]),
        "efficiency": Cell(
            f"{100 * number(row, 'efficiency'):.3g} %", number(row, "efficiency"),
            f"[{100 * efficiency[0]:.3g}, {100 * efficiency[1]:.3g}]", efficiency,
        ),
        "predicted": Cell(write.MISSING if beside is None else f"{100 * beside:.3g} %", beside),
        "step": Cell(write.quantity(step, "seconds"), step, write.seconds_ends(step, *ends), ends),
        "n": count_cell(row["n"]),
        "single": Cell(
            write.quantity(number(row, "single_s"), "seconds"), number(row, "single_s"),
            f"median of {row['n_single']}",
        ),
        "session": text_cell(row["source"]),
    }  # fmt: skip


NAMED: Final = 3
"""Methods that a finding names."""


def build_scaling_page(
    results_root: Path, out: Path | None = None, links: Links = ALONE
) -> tuple[Path, list[str]]:
    """The page, by default <root>/reports/scaling.html, and its findings in sentences.

    Raises ReportError where the tables were not made, TableError for a damaged one.
    """
    data = load_scaling(results_root)
    parts = {
        "settings": [_setting_parts(one) for one in data.settings],
        "even": even_view(data),
        "checks": check_view(data),
        "curves": [_curve_parts(one) for one in data.curves],
        "weak": weak_view(data),
        "alone": data.alone,
        "origin": origin_words(results_root, (SCALING, BREAK_EVEN, BREAK_EVEN_CHECKS)),
    }
    return write_page(
        out if out is not None else results_root / "reports" / "scaling.html",
        "scaling_page.html.j2",
        findings(data),
        [(SCALING, data.rows), (BREAK_EVEN, data.break_even), (BREAK_EVEN_CHECKS, data.checks)],
        parts,
        links,
    )


def findings(data: ScalingData) -> list[str]:
    """What a reader should know first."""
    found = []
    for one in data.settings:
        if not one.held:
            found.append(_example(one))
    checks = measured_once(data.checks)
    words = [str(row["verdict"]) for row in checks]
    if words:
        found.append(
            f"{_alike(words)} measured speedups that are clear of 1× lie on the side that the model says; "
            f"{words.count(UNDECIDED)} more are not clear."
        )
    unseen = [str(row["foretold_verdict"]) for row in checks if row["foretold_verdict"] is not None]
    if unseen:
        found.append(f"With nothing measured at their rate in the model, {_alike(unseen)} do.")
    if data.curves:
        longest = max(data.curves, key=lambda curve: (len(curve.sizes), len(curve.methods)))
        found.append(_scales(longest))
    return found


def _alike(words: Sequence[str]) -> str:
    """How many agree of those that have a sign."""
    return f"{words.count(AGREES)} of {len(words) - words.count(UNDECIDED)}"


def _example(setting: Setting) -> str:
    able = [row for row in setting.rows if row["refused"] is None]
    paying = sorted(able, key=lambda row: -number(row, "below_mbit"))
    named = [
        f"{row['method']} {break_even_text(row)} (band: {band_text(row)})"
        for row in paying[:NAMED]
        if row["wins"]
    ]
    never = ", ".join(row["method"] for row in able if not row["wins"])
    return (
        f"Predicted, {setting.title}, {setting.about.partition(', ')[2]}: faster than the fastest uncompressed step are "
        f"{'; '.join(named) or 'none'}{f'; never {never}' if never else ''}."
    )


def _scales(curve: Curve) -> str:
    rows = curve.measured()

    def best(n: int, plain: bool) -> str:
        own = [r for r in rows if r["world_size"] == n and (family(r) == "baseline") == plain]
        if not own:
            return "no other method timed"
        row = max(own, key=lambda row: number(row, "efficiency"))
        return f"{_share(row)} {'uncompressed' if plain else row['method']}"

    parts = [f"with {n} workers {best(n, True)}, {best(n, False)}" for n in (curve.sizes[0], curve.sizes[-1])]
    return f"Weak scaling, {curve.title}: the share of a step that computing alone would take is {'; '.join(parts)}."


def _share(row: Row) -> str:
    value, low, high = (
        100 * number(row, name) for name in ("efficiency", "efficiency_low", "efficiency_high")
    )
    return f"{value:.3g} % [{low:.3g}, {high:.3g}]"


def _setting_parts(one: Setting) -> dict[str, Any]:
    name = f"{slug(one.title)}-{one.rows[0]['bucket_bytes'] or 0}"
    refused = [f"{row['method']}: {row['refused']}" for row in one.rows if row["refused"] is not None]
    return {
        "title": one.title,
        "about": one.about,
        "held": one.held,
        "refused": refused,
        "figure": inline(
            svg_file(break_even_lines(one)),
            f"b-{name}",
            f"{one.title}: rates of the link below which each method is faster than the fastest uncompressed DDP; the "
            "numbers are in the table below",
        ),
    }


def _curve_parts(one: Curve) -> dict[str, Any]:
    name = f"{slug(one.title)}-{one.rows[0]['bucket_bytes']}-{one.rows[0]['batch_size']}"
    return {
        "title": one.title,
        "about": one.about,
        "weak": inline(
            svg_file(weak_panels(one)),
            f"w-{name}",
            f"{one.title}: efficiency over workers by method, measured and predicted; the numbers are in the table below",
        ),
        "strong": inline(
            svg_file(strong_lines(one)),
            f"s-{name}",
            f"{one.title}, predicted: times sooner than one worker, over workers that share the work",
        ),
    }
