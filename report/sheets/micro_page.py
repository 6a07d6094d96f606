"""The page of the building blocks: asv's values over the last commits, and what changed since the commit before."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.sparkline import sparkline
from report.drawing.table import Cell, Column, Line, View
from report.links import ALONE, Links
from report.rendering import slug
from report.sheets.micro_data import BETTER, COMMITS, ONLY, STEADY, WORDS, WORSE, Series, load_series
from report.sheets.sheet import write_sheet
from suite.analysis.columns import MICRO
from suite.analysis.published import origin_words, source
from suite.analysis.tables import Row

FEW: Final = 100
"""Series up to which all benchmarks are open at first."""
CSS: Final = MappingProxyType({WORSE: "no", BETTER: "yes", STEADY: "quiet", ONLY: "quiet"})
COLUMNS: Final = (
    Column("params", "parameters", "As asv prints them."),
    Column("value", "value", "Median at the newest commit, asv's 99 % interval where it was timed; lower is better.", True, True),
    Column("course", f"last {COMMITS} commits", "Oldest to newest, from the least to the largest value of the row."),
    Column("word", "since the commit before", "Told where each value lies outside of the other's interval."),
    Column("ratio", "times", "The newest value over that of the commit before.", True),
    Column("n", "commits", "Measured, of those shown.", True),
    Column("commit", "commit", "The newest."),
    Column("before", "before", "The commit that it is held against.", hidden=True),
    Column("machine", "machine"),
)  # fmt: skip


def build_micro_page(
    results_root: Path, out: Path | None = None, links: Links = ALONE
) -> tuple[Path, list[str]]:
    """The page, by default <root>/reports/micro.html, and its findings in sentences.

    Raises ReportError where asv has left nothing, TableError for a damaged table.
    """
    series = load_series(results_root)
    path = out if out is not None else results_root / "reports" / "micro.html"
    groups = [_group(name, list(own), len(series)) for name, own in itertools.groupby(series, key=_benchmark)]
    return write_sheet(
        path,
        "micro_page.html.j2",
        findings(series),
        [(MICRO, [row for one in series for row in one.rows])],
        {
            "groups": groups,
            "site": asv_site(results_root, path),
            "commits": COMMITS,
            "origin": ". ".join(
                filter(
                    None, [origin_words(results_root, (MICRO,)), source(results_root, MICRO.suffix).not_shown]
                )
            ),
        },
        links,
    )


def findings(series: Sequence[Series]) -> list[str]:
    """What a reader should know first: how much was measured, and what changed on each machine's newest commit."""
    commits = {str(row["commit"]) for one in series for row in one.rows}
    failed = sum(one.last["status"] == "failed" for one in series)
    found = [
        f"{len(series)} values of {len({_benchmark(one) for one in series})} benchmarks over "
        f"{len(commits)} commit{'' if len(commits) == 1 else 's'}; {failed} failed at the newest."
    ]
    words = Counter(one.word for one in series)
    held = len(series) - words[ONLY]
    if not held:
        return [
            *found,
            "Only one commit was measured, so nothing can be compared: asv run of another one adds it.",
        ]
    changed = sorted(
        (one for one in series if one.word in (WORSE, BETTER)), key=lambda one: -(one.ratio or 0.0)
    )
    found.append(
        f"Of {held} held against the commit before, outside both 99 % intervals: {words[WORSE]} worse, "
        f"{words[BETTER]} better; the others cannot be told apart. asv's values are seconds, bytes or errors: lower is better."
    )
    worst = [
        f"{_benchmark(one)}({one.last['params'] or ''}) {write.ratio(one.ratio)}"
        for one in changed[:3]
        if one.word == WORSE
    ]
    return found + ([f"Worse by most: {'; '.join(worst)}."] if worst else [])


def asv_site(results_root: Path, page: Path) -> str:
    """The way from the page to asv's own site, where `asv publish` has built it beside the results; else nothing."""
    settings = results_root.parent / "asv.conf.json"
    if not settings.is_file():
        return ""
    folder = json.loads(settings.read_text(encoding="utf-8")).get("html_dir", "html")
    site = results_root.parent / folder / "index.html"
    return Path(os.path.relpath(site, page.parent)).as_posix() if site.is_file() else ""


def _benchmark(series: Series) -> str:
    return str(series.last["benchmark"])


def _group(name: str, own: Sequence[Series], every: int) -> dict[str, Any]:
    words = Counter(one.word for one in own)
    told = [f"{words[word]} {word}" for word in (WORSE, BETTER) if words[word]]
    ordered = sorted(own, key=lambda one: WORDS.index(one.word))
    lines = tuple(Line(_cells(one), one.word.replace(" ", "-")) for one in ordered)
    chips = tuple((word.replace(" ", "-"), word) for word in WORDS if words[word])
    return {
        "name": name,
        "count": f"{len(own)} value{'' if len(own) == 1 else 's'}{', ' if told else ''}{', '.join(told)}",
        "open": every <= FEW or bool(told),
        "table": View(f"micro-{slug(name)}", name, COLUMNS, lines, chips, "Changes shown"),
    }


def _cells(one: Series) -> dict[str, Cell]:
    row, before, ratio = one.last, one.before, one.ratio
    unit = None if row["unit"] is None else str(row["unit"])
    values = [number(own["value"]) for own in one.rows]
    said = ", ".join(f"{_value(own, unit)} at {own['commit']}" for own in one.rows)
    done = row["status"] == "done"
    params = str(row["params"] or "none")
    return {
        "params": Cell(params, params, css="arm"),
        "value": _newest(row, unit),
        "course": Cell("", " ".join("" if v is None else f"{v:.9g}" for v in values), picture=sparkline(values, said)),
        "word": Cell(one.word if done else str(row["status"]), one.word, css=CSS[one.word] if done else "no"),
        "ratio": Cell(write.ratio(ratio) if one.word in (WORSE, BETTER) else write.MISSING, ratio),
        "n": Cell(str(sum(v is not None for v in values)), sum(v is not None for v in values)),
        "commit": Cell(str(row["commit"]), str(row["commit"]), str(row["committed"])[:10], css="code"),
        "before": Cell(write.MISSING if before is None else str(before["commit"]), css="code"),
        "machine": Cell(str(row["machine"]), str(row["machine"])),
    }  # fmt: skip


def _value(row: Row, unit: str | None) -> str:
    return write.quantity(number(row["value"]), unit) if row["status"] == "done" else str(row["status"])


def _newest(row: Row, unit: str | None) -> Cell:
    low, high = number(row["ci_low"]), number(row["ci_high"])
    known = low is not None and high is not None
    note = f"[{write.quantity(low, unit)}, {write.quantity(high, unit)}]" if known else ""
    return Cell(_value(row, unit), number(row["value"]), note, (low, high))
