"""The cost model: its tables, its pictures, and the part of a page that is about it; nothing where no model was scored.

Pictures are speedup along a link's rate, the best method of a setting, what a warm-up costs, and the settings of papers and of
sessions on the axis of rho. Lines and areas are predictions; marks are what sessions measured, with their 95 % intervals. The
same tables give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from reference_impls.registry import registry
from report.drawing.scales import bare, look, new_figure
from report.drawing.svg import inline, svg_file
from report.drawing.table import Row
from report.drawing.theme import COLOURS, colour, mark
from suite.analysis.document import rows_of
from suite.analysis.tables import number
from suite.costs.columns import ALL, BEST, PREDICTED, SCORE, SPEEDUPS, WARM_UP
from suite.links.link import rate_words


@dataclass(frozen=True)
class Costs:
    """Rows by a table's suffix; empty where the model was not scored."""

    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)


def load_costs(results_root: Path) -> Costs:
    """The tables that are there."""
    found = {table.suffix: rows_of(results_root, table) for table in (SCORE, SPEEDUPS, WARM_UP, BEST)}
    return Costs({name: rows for name, rows in found.items() if rows})


if TYPE_CHECKING:
    from suite.costs.papers import Placed

_DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
DOCUMENTS: Final = (_DOCS / "cost-model.md", _DOCS / "cost-predictions.md")
IMAGES: Final = _DOCS / "images"
_WIDTH: Final = 7.2
SHOWN: Final[Mapping[str, str]] = {
    "lion-cub-1bit: step": "Lion Cub 1 bit",
    "apmsqueeze: compressed": "APMSqueeze",
    "global-qsgd-8bit: step": "Global-QSGD 8 bits",
    "global-qsgd-4bit: step": "Global-QSGD 4 bits",
    "powersgd: compressed": "PowerSGD",
    "top-k: compressed": "top-k",
    "local-sgd: round-4": "local SGD, 4 steps",
    "qsgd: compressed": "QSGD",
    "allreduce-sgd: step": "all-reduce fp32",
}
"""Cases of the speedup picture, where they are there, and their names in it; the tables hold all."""


def speedup_lines(rows: Sequence[Row], column: str = "speedup") -> str:
    """SVG: speedup over bandwidth, a line a method, with what was measured; rho above."""
    with look():
        figure, (axes,) = new_figure(_WIDTH, 4.2)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.axhline(1.0, color=COLOURS["muted"], linewidth=0.8)
        labels: list[Label] = []
        for case in SHOWN:
            own = [row for row in rows if row["case"] == case and row[column] is not None]
            if own:
                _line(axes, case, own, column, labels)
        _beside(axes, labels)
        _rates(axes, [number(row, "rate_mbit") for row in rows])
        _factors(axes)
        axes.set_ylabel(
            "speedup over the fastest uncompressed DDP" if column == "speedup" else "speedup over fp32 DDP"
        )
        _rho(axes, rows)
        bare(axes, "y")
        figure.tight_layout()
        return svg_file(figure)


def _line(axes: Axes, case: str, rows: Sequence[Row], column: str, labels: list[Label]) -> None:
    family = _family(case.partition(":")[0])
    line = sorted((number(r, "rate_mbit"), number(r, column)) for r in rows if r["source"] == PREDICTED)
    if line:
        axes.plot(*zip(*line, strict=True), color=colour(family), linewidth=1.0)
        labels.append((SHOWN[case], *line[0], colour(family)))
    for row in rows:
        if row["source"] == PREDICTED:
            continue
        at = number(row, "rate_mbit")
        if row[f"{column}_low"] is not None:
            ends = [number(row, f"{column}_low"), number(row, f"{column}_high")]
            axes.plot([at, at], ends, color=colour(family), linewidth=1.0, solid_capstyle="butt")
        axes.plot(
            at, number(row, column), mark(family), color=colour(family), markersize=4.5, markeredgewidth=0
        )


Label = tuple[str, float, float, str]
"""Text, where its line begins, colour."""
APART: Final = 1.11
"""Least ratio of the heights of two labels on a logarithmic axis."""


def _beside(axes: Axes, labels: Sequence[Label]) -> None:
    """The labels to the left of their lines, moved up where they would cover each other."""
    below = 0.0
    for text, x, y, ink in sorted(labels, key=lambda label: (label[2], label[0])):
        below = max(y, APART * below)
        axes.annotate(
            text,
            (x, below),
            xytext=(-4, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=6.5,
            color=ink,
        )


def _family(label: str) -> str:
    names = [name for name in registry.names() if label == name or label.startswith(f"{name}-")]
    return registry.entry(max(names, key=len)).family if names else "baseline"


def _rates(axes: Axes, rates_mbit: Sequence[float]) -> None:
    low, high = min(rates_mbit), max(rates_mbit)
    ticks = [10.0**k for k in range(8) if low <= 10.0**k * 1.001 and 10.0**k <= high * 1.001]
    axes.set_xlim(low / 3.2, high * 1.1)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: rate_words(1e6 * value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("each worker's link")


def _factors(axes: Axes) -> None:
    axes.yaxis.set_major_locator(FixedLocator([0.25, 0.5, 1, 2, 4, 8, 16, 32]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.yaxis.set_minor_locator(NullLocator())


def _rho(axes: Axes, rows: Sequence[Row]) -> None:
    """A second axis above: seconds of an fp32 ring over those of computing."""
    one = next(row for row in rows if row["source"] == PREDICTED)
    product = number(one, "rho") * number(one, "rate_mbit")

    def turn(x: Any) -> Any:
        return product / np.maximum(np.asarray(x, dtype=float), 1e-12)

    above = axes.secondary_xaxis("top", functions=(turn, turn))
    above.xaxis.set_major_locator(FixedLocator([10.0**k for k in range(-3, 4)]))
    above.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    above.xaxis.set_minor_locator(NullLocator())
    above.set_xlabel("rho: fp32 ring over computing")
    above.tick_params(length=0)


def best_map(rows: Sequence[Row]) -> str:
    """SVG: which method has the shortest predicted step, over bandwidth and workers."""
    with look():
        figure, (axes,) = new_figure(_WIDTH, 3.6)
        rates = sorted({number(row, "rate_mbit") for row in rows})
        sizes = sorted({number(row, "world_size") for row in rows})
        names = sorted({row["best"] for row in rows})
        cells = {(number(row, "rate_mbit"), number(row, "world_size")): row for row in rows}
        shades = dict(zip(names, _shades(names), strict=True))
        for i, rate in enumerate(rates):
            for j, size in enumerate(sizes):
                axes.add_patch(_tile(i, j, *shades[str(cells[rate, size]["best"])]))
        for name in names:
            places = [
                (i, j)
                for i, rate in enumerate(rates)
                for j, size in enumerate(sizes)
                if cells[rate, size]["best"] == name
            ]
            if len(places) >= 6:
                x, y = np.median(np.array(places), axis=0)
                near = min(places, key=lambda place: abs(place[0] - x) + abs(place[1] - y))
                axes.text(
                    near[0] + 0.5,
                    near[1] + 0.5,
                    name,
                    ha="center",
                    va="center",
                    fontsize=7,
                    color=COLOURS["ink"],
                )
        ticks = [i for i, rate in enumerate(rates) if abs(np.log10(rate) - round(np.log10(rate))) < 1e-6]
        axes.set_xlim(0, len(rates))
        axes.set_ylim(0, len(sizes))
        axes.set_xticks([i + 0.5 for i in ticks], [rate_words(1e6 * rates[i]) for i in ticks])
        axes.set_yticks([j + 0.5 for j in range(len(sizes))], [f"{size:g}" for size in sizes])
        axes.set_xlabel("each worker's link")
        axes.set_ylabel("workers")
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        figure.tight_layout()
        return svg_file(figure)


def _tile(i: int, j: int, shade: str, opacity: float) -> Rectangle:
    return Rectangle((i, j), 1, 1, facecolor=shade, edgecolor="none", alpha=opacity, antialiased=False)


def _shades(names: Sequence[str]) -> list[tuple[str, float]]:
    """The family's colour, which dark pages replace, and how opaque; a little more for each further method of a family."""
    seen: dict[str, int] = {}
    found: list[tuple[str, float]] = []
    for name in names:
        family = "baseline" if name.startswith("all-reduce") else _family(name.partition(",")[0])
        seen[family] = seen.get(family, 0) + 1
        found.append((colour(family), min(0.75, 0.2 + 0.16 * seen[family])))
    return found


def warm_up_map(rows: Sequence[Row]) -> str:
    """SVG: speedup of a training with a warm-up, over its length, a line a bandwidth; the cap 1 / T_w in grey."""
    with look():
        figure, (axes,) = new_figure(_WIDTH, 3.4)
        axes.set_yscale("log")
        shares = sorted({number(row, "warm_up") for row in rows})
        caps = [(share, 1 / share) for share in shares if share]
        axes.plot(*zip(*caps, strict=True), color=COLOURS["muted"], linewidth=0.8, linestyle=(0, (4, 3)))
        axes.annotate(
            "1 / T_w", caps[1], xytext=(4, 2), textcoords="offset points", fontsize=7, color=COLOURS["muted"]
        )
        axes.axhline(1.0, color=COLOURS["muted"], linewidth=0.8)
        predicted = [row for row in rows if row["source"] == PREDICTED]
        rates = sorted({number(row, "rate_mbit") for row in predicted})
        labels: list[Label] = []
        for rate in [rates[i] for i in range(0, len(rates), 4)]:
            line = sorted(
                (number(r, "warm_up"), number(r, "speedup"))
                for r in predicted
                if number(r, "rate_mbit") == rate
            )
            axes.plot(*zip(*line, strict=True), color=colour("adam"), linewidth=1.0)
            labels.append((rate_words(1e6 * float(f"{rate:.2g}")), *line[0], colour("adam")))
        _beside(axes, labels)
        for row in rows:
            if row["source"] != PREDICTED:
                axes.plot(
                    number(row, "warm_up"), number(row, "speedup"), mark("adam"), color=colour("adam"), markersize=3.5,
                    markeredgewidth=0,
                )  # fmt: skip
        axes.set_xlim(-0.09, max(shares) + 0.01)
        axes.set_ylim(0.6, 24)
        _factors(axes)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
        axes.xaxis.set_major_locator(
            FixedLocator([share for share in shares if round(100 * share) % 10 == 0])
        )
        axes.set_xlabel("T_w: warm-up, share of the steps")
        axes.set_ylabel("speedup of the training over fp32 DDP")
        bare(axes, "y")
        figure.tight_layout()
        return svg_file(figure)


DRAWN: Final[Mapping[str, Callable[[Sequence[Row]], str]]] = {
    SPEEDUPS.suffix: speedup_lines,
    BEST.suffix: best_map,
    WARM_UP.suffix: warm_up_map,
}
"""Table -> what draws it."""
_LINE_HEIGHT: Final = 0.2
"""Inches a line."""
_RHO_ENDS: Final = (0.1, 40.0)


def rho_axis(places: Sequence[Placed]) -> str:
    """SVG: a line a setting, the largest rho above. Where rho is a lower bound the mark points to the right."""
    with look():
        figure, (axes,) = new_figure(_WIDTH, 0.7 + _LINE_HEIGHT * len(places))
        axes.set_xscale("log")
        axes.axvline(1.0, color=COLOURS["muted"], linewidth=0.8)
        for height, one in enumerate(reversed(places)):
            ink = COLOURS["quantiser" if one.session else "sign"]
            axes.plot(
                one.rho, height, ">" if one.least else "o", color=ink, markersize=4.5, markeredgewidth=0
            )
        axes.set_xlim(*_RHO_ENDS)
        axes.set_ylim(-0.7, len(places) - 0.3)
        axes.set_yticks(
            range(len(places)), [f"{one.paper}: {one.setting}" for one in reversed(places)], fontsize=6.5
        )
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(FixedLocator([0.1, 0.3, 1, 3, 10, 30]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("rho: uncompressed communication over computing")
        bare(axes, "x")
        figure.tight_layout()
        return svg_file(figure)


TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    SPEEDUPS.suffix: (
        "Where each method pays",
        "Lines are predicted, marks measured, with 95 % intervals: a byte GPT of 3.3 M parameters, four workers on two cores. "
        "Above 1× a step is shorter than that of the fastest uncompressed DDP.",
    ),
    WARM_UP.suffix: (
        "What a warm-up costs",
        "APMSqueeze's whole training over fp32 DDP, by the share of its steps that are uncompressed; lines are predicted, "
        "marks put together from measured steps. Dashed: 1 / T_w.",
    ),
    BEST.suffix: (
        "The shortest predicted step",
        "A model of 110 M parameters that computes 180 ms a step, on machines of their own; among methods that no study here "
        "calls unequal. Nothing in it was measured at this scale; codecs are those of one processor thread.",
    ),
}
"""Table -> heading and note of its picture."""


def costs_parts(costs: Costs) -> dict[str, Any] | None:
    """Pictures with their notes, and the score in sentences; None where there is no score."""
    if SCORE.suffix not in costs.tables:
        return None
    return {
        "pictures": [
            {
                "heading": heading,
                "note": note,
                "figure": inline(DRAWN[suffix](costs.tables[suffix]), f"c-{suffix}", heading),
            }
            for suffix, (heading, note) in TEXTS.items()
            if suffix in costs.tables
        ],
        "score": [
            f"{row['left_out']}: median {number(row, 'median_error'):.1%}, worst {number(row, 'worst_error'):.1%}, "
            f"{row['n']} steps"
            for row in costs.tables[SCORE.suffix]
            if row["value"] == ALL
        ],
    }


def pictures(results_root: Path, placed: Sequence[Placed]) -> dict[str, str]:
    """File name -> SVG, of the tables that are there, and of settings on the axis of rho."""
    found = {table: rows_of(results_root, table) for table in (SPEEDUPS, BEST, WARM_UP)}
    drawn = {f"{table.suffix}.svg": DRAWN[table.suffix](rows) for table, rows in found.items() if rows}
    return {**drawn, "costs-rho.svg": rho_axis(placed)}
