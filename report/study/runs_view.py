"""Every run of a study in one table, an arm of a panel a line: its seeds, how each ended, and the way to its page.

A line a seed would make pages of thousands of runs too large to open; ids and values are in the download all the same.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import Final

from report.drawing import numbers as write
from report.drawing.numbers import number
from report.drawing.table import Cell, Column, Line, View
from report.drawing.theme import FAMILIES
from report.study.data import Panel, StudyData
from report.study.view import run_address
from suite.analysis.tables import Row

COLUMNS: Final = (
    Column("method", "method"),
    Column("place", "panel", "Workload, sharding, workers."),
    Column("done", "done", "Runs that finished, of those planned.", True),
    Column("other", "otherwise", "How the others ended."),
    Column("seeds", "seeds", "In the CSV the ids of the runs, in the order of the seeds."),
    Column("least", "least", "Of the metric over the finished runs, in its unit.", True),
    Column("most", "most", "Of the metric over the finished runs, in its unit.", True),
    Column("commit", "commit", "Of the code that ran; several where they differ.", hidden=True),
    Column("environment", "environment", "Hash of the installed packages.", hidden=True),
)
CSS: Final = MappingProxyType({"done": "", "missing": "quiet"})
"""Status -> class of a seed; all others call for a look."""


def runs_view(study: StudyData, runs: str = "") -> View:
    """The table; `runs` is the relative address of the folder with the pages of runs, empty where there are none."""
    lines = [
        _line(panel, row, [r for r in panel.runs if r["arm"] == row["arm"]], runs)
        for panel in study.panels
        for row in [*panel.baselines, *panel.methods, *panel.controls]
    ]
    seen = {line.family for line in lines}
    chips = tuple((name, words) for name, words in FAMILIES.items() if name in seen)
    return View("every-run", "Every run", COLUMNS, tuple(lines), chips)


def _line(panel: Panel, arm: Row, rows: list[Row], runs: str) -> Line:
    rows = sorted(rows, key=lambda row: int(row["seed"] or 0))
    states = Counter(str(row["status"]).replace("_", " ") for row in rows)
    done = states.pop("done", 0)
    place = f"{panel.workload}, {panel.sharding}, n = {panel.world_size}"
    values = [value for row in rows if (value := number(row["value"])) is not None]
    ends = (min(values), max(values)) if values else (None, None)
    other = ", ".join(f"{count} {word}" for word, count in states.items())
    cells = {
        "method": Cell(str(arm["arm"]), str(arm["arm"]), css="arm"),
        "place": Cell(place, place),
        "done": Cell(write.share(done, len(rows)), done, css="" if done == len(rows) else "no"),
        "other": Cell(other, other, css="no"),
        "seeds": Cell(
            "",
            " ".join(str(row["run_id"]) for row in rows),
            css="seeds",
            items=tuple(_seed(row, runs) for row in rows),
        ),
        "least": Cell(write.plain(ends[0], panel.digits), ends[0]),
        "most": Cell(write.plain(ends[1], panel.digits), ends[1]),
        "commit": _distinct(rows, "commit", 8),
        "environment": _distinct(rows, "environment", 16),
    }
    return Line(cells, "control" if arm["control"] else str(arm["family"]))


def _seed(row: Row, runs: str) -> Cell:
    """A seed by its number; how it ended in words where that is not as hoped."""
    state = str(row["status"])
    text = "–" if state == "missing" else str(row["seed"])
    note = "" if state == "done" else f"seed {row['seed']}: {state.replace('_', ' ')}"
    return Cell(text, css=CSS.get(state, "no"), note=note, page=run_address(runs, row))


def _distinct(rows: list[Row], column: str, digits: int) -> Cell:
    found = ", ".join(sorted({str(row[column])[:digits] for row in rows if row[column] is not None}))
    return Cell(found or write.MISSING, found or None, css="code")
