"""Every run of a study: in one table, those without a result, the learning rates tried, and where all of it comes from.

An arm of a panel is a line, with its seeds and how each ended: a line a seed would make pages of thousands of runs too large to
open; ids and values are in the download all the same.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter, defaultdict
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from report.drawing import numbers as write
from report.drawing.numbers import MISSING, number
from report.drawing.table import Cell, Column, Line, Row, View, chips
from report.study.data import Panel, StudyData
from suite.analysis.columns import ARM, BUDGET_RUNS, RUNS, TUNING
from suite.analysis.published import CELL, Origin, of_study
from suite.runs.provenance import drift as code_drift
from suite.runs.provenance import hardware
from suite.runs.store import CIRCUMSTANCE

RUN_COLUMNS: Final = (
    Column("method", "method"),
    Column("place", "setting", "Workload, sharding, workers."),
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


def runs_view(study: StudyData) -> View:
    """The table."""
    lines = [
        _run_line(panel, row, [r for r in panel.runs if r["arm"] == row["arm"]])
        for panel in study.panels
        for row in [*panel.baselines, *panel.methods, *panel.controls]
    ]
    return View("every-run", "Every run", RUN_COLUMNS, tuple(lines), chips(lines))


def _run_line(panel: Panel, arm: Row, rows: list[Row]) -> Line:
    rows = sorted(rows, key=lambda row: row["seed"] or 0)
    states = Counter(row["status"].replace("_", " ") for row in rows)
    done = states.pop("done", 0)
    place = f"{panel.workload}, {panel.sharding}, n = {panel.world_size}"
    values = [value for row in rows if (value := number(row["value"])) is not None]
    ends = (min(values), max(values)) if values else (None, None)
    other = ", ".join(f"{count} {word}" for word, count in states.items())
    cells = {
        "method": Cell(arm["arm"], arm["arm"]),
        "place": Cell(place, place),
        "done": Cell(write.share(done, len(rows)), done, css="" if done == len(rows) else "no"),
        "other": Cell(other, other, css="no"),
        "seeds": Cell(
            "",
            " ".join(row["run_id"] for row in rows),
            css="seeds",
            items=tuple(map(_seed, rows)),
        ),
        "least": Cell(write.plain(ends[0], panel.digits), ends[0]),
        "most": Cell(write.plain(ends[1], panel.digits), ends[1]),
        "commit": _distinct(rows, "commit", 8),
        "environment": _distinct(rows, "environment", 16),
    }
    return Line(cells, "control" if arm["control"] else arm["family"])


def _seed(row: Row) -> Cell:
    """A seed by its number; how it ended in words where that is not as hoped."""
    state = row["status"]
    text = "–" if state == "missing" else str(row["seed"])
    note = "" if state == "done" else f"seed {row['seed']}: {state.replace('_', ' ')}"
    return Cell(text, css=CSS.get(state, "no"), note=note)


def _distinct(rows: list[Row], column: str, digits: int) -> Cell:
    found = ", ".join(sorted({str(row[column])[:digits] for row in rows if row[column] is not None}))
    return Cell(found or write.MISSING, found or None, css="code")


def _place(row: Row) -> dict[str, Cell]:
    return {
        "method": Cell(row["arm"], row["arm"]),
        "workload": Cell(row["workload"], row["workload"]),
        "sharding": Cell(row["sharding"], row["sharding"]),
        "workers": Cell(str(row["world_size"]), row["world_size"]),
    }


PLACE_COLUMNS = (
    Column("method", "method"),
    Column("workload", "workload", hidden=True),
    Column("sharding", "sharding"),
    Column("workers", "workers", numeric=True, hidden=True),
)


def tuning_view(study: StudyData) -> View:
    """A line a method and setting: the rate that was chosen, and all that were tried with what each ended at."""
    columns = (
        *PLACE_COLUMNS,
        Column("lr", "chosen rate", "The best metric wins, then the lower NLL, then the lower rate.", True),
        Column("value", "its metric", "At the end of the trial, on one seed that is not scored.", True),
        Column("edge", "on an edge", "Whether the chosen rate is the least or the greatest that was tried."),
        Column("tried", "tried: metric", "Peak rates, each with the metric at its end; NLLs are in the CSV."),
    )
    lines = []
    for _, group in groupby(study.rows(TUNING), key=lambda row: tuple(row[name] for name in ARM)):
        trials = list(group)
        best = next((row for row in trials if row["chosen"]), None)
        rate, value = (None, None) if best is None else (best["lr"], number(best["value"]))
        edge = "chosen, on an edge" if best is not None and best["edge"] else ""
        cells = {
            **_place(trials[0]),
            "lr": Cell(write.rate(None) if best is None else _setting(best), rate),
            "value": Cell(write.plain(value), value),
            "edge": Cell(edge, edge, css="maybe" if edge else ""),
            "tried": Cell("", css="rates", items=tuple(map(_trial, trials))),
        }
        lines.append(Line(cells))
    return View("tuning", "Learning rates tried", columns, tuple(lines))


def _trial(row: Row) -> Cell:
    done = row["status"] == "done"
    end = write.plain(number(row["value"])) if done else row["status"].replace("_", " ")
    return Cell(f"{_setting(row)}: {end}", css="yes" if row["chosen"] else "" if done else "no")


def _setting(row: Row) -> str:
    """The rate that was tried, with the options that were tuned beside it: `0.003, eps 1e-05`."""
    options = json.loads(row["options"] or "{}")
    return ", ".join([write.rate(row["lr"]), *(f"{name} {value}" for name, value in options.items())])


def failures_view(study: StudyData) -> View:
    """Every run without a result, with its reason, and what tries it again where that can change anything."""
    climbed = BUDGET_RUNS.suffix in study.tables
    every = [*study.rows(RUNS), *(study.rows(BUDGET_RUNS) if climbed else [])]
    failed = [row for row in every if row["status"] != "done"]
    again = any(row["status"] in CIRCUMSTANCE for row in failed)
    columns = (
        Column("status", "status"),
        *PLACE_COLUMNS,
        Column("steps", "steps", "Of its training: a rung of the budget ladder.", True, hidden=not climbed),
        Column("seed", "seed", numeric=True),
        Column("reason", "reason", "As the run gave it, or whoever found that its job had gone."),
        Column("run", "run", "Again, held against this record: `bandwise reproduce` and the id."),
        *([Column("again", "again", "Tries all that ended so again.")] if again else []),
    )
    lines = []
    for row in failed:
        state = row["status"]
        cells = {
            "status": Cell(state.replace("_", " "), state, css="no"),
            **_place(row),
            "steps": Cell(str(row["steps"]), row["steps"]),
            "seed": Cell(str(row["seed"]), row["seed"]),
            "reason": Cell(row["reason"] or write.MISSING, row["reason"], css="reason"),
            "run": Cell(row["run_id"], row["run_id"], css="code"),
        }
        if again:
            command = (
                shlex.join(["bandwise", "sweep", study.called, "--retry", state])
                if state in CIRCUMSTANCE
                else ""
            )
            cells["again"] = Cell(command or write.MISSING, command, css="code")
        lines.append(Line(cells))
    return View("failures", "Runs without a result", columns, tuple(lines))


KINDS: Final = MappingProxyType(
    {
        "commit": ("commit", "dirty", "changes"),
        "environment": ("environment_hash", "torch", "python"),
        "machine": ("cpu", "gpu", "system", "cores", "threads"),
    }
)
"""What is told apart -> by which attributes."""
WORDS: Final = MappingProxyType(
    {"torch": "torch", "python": "Python", "cores": "cores", "threads": "threads a run"}
)
ORIGIN_COLUMNS: Final = (
    Column("kind", "what"),
    Column("value", "which"),
    Column("rest", "more"),
    Column("runs", "runs", "That have ended and say where.", True),
    Column("studies", "studies", hidden=True),
)


def origins_of(study: StudyData) -> list[Origin]:
    """The distinct origins of a study, by panel."""
    return of_study(study.facts, study.rows(RUNS))


def origins_view(*studies: StudyData) -> View:
    """Every distinct commit, environment and machine of the studies, with how many runs it gave."""
    lines = []
    for kind, names in KINDS.items():
        runs: dict[tuple[Any, ...], int] = defaultdict(int)
        where: dict[tuple[Any, ...], set[str]] = defaultdict(set)
        for study in studies:
            for origin in origins_of(study):
                key = tuple(origin.get(name) for name in names)
                runs[key] += int(origin["runs"])
                where[key].add(study.sweep)
        ordered = sorted(runs, key=lambda key: (-runs[key], str(key)))
        lines += [_origin_line(kind, names, key, runs[key], sorted(where[key])) for key in ordered]
    return View("origins", "Commits, environments and machines", ORIGIN_COLUMNS, tuple(lines))


def _origin_line(
    kind: str, names: tuple[str, ...], key: tuple[Any, ...], runs: int, studies: list[str]
) -> Line:
    value = MISSING if key[0] is None else str(key[0])
    known = dict(zip(names[1:], key[1:], strict=True))
    changed = {True: "changed files", False: "no changed files", None: ""}[known.pop("dirty", None)]
    rest = ", ".join(filter(None, [changed, *(_said(name, found) for name, found in known.items())]))
    css = "code" if kind != "machine" else ""
    cells = {
        "kind": Cell(kind, kind),
        "value": Cell(value, value, css=css),
        "rest": Cell(rest, rest, css="maybe" if changed == "changed files" else ""),
        "runs": Cell(str(runs), runs),
        "studies": Cell(", ".join(studies), " ".join(studies)),
    }
    return Line(cells)


def _said(name: str, value: object) -> str:
    if value is None:
        return ""
    if name == "changes":
        return f"patches/{str(value)[:12]}….diff"
    if name in {"torch", "python"}:
        return f"{WORDS[name]} {value}"
    if name in {"cores", "threads"}:
        own = WORDS[name]
        return (
            f"{value} {own.replace('s ', ' ').removesuffix('s')}" if str(value) == "1" else f"{value} {own}"
        )
    return str(value)


def drift(*studies: StudyData) -> list[str]:
    """What the runs of a panel differ in, in sentences, by the rules of `bandwise publish --check`; what ran older sources."""
    found = []
    for study in studies:
        before = f"{study.sweep}: " if len(studies) > 1 else ""
        for cell, own in groupby(sorted(origins_of(study), key=_cell), key=_cell):
            panel = f"{cell[0]}, {cell[1]}, {cell[2]} workers"
            counts = [(origin, int(origin["runs"])) for origin in own]
            findings = [*code_drift(panel, counts), *hardware(panel, counts)]
            found += [f"{before}{one.subject}: {one.what}; {one.fix}." for one in findings]
        if stale := _stale(study):
            found.append(
                f"{before}{stale} runs come from another source of their method or workload than is here; they are in no rank."
            )
    return found


def _cell(origin: Origin) -> tuple[Any, ...]:
    return tuple(origin[name] for name in CELL)


def _stale(study: StudyData) -> int:
    return int(study.frame(RUNS)["stale"].sum())
