"""The page of published measurements: predicted against published, how good each predictor is, and where and why it fails.

Everything is worked out of the tables `external` and `external-score` and of the files of points themselves, so that a point that
somebody adds is on the page when the tables are made anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from report.drawing.scales import bare, look, new_figure
from report.drawing.svg import gid, inline, svg_file
from report.drawing.table import Cell, Column, Line, Row, View, count_cell, percent_cell, text_cell, time_cell
from report.drawing.theme import COLOURS
from report.rendering import ALONE, Links, ReportError, write_page
from suite.analysis.document import rows_of
from suite.analysis.published import origin_words
from suite.costs.columns import EXTERNAL, EXTERNAL_SCORE
from suite.costs.external import ALL_SOURCES, BEATS, MODELS, RULES, SHORT, Source, read_rules
from suite.costs.facts import read_facts
from suite.runs.documents import YamlError, YamlFile

MEDIAN: Final = 0.10
NEAR: Final = 0.90
"""The bar: median error, and share of points within the rules' distance, for open and held-back points alike."""
FOLDER: Final = Path(__file__).resolve().parents[2] / "results" / "external"
INKS: Final = ("quantiser", "sign", "adam", "sparsifier", "variance-reduction", "synchronisation", "control")
SIDES: Final = {False: "open", True: "held back"}


@dataclass(frozen=True)
class Literature:
    """Points, the score of the rules and points that they were predicted by, what sources say, and how near is good."""

    points: Sequence[Row]
    score: Sequence[Row]
    sources: Mapping[str, Source]
    within: float
    version: int

    @property
    def scored(self) -> list[Row]:
        """Points that are no anchors."""
        return [row for row in self.points if not row["anchor"]]

    def of(self, source: str, held: bool, by: str) -> Row:
        """A line of the score."""
        return next(
            row
            for row in self.score
            if (row["source"], row["held_back"], row["predictor"]) == (source, held, by)
        )


def load_literature(results_root: Path) -> Literature:
    """From the tables. Raises ReportError where they were not made, or files of points cannot be read."""
    points, score, facts = (
        rows_of(results_root, EXTERNAL), rows_of(results_root, EXTERNAL_SCORE), read_facts(results_root, EXTERNAL),
    )  # fmt: skip
    if points is None or score is None or facts is None:
        raise ReportError("published measurements were not predicted here: run `bandwise costs external`")
    now = [row for row in score if (row["rules"], row["inputs"]) == (facts["rules"], facts["inputs"])]
    names = {row["source"] for row in points}
    try:
        sources = {
            path.stem: YamlFile.load(path).read(Source)
            for path in sorted(FOLDER.glob("*.yaml"))
            if path.name != RULES and path.stem in names
        }
        rules, _ = read_rules(FOLDER)
    except YamlError as error:
        raise ReportError(str(error)) from error
    return Literature(points, now, sources, rules.within, int(facts["version"]))


def error_of(row: Row, by: str) -> float:
    """Absolute relative error of a predictor."""
    return abs(float(row[f"{SHORT[by]}_ratio"]) - 1)


def scatter(data: Literature) -> str:
    """SVG: predicted over published seconds a step, a panel a predictor, a mark a point, by source; held-back points hollow."""
    names = sorted({row["source"] for row in data.scored})
    inks = dict(zip(names, INKS * (len(names) // len(INKS) + 1), strict=False))
    took = [row["published_s"] for row in data.scored]
    ends = min(took) / 3, max(took) * 3
    with look():
        figure, panels = new_figure(11, 4.1, columns=len(MODELS))
        for number, (axes, by) in enumerate(zip(panels, MODELS, strict=True)):
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.plot(ends, ends, color=COLOURS["muted"], linewidth=0.8)
            for factor in (1 + data.within, 1 - data.within):
                axes.plot(
                    ends, [factor * end for end in ends], color=COLOURS["rule"], linewidth=0.8, linestyle=(0, (4, 3))
                )  # fmt: skip
            for index, row in enumerate(data.scored):
                ink = COLOURS[inks[row["source"]]]
                at = max(row[f"{SHORT[by]}_s"], ends[0])
                (drawn,) = axes.plot(
                    row["published_s"], at, "s" if row["contradiction"] else "o", markersize=4.2, markeredgewidth=0.9,
                    markeredgecolor=ink, markerfacecolor="none" if row["held_back"] else ink,
                )  # fmt: skip
                drawn.set_gid(gid(number * len(data.scored) + index))
            axes.set_xlim(*ends)
            axes.set_ylim(*ends)
            axes.set_title(by)
            axes.set_xlabel("published, seconds a step")
            bare(axes, "y")
        panels[0].set_ylabel("predicted, seconds a step")
        for place, name in enumerate(names):
            panels[0].annotate(
                name, (0.04, 0.96 - 0.06 * place), xycoords="axes fraction", va="top", fontsize=7, color=COLOURS[inks[name]]
            )  # fmt: skip
        figure.tight_layout()
        return svg_file(figure)


def titles(data: Literature) -> dict[str, str]:
    """Hover texts of the marks."""
    return {
        gid(
            number * len(data.scored) + index
        ): f"{row['source']}/{row['point']} ({SIDES[row['held_back']]}): published "
        f"{row['published_s']:.3g} s, {by} {row[f'{SHORT[by]}_s']:.3g} s"
        for number, by in enumerate(MODELS)
        for index, row in enumerate(data.scored)
    }


def score_view(data: Literature) -> View:
    """A line a source and side: every predictor's median error and share of good predictions."""
    each = [
        Column(f"{SHORT[by]}-{key}", f"{by}: {words}", about, numeric=True)
        for by in MODELS
        for key, words, about in (
            ("median", "median", "Absolute error over published seconds, median."),
            ("within", f"within {data.within:.0%}", "Share of points that are not farther off."),
            (
                "exposed",
                "exposed",
                "Median error of the exposed communication alone, where it is a part that counts.",
            ),
            ("near", "near signs", "Speedups within 0.67 to 1.5x whose sign is right."),
        )
    ]
    sides = sorted({(row["source"] == ALL_SOURCES, row["source"], row["held_back"]) for row in data.score})
    lines = []
    for _, source, held in sides:
        cells = {
            "source": text_cell("all sources" if source == ALL_SOURCES else source),
            "side": text_cell(SIDES[held]),
            "n": count_cell(data.of(source, held, MODELS[0])["n"]),
        }
        for by in MODELS:
            row = data.of(source, held, by)
            cells |= {
                f"{SHORT[by]}-median": percent_cell(row["median_error"]),
                f"{SHORT[by]}-within": percent_cell(row["within"]),
                f"{SHORT[by]}-exposed": percent_cell(row["exposed_error"]),
                f"{SHORT[by]}-near": Cell(f"{row['near_right']} of {row['n_near']}", row["near_right"]),
            }
        lines.append(Line(cells))
    columns = (
        Column("source", "source"),
        Column("side", "points", "Which are held back is decided by the hash of their names."),
        Column("n", "n", numeric=True),
        *each,
    )
    return View("score", "Score of published measurements", columns, tuple(lines))


def places_view(data: Literature) -> View:
    """Where the model fails: by source, transport, overlap and method, the farthest first."""
    places: dict[tuple[Any, ...], list[Row]] = {}
    for row in data.scored:
        places.setdefault((row["source"], row["stack"], row["overlap"], row["method"]), []).append(row)
    lines = [
        Line({
            "source": text_cell(source), "method": text_cell(method), "stack": text_cell(stack),
            "overlap": text_cell("yes" if overlap else "no"), "n": count_cell(len(rows)),
            "far": count_cell(sum(error_of(row, MODELS[0]) > data.within for row in rows)),
            **{
                SHORT[by]: Cell(f"{one:.2f}×", one)
                for by in MODELS
                for one in [median(row[f"{SHORT[by]}_ratio"] for row in rows)]
            },
        })
        for (source, stack, overlap, method), rows in sorted(
            places.items(),
            key=lambda item: -abs(median(row["model_ratio"] for row in item[1]) - 1),
        )
    ]  # fmt: skip
    columns = (
        Column("source", "source"), Column("method", "method"), Column("stack", "transport"),
        Column("overlap", "overlap", "Whether the rules take communication to go on while a step computes."),
        Column("n", "points", numeric=True),
        Column("far", f"farther than {data.within:.0%}", "By the model.", numeric=True),
        *(Column(SHORT[by], f"{by} over published", "Median of the points.", numeric=True) for by in MODELS),
    )  # fmt: skip
    return View("places", "Where predictions fail", columns, tuple(lines))


def odd_view(data: Literature) -> View:
    """Rows that contradict physics, with what must leave a node and what that can mean."""
    lines = [
        Line({
            "point": text_cell(f"{row['source']}/{row['point']}"), "published": time_cell(row["published_s"]),
            "least": time_cell(row["least_s"]), "what": text_cell(row["contradiction"]), "inferred": text_cell(_inference(row)),
        })
        for row in data.points
        if row["contradiction"]
    ]  # fmt: skip
    columns = (
        Column("point", "point"), Column("published", "published", numeric=True),
        Column("least", "the wire's limit", "Bytes that must leave a node over the nominal rate.", numeric=True),
        Column("what", "contradiction"), Column("inferred", "inference"),
    )  # fmt: skip
    return View("odd", "Rows against physics", columns, tuple(lines))


def _inference(row: Row) -> str:
    """What a contradiction says; that it is no measurement is part of it."""
    if BEATS in row["contradiction"]:
        share = row["published_s"] / row["least_s"]
        return (
            f"Inferred: {share:.0%} of the wire's limit, so that fewer bytes went out a step, or the row counts smaller steps, "
            "than is assumed. The source does not say which."
        )
    return (
        "Inferred: rows at different rates count different steps (a smaller batch, say), or the slower link was not the one that "
        "held. The source does not say which."
    )


def findings(data: Literature) -> list[str]:
    """What a reader should know first: how good, by how much the bar is missed, and what is missing."""
    found = []
    for held, words in SIDES.items():
        row = data.of(ALL_SOURCES, held, MODELS[0])
        others = "; ".join(
            f"{by} {one['median_error']:.1%} and {one['within']:.0%}"
            for by in MODELS[1:]
            for one in [data.of(ALL_SOURCES, held, by)]
        )
        found.append(
            f"{row['n']} {words} points: median error {row['median_error']:.1%}, {row['within']:.0%} within {data.within:.0%} "
            f"({others})."
        )
    found.append(_missed(data))
    found.append(_needed(data))
    return found


def _missed(data: Literature) -> str:
    parts = []
    for held, words in SIDES.items():
        row = data.of(ALL_SOURCES, held, MODELS[0])
        above = row["median_error"] - MEDIAN
        lacking = max(0, -int(-(NEAR * row["n"]) // 1) - round(row["within"] * row["n"]))
        median_words = f"the median by {100 * above:.1f} points" if above > 0 else "not by the median"
        near_words = (
            f"{lacking} more points would have to be within {data.within:.0%}"
            if lacking
            else "the share is reached"
        )
        parts.append(f"{words}: {median_words}, and {near_words}")
    return f"The bar is a median of {MEDIAN:.0%} and {NEAR:.0%} of points within {data.within:.0%}. {'. '.join(parts)}."


def _needed(data: Literature) -> str:
    """Which sources keep the score from the bar: those without which the rest comes nearest to it."""
    far = {
        name: (
            sum(error_of(row, MODELS[0]) > data.within for row in data.scored if row["source"] == name),
            sum(row["source"] == name for row in data.scored),
        )
        for name in sorted({row["source"] for row in data.scored})
    }
    ranked = sorted(far.items(), key=lambda item: -item[1][0])
    told = ", ".join(f"{name} {count} of {of}" for name, (count, of) in ranked if count)
    unsaid = sum(row["computing_s"] is None for row in data.scored)
    return (
        f"What is farther off: {told}. To meet the bar, these would have to be predicted: constants of their own transports and "
        f"codecs, measured where the points were (the rules take one set for each class), and the computing of {unsaid} points "
        "that their sources do not state and an anchor stands in for."
    )


def build_literature_page(
    results_root: Path, out: Path | None = None, links: Links = ALONE
) -> tuple[Path, list[str]]:
    """The page, by default <root>/reports/literature.html, and its findings in sentences.

    Raises ReportError where the tables were not made, TableError for a damaged one.
    """
    data = load_literature(results_root)
    parts = {
        "figure": inline(
            scatter(data), "literature", "Predicted over published seconds a step", titles(data)
        ),
        "score": score_view(data),
        "places": places_view(data),
        "odd": odd_view(data),
        "within": data.within,
        "version": data.version,
        "sources": [
            {"name": name, "title": one.title, "where": one.where, "assumed": list(one.assumed)}
            for name, one in data.sources.items()
        ],
        "origin": origin_words(results_root, (EXTERNAL, EXTERNAL_SCORE)),
    }
    return write_page(
        out if out is not None else results_root / "reports" / "literature.html",
        "literature_page.html.j2",
        findings(data),
        [(EXTERNAL, data.points), (EXTERNAL_SCORE, data.score)],
        parts,
        links,
    )
