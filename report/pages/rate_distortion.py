"""The page of rate and distortion: what a mean over workers costs in bits and loses in precision, by quantiser."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from report.drawing import numbers as write
from report.drawing.labels import Box, Label, place
from report.drawing.scales import MEASURE, bare, look, new_figure, per_point
from report.drawing.svg import gid, inline, svg_file
from report.drawing.table import Cell, Column, Line, Row, View, chips, text_cell
from report.drawing.theme import COLOURS, FAMILIES, SHAPES, colour, family, mark
from report.rendering import ALONE, Links, ReportError, slug, write_page
from suite.analysis.document import rows_of
from suite.analysis.published import origin_words
from suite.analysis.statistics import pareto_front
from suite.analysis.tables import number
from suite.studies.rate_distortion import QUANTISERS, RATE_DISTORTION, theta_bound

COMMAND: Final = "python -m suite.studies.rate_distortion"
NOTHING: Final = 1.0
"""Error of a mean that is taken for 0."""
STAGES: Final = ("start", "middle", "end")


@dataclass(frozen=True)
class Source:
    """The quantisers on the gradients of one stage of a training, averaged over so many workers."""

    rows: tuple[Row, ...]

    @property
    def place(self) -> tuple[str, str, int]:
        """Workload, stage, workers."""
        row = self.rows[0]
        return row["workload"], row["stage"], int(number(row, "world_size"))

    @property
    def title(self) -> str:
        """For people."""
        workload, stage, n = self.place
        return f"{workload}, {stage} of training, {n} workers"

    @property
    def ring_bits(self) -> float:
        """Bits a coordinate that a rank sends in an fp32 ring all-reduce, which loses nothing."""
        n = self.place[2]
        return 64 * (n - 1) / n

    @property
    def front(self) -> list[Row]:
        """What none of the others beats in bits and error at once, the fewest bits first. An error of 1 costs no bits: it is that
        of sending nothing, so what errs more is not on the front."""
        able = [row for row in self.rows if number(row, "error") < NOTHING]
        bits, precision = (
            [sign * number(row, name) for row in able] for sign, name in ((1, "wire_bits"), (-1, "error"))
        )
        return [able[i] for i in pareto_front(bits, precision)]

    def bounds(self) -> list[tuple[Row, float]]:
        """Rows of which theory bounds the error, and that bound as an error: it is proven for theta, and the two differ by the
        ratio of the norms, which the row knows."""
        found = []
        for row in self.rows:
            theta = bound_of(row)
            if theta is not None and number(row, "theta") > 0:
                found.append((row, theta * number(row, "error") / number(row, "theta")))
        return found


def bound_of(row: Row) -> float | None:
    """The most that theory allows theta; None where it says nothing, or where the quantiser is not one of those measured here."""
    known = next((one for one in QUANTISERS if one.label == row["quantiser"]), None)
    return None if known is None else theta_bound(known.algorithm, known.options)


def load_sources(results_root: Path) -> list[Source]:
    """By workload, workers and stage. Raises ReportError where it was not measured, TableError for a damaged table."""
    rows = rows_of(results_root, RATE_DISTORTION)
    if rows is None:
        raise ReportError(f"rate and distortion have not been measured: run `{COMMAND}` first")
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row["workload"], row["world_size"], row["stage"]), []).append(row)
    return sorted((Source(tuple(rows)) for rows in found.values()), key=_order)


def _order(source: Source) -> tuple[str, int, int]:
    workload, stage, n = source.place
    return workload, n, STAGES.index(stage) if stage in STAGES else len(STAGES)


WIDTH, HEIGHT = 4.3, 3.9
BIT_TICKS: Final = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


def panel(source: Source, beside: Sequence[Source]) -> Figure:
    """One panel; those it is shown with, `beside`, have the same axes. Names stand at the marks of the front alone."""
    with look():
        figure, (axes,) = new_figure(WIDTH, HEIGHT)
        figure.subplots_adjust(
            left=0.66 / WIDTH, right=1 - 0.12 / WIDTH, bottom=0.5 / HEIGHT, top=1 - 0.1 / HEIGHT
        )
        axes.set_xscale("log")
        axes.set_yscale("log")
        _limits(axes, [row for one in beside for row in one.rows], source.ring_bits)
        bare(axes, "y")
        axes.grid(axis="x")
        front = source.front
        line = [(number(row, "wire_bits"), number(row, "error")) for row in front]
        if line:
            axes.plot(*zip(*line, strict=True), color=COLOURS["front"], linewidth=3.2, zorder=1.5)
        axes.axhline(NOTHING, color=COLOURS["muted"], linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        axes.annotate(
            "sending nothing", (0, NOTHING), xycoords=("axes fraction", "data"), xytext=(3, 2),
            textcoords="offset points", fontsize=6.8, style="italic", color=COLOURS["muted"],
        )  # fmt: skip
        axes.axvline(source.ring_bits, color=COLOURS["baseline"], linewidth=0.9, zorder=1)
        axes.annotate(
            "fp32 ring", (source.ring_bits, 1), xycoords=("data", "axes fraction"), xytext=(-3, -3),
            textcoords="offset points", fontsize=6.8, ha="right", va="top", color=COLOURS["baseline"],
        )  # fmt: skip
        for row, bound in source.bounds():
            at = number(row, "wire_bits")
            axes.plot(
                [at], [bound], "_", color=colour(family(row)), markersize=9, markeredgewidth=1.4, zorder=3
            )
        curve = sorted(
            (number(row, "wire_bits"), bound) for row, bound in source.bounds() if row["algorithm"] == "qsgd"
        )
        if curve:
            axes.plot(
                *zip(*curve, strict=True), color=colour("quantiser"), linewidth=0.8, linestyle=(0, (1, 2))
            )
        for index, row in enumerate(source.rows):
            _mark(axes, index, row)
        _names(axes, source.rows, front)
        axes.set_xlabel("bits that a rank sends a coordinate")
        axes.set_ylabel("squared error of the mean over its squared norm")
        return figure


def _limits(axes: Axes, rows: Sequence[Row], ring_bits: float) -> None:
    bits, errors = ([number(row, name) for row in rows] for name in ("wire_bits", "error"))
    bits.append(ring_bits)
    axes.set_xlim(min(bits) / 1.6, max(bits) * 1.6)
    axes.set_ylim(min(errors) / 2.5, max(errors) * 4)
    axes.xaxis.set_major_locator(
        FixedLocator([tick for tick in BIT_TICKS if min(bits) / 1.6 < tick < max(bits) * 1.6])
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    decades = [10.0**k for k in range(-12, 6, 2) if min(errors) / 2.5 < 10.0**k < max(errors) * 4]
    axes.yaxis.set_major_locator(FixedLocator(decades))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _mark(axes: Axes, index: int, row: Row) -> None:
    """A mark with its interval, hollow where the code is biased; an end at or below 0 is cut at the edge of the frame."""
    shade, x = colour(family(row)), number(row, "wire_bits")
    low, high = max(number(row, "error_low"), axes.get_ylim()[0]), number(row, "error_high")
    axes.plot([x, x], [low, high], color=shade, linewidth=1.1, solid_capstyle="butt", zorder=3)
    solid = bool(row["unbiased"])
    axes.plot(
        [x], [number(row, "error")], mark(family(row)), markersize=5.4, color=shade, gid=gid(index), zorder=4,
        markerfacecolor=shade if solid else COLOURS["paper"], markeredgewidth=0.0 if solid else 0.9,
    )  # fmt: skip


def _names(axes: Axes, rows: Sequence[Row], front: Sequence[Row]) -> None:
    scale = per_point(axes)

    def at(row: Row) -> tuple[float, float]:
        x, y = axes.transData.transform((number(row, "wire_bits"), number(row, "error"))) / scale
        return float(x), float(y)

    texts, labels = [], []
    for row in front:
        text = axes.text(0, 0, row["quantiser"], fontsize=7.2, color=colour(family(row)), zorder=6)
        extent = text.get_window_extent(MEASURE)
        labels.append(Label(*at(row), extent.width / scale, extent.height / scale))
        texts.append(text)
    others = [Box(x - 3, y - 3, x + 3, y + 3) for x, y in map(at, (row for row in rows if row not in front))]
    frame = axes.get_window_extent(MEASURE)
    inner = Box(*(float(v / scale) for v in (frame.x0, frame.y0, frame.x1, frame.y1))).grown(-1)
    own = [Box(label.x - 3.5, label.y - 3.5, label.x + 3.5, label.y + 3.5) for label in labels]
    back = axes.transData.inverted()
    for text, box in zip(texts, place(labels, own, others, inner), strict=True):
        x, y = back.transform((box.x0 * scale, (box.y0 + 1.6) * scale))
        text.set_position((float(x), float(y)))


def hover(source: Source) -> dict[str, str]:
    """Hover text by group id."""
    return {
        gid(index): (
            f"{row['quantiser']}: {number(row, 'wire_bits'):.3g} bits, error {number(row, 'error'):.3g} "
            f"{interval_text(row, 'error')}, {row['n']} seeds{'' if row['unbiased'] else ', biased'}"
        )
        for index, row in enumerate(source.rows)
    }


def interval_text(row: Row, name: str) -> str:
    """[low, high] in three digits."""
    return f"[{number(row, f'{name}_low'):.3g}, {number(row, f'{name}_high'):.3g}]".replace("-", "−")


OPEN: Final = 4
"""Workers whose panels are open at first."""
COLUMNS: Final = (
    Column("quantiser", "quantiser", "Label of a method with options."),
    Column("workload", "gradients of"),
    Column("stage", "stage", "Of the training that the gradients come from."),
    Column("workers", "workers", numeric=True),
    Column("bits", "bits a coordinate", "That a rank sends, mean over ranks; an fp32 ring sends 64 (n - 1) / n.", True),
    Column("error", "error", "Squared error of the mean over its squared norm; mean over seeds, 95 % t interval.", True, True),
    Column("n", "seeds", "Trainings whose gradients were taken: the n of the row.", True),
    Column("unbiased", "unbiased", "Whether the expectation of the mean is the mean."),
    Column("front", "on the front", "No other quantiser sends less and errs less there, nor does sending nothing."),
    Column("theta", "theta", "n times the squared error over the sum of the workers' squared norms.", True, True),
    Column("bound", "theta at most", "What theory allows it, where its paper says so.", True),
    Column("algorithm", "method", hidden=True),
)  # fmt: skip


def build_distortion_page(
    results_root: Path, out: Path | None = None, links: Links = ALONE
) -> tuple[Path, list[str]]:
    """The page, by default <root>/reports/rate-distortion.html, and its findings in sentences.

    Raises ReportError where nothing was measured, TableError for a damaged table.
    """
    sources = load_sources(results_root)
    seen = {family(row) for source in sources for row in source.rows}
    parts: dict[str, Any] = {
        "groups": [_group(list(own)) for _, own in itertools.groupby(sources, lambda one: one.place[::2])],
        "families": [(name, words) for name, words in FAMILIES.items() if name in seen],
        "shapes": SHAPES,
        "table_view": _view(sources),
        "command": COMMAND,
        "origin": origin_words(results_root, (RATE_DISTORTION,)),
    }
    rows = [row for source in sources for row in source.rows]
    return write_page(
        out if out is not None else results_root / "reports" / "rate-distortion.html",
        "distortion_page.html.j2",
        findings(sources),
        [(RATE_DISTORTION, rows)],
        parts,
        links,
    )


def findings(sources: Sequence[Source]) -> list[str]:
    """What a reader should know first."""
    often = Counter(row["quantiser"] for source in sources for row in source.front)
    ranked = sorted(often.items(), key=lambda item: (-item[1], item[0]))
    seeds = sorted({int(number(row, "n")) for source in sources for row in source.rows})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    named = ", ".join(f"{name} ({share})" for name, share in ranked)
    found = [
        f"On the front of bits and error (of {len(sources)} settings, {count} seeds each, by the estimates): {named}."
    ]
    more = sum(number(row, "wire_bits") > source.ring_bits for source in sources for row in source.rows)
    every = sum(len(source.rows) for source in sources)
    found.append(f"{more} of {every} send more bits than an fp32 ring, which loses nothing.")
    bounded = [
        (row, bound) for source in sources for row in source.rows if (bound := bound_of(row)) is not None
    ]
    if bounded:
        over = sum(number(row, "theta_low") > bound for row, bound in bounded)
        nearest = max(number(row, "theta") / bound for row, bound in bounded)
        found.append(
            f"Of {len(bounded)} errors that theory bounds {over} lie above the bound; the nearest reaches {nearest:.0%} of it."
        )
    return found


def _group(own: list[Source]) -> dict[str, Any]:
    workload, _, n = own[0].place
    return {
        "slug": f"{slug(workload)}-{n}",
        "title": f"{workload}, {n} workers",
        "open": n == OPEN,
        "panels": [
            {
                "title": f"{source.place[1]} of training",
                "count": f"{len(source.rows)} quantisers",
                "figure": inline(
                    svg_file(panel(source, own)),
                    f"r-{slug(source.title)}",
                    f"{source.title}: error of the mean over bits a coordinate; the numbers are in the table below",
                    hover(source),
                ),
            }
            for source in own
        ],
    }


def _view(sources: Sequence[Source]) -> View:
    lines = [
        Line(_cells(row, any(row is best for best in source.front)), family(row))
        for source in sources
        for row in source.rows
    ]
    return View("rates", "Rate and distortion", COLUMNS, tuple(lines), chips(lines))


def _cells(row: Row, best: bool) -> dict[str, Cell]:
    bound = bound_of(row)
    words = "yes" if row["unbiased"] else "no"
    return {
        "quantiser": text_cell(row["quantiser"]),
        "workload": text_cell(row["workload"]),
        "stage": text_cell(row["stage"]),
        "workers": Cell(str(row["world_size"]), number(row, "world_size")),
        "bits": Cell(f"{number(row, 'wire_bits'):.3g}", number(row, "wire_bits")),
        "error": _interval_cell(row, "error"),
        "n": Cell(str(row["n"]), number(row, "n")),
        "unbiased": Cell(words, words),
        "front": Cell("front" if best else "", "front" if best else "", css="yes"),
        "theta": _interval_cell(row, "theta"),
        "bound": Cell(write.MISSING if bound is None else f"{bound:.3g}", bound),
        "algorithm": text_cell(row["algorithm"]),
    }


def _interval_cell(row: Row, name: str) -> Cell:
    ends = number(row, f"{name}_low"), number(row, f"{name}_high")
    return Cell(f"{number(row, name):.3g}", number(row, name), interval_text(row, name), ends)
