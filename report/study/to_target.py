"""The part of the page that says how soon, and with how few bytes, methods reach the target of their cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.svg import inline, svg_file
from report.drawing.table import Cell, Column, Line, View
from report.drawing.theme import FAMILIES
from report.study.curves import family_curves, hover
from report.study.curves_data import Curve
from report.study.data import Panel, StudyData
from report.study.target_seconds import seconds_views
from report.study.view import METRICS
from suite.analysis.columns import TO_TARGET
from suite.analysis.tables import Row

ORDER = "95 % order-statistic interval over seeds; a seed that never got there counts as infinite."
PAIRED = f"Of the uncompressed run of the same optimizer over those of the method, paired by seed. {ORDER}"


def to_target_parts(study: StudyData, found: Mapping[str, dict[str, Curve]]) -> dict[str, Any]:
    """What the template needs: a part a panel, or why there is none in words. found: curves by slug of panel and arm."""
    rows = study.rows(TO_TARGET)
    parts = [part for p in study.panels if (part := _part(p, study, rows, found[p.slug])) is not None]
    return {"panels": parts, "command": study.facts["command"], "schedules": _schedules(parts)}


def _part(
    panel: Panel, study: StudyData, rows: Sequence[Row], found: dict[str, Curve]
) -> dict[str, Any] | None:
    key = (panel.workload, panel.sharding, panel.world_size)
    own = [row for row in rows if (row["workload"], row["sharding"], row["world_size"]) == key]
    if not own:
        return None
    drawn = [str(row["arm"]) for row in own if str(row["arm"]) in found]
    return {
        "panel": panel,
        "slug": panel.slug,
        "sentence": _sentence(panel, own),
        "pictures": _pictures(panel, own, found),
        "absent": [str(row["arm"]) for row in own if str(row["arm"]) not in drawn],
        "view": to_target_view(panel, own),
        "seconds": seconds_views(panel, own, study),
    }


def _schedules(parts: Sequence[dict[str, Any]]) -> list[str]:
    """The schedules that lower the rate by the budget."""
    return sorted({str(part["panel"].facts["schedule"]) for part in parts} - {"constant"})


def _sentence(panel: Panel, rows: Sequence[Row]) -> str:
    """The target in words: what it is, who set it, how finely it is watched for."""
    reference, target = str(rows[0]["reference"]), number(rows[0]["target"])
    gaps = [int(number(row["resolution"]) or 0) for row in rows if row["resolution"] is not None]
    ended = next(row for row in panel.summary if row["arm"] == reference)
    unit = f" {panel.unit}" if panel.unit else ""
    metric = METRICS.get(str(panel.facts["metric"]), str(panel.facts["metric"]))
    words = "at least" if panel.facts["direction"] == "higher" else "at most"
    return (
        f"Target: {metric} of {words} {write.plain(target, panel.digits)}, which is what {reference} ends at (median of "
        f"{ended['n_done']} finished seeds), given way by the margin of {panel.margin:g}{unit}. Evaluated at least every "
        f"{max(gaps, default=0)} steps of {panel.facts['steps']}."
    )


def _pictures(panel: Panel, rows: Sequence[Row], found: dict[str, Curve]) -> list[dict[str, str]]:
    """One picture a family that has something to draw, controls last."""
    target, baseline = number(rows[0]["target"]) or 0.0, {str(row["arm"]): row["baseline"] for row in rows}
    metric = str(panel.facts["metric"]).replace("_", " ")
    families = list(dict.fromkeys(curve.family for curve in found.values() if curve.family != "baseline"))
    pictures = []
    for family in sorted(
        families, key=lambda one: (list(FAMILIES).index(one) if one in FAMILIES else 99, one)
    ):
        own = sorted(
            (c for c in found.values() if c.family == family and baseline[c.arm]), key=lambda c: c.arm
        )
        wanted = sorted({str(baseline[curve.arm]) for curve in own} & found.keys())
        lines = [*own, *(found[arm] for arm in wanted)]
        if not own:
            continue
        figure = family_curves(panel, own, [found[arm] for arm in wanted], list(found.values()), target)
        words = FAMILIES.get(family, family)
        place = f"{words}, {panel.workload}, {panel.title}"
        label = f"{place}: {metric} less the target against bytes and against steps; the table has the times"
        pictures.append(
            {
                "title": f"{words[0].upper()}{words[1:]}: {metric} by bytes and by steps",
                "counts": _counts(own),
                "svg": inline(
                    svg_file(figure), f"c-{panel.slug}-{family}", label, hover(panel, lines, target)
                ),
            }
        )
    return pictures


def _counts(own: Sequence[Curve]) -> str:
    counts = sorted({curve.n for curve in own})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def _time(value: float | None, text: str) -> str:
    return write.MISSING if value is None else "never" if math.isinf(value) else text


def _steps(value: float | None) -> str:
    return _time(value, "" if value is None else f"{value:g}")


def _sent(value: float | None) -> str:
    return _time(value, write.byte_count(value))


def _times(value: float | None) -> str:
    return "never" if value == 0 else write.ratio(value)


def _spread(row: Row, name: str, text: Any) -> Cell:
    """A median with its interval, either of which may be never."""
    value, ends = number(row[name]), (number(row[f"{name}_low"]), number(row[f"{name}_high"]))
    note = "" if None in ends else f"[{text(ends[0])}, {text(ends[1])}]"
    return Cell(text(value), value, note, ends)


def to_target_view(panel: Panel, rows: Sequence[Row]) -> View:
    """Every arm of a panel: who reached the target, after how many steps and bytes; the soonest first."""
    columns = (
        Column("method", "method", "The sweep's label of a method with its options."),
        Column("reached", "reached", "Seeds that had the target at an evaluation, of those that finished or diverged.", True),
        Column("steps", "steps", f"To the first evaluation at the target, median over all seeds. {ORDER}", True, True),
        Column("fewer", "fewer steps", PAIRED, True, True),
        Column("bytes", "bytes", f"Sent on the wire until then, mean over ranks, median over all seeds. {ORDER}", True, True),
        Column("ratio", "fewer bytes", PAIRED, True, True),
        Column("diverged", "diverged", "Seeds that diverged: they count as never.", True),
        Column("pairs", "pairs", "Seeds with which the method or its baseline had the target: the n of the ratios.", True),
        Column("baseline", "baseline", "The uncompressed run of the same optimizer.", hidden=True),
        Column("family", "family", "What kind of method it is.", hidden=True),
    )  # fmt: skip
    lines = []
    for row in sorted(
        rows, key=lambda row: (_place(row, "steps"), _place(row, "wire_bytes"), str(row["arm"]))
    ):
        n, reached = int(number(row["n"]) or 0), int(number(row["n_reached"]) or 0)
        lost = int(number(row["n_diverged"]) or 0)
        family = "control" if row["control"] else str(row["family"])
        cells = {
            "method": Cell(str(row["arm"]), str(row["arm"]), css="arm"),
            "reached": Cell(write.share(reached, n), reached, css="" if reached == n else "no"),
            "steps": _spread(row, "steps", _steps),
            "fewer": _spread(row, "steps_ratio", _times),
            "bytes": _spread(row, "wire_bytes", _sent),
            "ratio": _spread(row, "bytes_ratio", _times),
            "diverged": Cell(str(lost), lost, css="no" if lost else ""),
            "pairs": Cell(str(row["n_pairs"] if row["baseline"] else write.MISSING), row["n_pairs"]),
            "baseline": Cell(str(row["baseline"] or write.MISSING), row["baseline"]),
            "family": Cell(FAMILIES.get(family, family), family),
        }
        lines.append(Line(cells, family))
    seen = {line.family for line in lines}
    chips = tuple((name, words) for name, words in FAMILIES.items() if name in seen)
    caption = f"To the target, {panel.workload}, {panel.title}"
    return View(f"{panel.slug}-to-target", caption, columns, tuple(lines), chips)


def _place(row: Row, name: str) -> float:
    value = number(row[name])
    return math.inf if value is None else value
