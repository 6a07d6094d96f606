"""The building blocks: asv's values over the last commits, what changed since, and their table for a study's page."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.table import Cell, Column, Line, Row, View
from report.rendering import ALONE, Links, ReportError, slug, write_page
from suite.analysis.columns import MICRO
from suite.analysis.published import find_table, origin_words, source
from suite.analysis.tables import read_table

COMMITS: Final = 20
"""How many commits of a series are shown, the newest."""
WORSE, BETTER, STEADY, ONLY = "worse", "better", "steady", "only one"
"""What became of a value since the commit before, in the order in which lines stand. asv's values are the better the lower."""
WORDS: Final = (WORSE, BETTER, STEADY, ONLY)


@dataclass(frozen=True)
class Series:
    """The rows of one benchmark with its parameters on one machine and environment, the oldest commit first."""

    rows: tuple[Row, ...]

    @property
    def last(self) -> Row:
        """The newest commit's."""
        return self.rows[-1]

    @property
    def before(self) -> Row | None:
        """That of the commit before; None where there is none, or either has no value."""
        if len(self.rows) < 2 or self.last["value"] is None:
            return None
        return self.rows[-2] if self.rows[-2]["value"] is not None else None

    @property
    def word(self) -> str:
        """Changed where each value lies outside of the other's interval; a value without one is its own interval."""
        before = self.before
        if before is None:
            return ONLY
        now, then = number(self.last["value"]) or 0.0, number(before["value"]) or 0.0
        if _inside(now, before) or _inside(then, self.last):
            return STEADY
        return WORSE if now > then else BETTER

    @property
    def ratio(self) -> float | None:
        """The newest value over that of the commit before."""
        before = self.before
        then = None if before is None else number(before["value"])
        return (number(self.last["value"]) or 0.0) / then if then else None


def _inside(value: float, row: Row) -> bool:
    own = number(row["value"]) or 0.0
    low, high = row["ci_low"], row["ci_high"]
    return (own if low is None else low) <= value <= (own if high is None else high)


def series_of(rows: Sequence[Row]) -> list[Series]:
    """All series by name and parameters, their newest `COMMITS` commits each."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = tuple(str(row[name] or "") for name in ("benchmark", "params", "machine", "environment"))
        found.setdefault(key, []).append(row)
    return [
        Series(tuple(sorted(own, key=lambda row: (row["committed"], row["commit"]))[-COMMITS:]))
        for _, own in sorted(found.items())
    ]


def load_series(results_root: Path) -> list[Series]:
    """From the table. Raises ReportError where asv has left nothing, TableError for a damaged table."""
    path = find_table(results_root, MICRO)
    rows = read_table(path, MICRO) if path.is_file() else []
    if not rows:
        raise ReportError(
            "asv's measurements are not in the tables: run `asv run HEAD^!`, then `bandwise report` of any sweep brings them in"
        )
    return series_of(rows)


WIDTH, HEIGHT, EDGE = 92.0, 20.0, 3.0
FLAT: Final = 1e-9
"""Relative spread below which the line is drawn flat."""


def sparkline(values: Sequence[float | None], words: str) -> str:
    """<svg> of the values in order, the last one marked; None is a gap. `words` says them to those who cannot see it.

    The scale is linear from the least to the largest, so that a change is seen whatever the level. Without a number: nothing.
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    spread = high - low if high - low > FLAT * abs(high) else 0.0
    across = (WIDTH - 2 * EDGE) / max(1, len(values) - 1)

    def at(index: int, value: float) -> tuple[str, str]:
        x = WIDTH - EDGE if len(values) == 1 else EDGE + across * index
        y = HEIGHT / 2 if not spread else HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (value - low) / spread
        return f"{x:.1f}", f"{y:.1f}"

    path, pen = "", "M"
    last = ("", "")
    for index, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        last = at(index, value)
        path += f"{pen}{last[0]} {last[1]}"
        pen = "L"
    return (
        f'<svg class="spark" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{escape(words, quote=True)}">'
        f'<path d="{path}"/><circle cx="{last[0]}" cy="{last[1]}" r="2.2"/></svg>'
    )


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
    return write_page(
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
    commits = {row["commit"] for one in series for row in one.rows}
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
    unit = None if row["unit"] is None else row["unit"]
    values = [number(own["value"]) for own in one.rows]
    said = ", ".join(f"{_value(own, unit)} at {own['commit']}" for own in one.rows)
    done = row["status"] == "done"
    params = row["params"] or "none"
    return {
        "params": Cell(params, params),
        "value": _newest(row, unit),
        "course": Cell("", " ".join("" if v is None else f"{v:.9g}" for v in values), picture=sparkline(values, said)),
        "word": Cell(one.word if done else row["status"], one.word, css=CSS[one.word] if done else "no"),
        "ratio": Cell(write.ratio(ratio) if one.word in (WORSE, BETTER) else write.MISSING, ratio),
        "n": Cell(str(sum(v is not None for v in values)), sum(v is not None for v in values)),
        "commit": Cell(row["commit"], row["commit"], row["committed"][:10], css="code"),
        "before": Cell(write.MISSING if before is None else before["commit"], css="code"),
        "machine": Cell(row["machine"], row["machine"]),
    }  # fmt: skip


def _value(row: Row, unit: str | None) -> str:
    return write.quantity(number(row["value"]), unit) if row["status"] == "done" else row["status"]


def _newest(row: Row, unit: str | None) -> Cell:
    low, high = row["ci_low"], row["ci_high"]
    known = low is not None and high is not None
    note = f"[{write.quantity(low, unit)}, {write.quantity(high, unit)}]" if known else ""
    return Cell(_value(row, unit), number(row["value"]), note, (low, high))


def latest(rows: Sequence[Row]) -> list[Row]:
    """The measurements of each machine's newest commit."""
    newest: dict[str, tuple[str, str]] = {}
    for row in rows:
        machine, stamp = row["machine"], (row["committed"], row["commit"])
        newest[machine] = max(newest.get(machine, stamp), stamp)
    return [r for r in rows if (r["committed"], r["commit"]) == newest[r["machine"]]]


def micro_view(rows: Sequence[Row]) -> View:
    """asv's measurements of the building blocks, newest commit a machine."""
    columns = (
        Column("benchmark", "benchmark"),
        Column("params", "parameters"),
        Column("value", "value", "Median, with asv's 99 % interval where it was timed.", True, True),
        Column("status", "status", hidden=True),
        Column("commit", "commit"),
        Column("machine", "machine"),
    )
    lines = []
    for row in latest(rows):
        value, ends = number(row["value"]), (row["ci_low"], row["ci_high"])
        unit = None if row["unit"] is None else row["unit"]
        known = ends[0] is not None and ends[1] is not None
        note = f"[{write.quantity(ends[0], unit)}, {write.quantity(ends[1], unit)}]" if known else ""
        text = write.quantity(value, unit) if row["status"] == "done" else row["status"]
        cells = {
            "benchmark": Cell(row["benchmark"], row["benchmark"]),
            "params": Cell((row["params"] or ""), row["params"]),
            "value": Cell(text, value, note, ends, css="no" if row["status"] == "failed" else ""),
            "status": Cell(row["status"], row["status"]),
            "commit": Cell(row["commit"], row["commit"], css="code"),
            "machine": Cell(row["machine"], row["machine"]),
        }
        lines.append(Line(cells))
    return View("micro", "Building blocks, timed by asv", columns, tuple(lines))
