"""The page of rate and distortion: what a mean over workers costs in bits and loses in precision, by quantiser."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from report.drawing import numbers as write
from report.drawing.methods import family
from report.drawing.svg import inline, svg_file
from report.drawing.table import Cell, Column, Line, View
from report.drawing.theme import FAMILIES, SHAPES
from report.links import ALONE, Links
from report.rendering import slug
from report.sheets.distortion_data import COMMAND, Source, bound_of, load_sources
from report.sheets.distortion_figures import hover, interval_text, panel
from report.sheets.sheet import write_sheet
from suite.analysis.published import origin_words
from suite.analysis.tables import Row, number
from suite.studies.rate_distortion import RATE_DISTORTION

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
    return write_sheet(
        out if out is not None else results_root / "reports" / "rate-distortion.html",
        "distortion_page.html.j2",
        findings(sources),
        [(RATE_DISTORTION, rows)],
        parts,
        links,
    )


def findings(sources: Sequence[Source]) -> list[str]:
    """What a reader should know first."""
    often = Counter(str(row["quantiser"]) for source in sources for row in source.front)
    ranked = sorted(often.items(), key=lambda item: (-item[1], item[0]))
    seeds = sorted({int(number(row, "n")) for source in sources for row in source.rows})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    named = ", ".join(f"{name} ({share})" for name, share in ranked)
    found = [
        f"On the front of bits and error (of {len(sources)} panels, {count} seeds each, by the estimates): {named}."
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
    seen = {line.family for line in lines}
    chips = tuple((name, words) for name, words in FAMILIES.items() if name in seen)
    return View("rates", "Rate and distortion", COLUMNS, tuple(lines), chips)


def _cells(row: Row, best: bool) -> dict[str, Cell]:
    bound = bound_of(row)
    words = "yes" if row["unbiased"] else "no"
    return {
        "quantiser": _text(row["quantiser"], "arm"),
        "workload": _text(row["workload"]),
        "stage": _text(row["stage"]),
        "workers": Cell(str(row["world_size"]), number(row, "world_size")),
        "bits": Cell(f"{number(row, 'wire_bits'):.3g}", number(row, "wire_bits")),
        "error": _spread(row, "error"),
        "n": Cell(str(row["n"]), number(row, "n")),
        "unbiased": Cell(words, words),
        "front": Cell("front" if best else "", "front" if best else "", css="yes"),
        "theta": _spread(row, "theta"),
        "bound": Cell(write.MISSING if bound is None else f"{bound:.3g}", bound),
        "algorithm": _text(row["algorithm"]),
    }


def _text(value: object, css: str = "") -> Cell:
    return Cell(str(value), str(value), css=css)


def _spread(row: Row, name: str) -> Cell:
    ends = number(row, f"{name}_low"), number(row, f"{name}_high")
    return Cell(f"{number(row, name):.3g}", number(row, name), interval_text(row, name), ends)
