"""The page of scaling and break-even bandwidths: where a method pays, and what further workers cost it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from report.drawing.methods import family
from report.drawing.svg import inline, svg_file
from report.links import ALONE, Links
from report.rendering import slug
from report.sheets.scaling_data import Curve, ScalingData, Setting, load_scaling
from report.sheets.scaling_figures import break_even_lines, break_even_text, strong_lines, weak_panels
from report.sheets.scaling_view import band_text, check_view, even_view, weak_view
from report.sheets.sheet import write_sheet
from suite.analysis.published import origin_words
from suite.analysis.tables import Row, number
from suite.costs.break_even import AGREES, BREAK_EVEN, BREAK_EVEN_CHECKS, UNDECIDED, measured_once
from suite.costs.scaling import SCALING

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
        "settings": [_setting(one) for one in data.settings],
        "even": even_view(data),
        "checks": check_view(data),
        "curves": [_curve(one) for one in data.curves],
        "weak": weak_view(data),
        "alone": data.alone,
        "origin": origin_words(results_root, (SCALING, BREAK_EVEN, BREAK_EVEN_CHECKS)),
    }
    return write_sheet(
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
    never = ", ".join(str(row["method"]) for row in able if not row["wins"])
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


def _setting(one: Setting) -> dict[str, Any]:
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


def _curve(one: Curve) -> dict[str, Any]:
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
