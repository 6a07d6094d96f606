"""What a study rests on: its gates, the learning rates tried, the runs without a result, and where all of it comes from."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from report import numbers as write
from report.data import StudyData
from report.tables import Cell, Column, View, count, text
from suite.analysis.published import CHANGES, Origin, of_study
from suite.analysis.tables import ARM, BUDGET_RUNS, CELL, GATES, RUNS, TUNING, Row
from suite.runs.spec import drift as code_drift
from suite.runs.store import CIRCUMSTANCE

PLACE: Final = (
    Column("method", text("arm")),
    Column("workload", text("workload"), hidden=True),
    Column("sharding", text("sharding")),
    Column("workers", text("world_size"), numeric=True, hidden=True),
)


def gates_view(study: StudyData) -> View:
    """A line a gate: what was measured, what it had to be, and whether it was."""

    def passed(row: Row) -> Cell:
        if row["passed"] is None:
            return Cell(write.MISSING, css="quiet")
        return Cell("passed", css="yes") if row["passed"] else Cell("not passed", css="no")

    columns = (
        Column("gate", text("gate")),
        Column("method", text("arm")),
        Column("measured", count("measured"), numeric=True),
        Column("bar", count("bar"), numeric=True),
        Column("passed", passed),
        Column("in words", text("words", "reason")),
    )
    return View("gates-table", "Gates", columns, study.rows(GATES))


def tuning_view(study: StudyData) -> View:
    """A line a method and setting: the rate that was chosen, and all that were tried with what each ended at."""

    def chosen(trials: list[Row]) -> Row:
        return next((row for row in trials if row["chosen"]), dict.fromkeys(trials[0]))

    def of_first(one: Column) -> Column:
        return replace(one, make=lambda trials: one.make(trials[0]))

    every = study.rows(TUNING)
    vertex = Column(
        "scored rate", lambda trials: Cell(write.rate(chosen(trials)["vertex"] or chosen(trials)["lr"])),
        "Where a parabola through the chosen rate and its two neighbours is least; where there is none, the chosen rate.", True,
    )  # fmt: skip
    columns = (
        *map(of_first, PLACE),
        Column(
            "chosen rate", lambda trials: Cell(_setting(chosen(trials)), chosen(trials)["lr"]),
            "The lowest NLL of those within the margin of the best metric; beside a scored rate, the best metric.", True,
        ),
        *([vertex] if any(row["vertex"] for row in every) else []),
        Column(
            "its metric", lambda trials: Cell(write.plain(chosen(trials)["value"]), chosen(trials)["value"]),
            "At the end of the trials, mean over seeds that are not scored.", True,
        ),
        Column(
            "on an edge", lambda trials: Cell("chosen, on an edge" if chosen(trials)["edge"] else "", css="maybe"),
            "Whether the chosen rate is the least or the greatest that was tried.",
        ),
        Column(
            "tried: metric", lambda trials: Cell("; ".join(map(_trial, trials)), css="reason"),
            "Peak rates, each with the metric at its end; NLLs are in the CSV.",
        ),
    )  # fmt: skip
    groups = groupby(every, key=lambda row: tuple(row[name] for name in ARM))
    return View("tried-rates", "Learning rates tried", columns, [list(trials) for _, trials in groups])


def _trial(row: Row) -> str:
    end = write.plain(row["value"]) if row["status"] == "done" else row["status"].replace("_", " ")
    return f"{_setting(row)}: {end}"


def _setting(row: Row) -> str:
    """The rate that was tried, with the options that were tuned beside it: `0.003, eps 1e-05`."""
    options = json.loads(row["options"] or "{}")
    return ", ".join([write.rate(row["lr"]), *(f"{name} {value}" for name, value in options.items())])


def failures_view(study: StudyData) -> View:
    """Every run without a result, with its reason, and what tries it again where that can change anything."""
    climbed = BUDGET_RUNS in study.tables
    failed = [row for row in [*study.rows(RUNS), *study.rows(BUDGET_RUNS)] if row["status"] != "done"]

    def again(row: Row) -> Cell:
        command = shlex.join(["bandwise", "sweep", study.called, "--retry", row["status"]])
        return Cell(command if row["status"] in CIRCUMSTANCE else write.MISSING, css="code")

    columns: tuple[Column, ...] = (
        Column("status", lambda row: Cell(row["status"].replace("_", " "), css="no")),
        *PLACE,
        Column(
            "steps", text("steps"), "Of its training: a rung of the budget ladder.", True, hidden=not climbed
        ),
        Column("seed", text("seed"), numeric=True),
        Column(
            "reason", text("reason", "reason"), "As the run gave it, or whoever found that its job had gone."
        ),
        Column(
            "run", text("run_id", "code"), "Again, held against this record: `bandwise reproduce` and the id."
        ),
    )
    if any(row["status"] in CIRCUMSTANCE for row in failed):
        columns = (*columns, Column("again", again, "Tries all that ended so again."))
    return View("failed", "Runs without a result", columns, failed)


KINDS: Final = MappingProxyType(
    {
        "commit": ("commit", "dirty", CHANGES),
        "environment": ("environment_hash", "torch", "python"),
        "machine": ("cpu", "gpu", "system", "cores", "threads"),
    }
)
"""What is told apart -> by which attributes."""
WORDS: Final[Mapping[str, Callable[[Any], str]]] = MappingProxyType(
    {
        "dirty": lambda value: "changed files" if value else "no changed files",
        CHANGES: lambda value: f"changes {value[:12]}…",
        "torch": lambda value: f"torch {value}",
        "python": lambda value: f"Python {value}",
        "cores": lambda value: f"{value} core{'' if str(value) == '1' else 's'}",
        "threads": lambda value: f"{value} thread{'' if str(value) == '1' else 's'} a run",
    }
)
"""Attribute -> its words."""


def origins_view(study: StudyData) -> View:
    """Every distinct commit, environment and machine of a study, with how many runs it gave."""
    rows: list[tuple[str, tuple[Any, ...], int]] = []
    for kind, names in KINDS.items():
        runs: dict[tuple[Any, ...], int] = defaultdict(int)
        for origin in of_study(study.facts, study.rows(RUNS)):
            runs[tuple(origin.get(name) for name in names)] += int(origin["runs"])
        rows += [(kind, key, runs[key]) for key in sorted(runs, key=lambda key: (-runs[key], str(key)))]

    def rest(row: tuple[str, tuple[Any, ...], int]) -> Cell:
        kind, key, _ = row
        known = dict(zip(KINDS[kind][1:], key[1:], strict=True))
        said = [WORDS.get(name, str)(value) for name, value in known.items() if value is not None]
        return Cell(", ".join(said), css="maybe" if known.get("dirty") else "")

    columns = (
        Column("what", lambda row: Cell(row[0])),
        Column("which", lambda row: Cell(write.MISSING if row[1][0] is None else str(row[1][0]), css="code")),
        Column("more", rest),
        Column("runs", lambda row: Cell(str(row[2])), "That have ended and say where.", True),
    )
    return View("origins", "Commits, environments and machines", columns, rows)


def drift(study: StudyData) -> list[str]:
    """What the runs of a panel differ in, in sentences, by the rules of `bandwise publish --check`; what ran older sources."""

    def cell(origin: Origin) -> tuple[Any, ...]:
        return tuple(origin[name] for name in CELL)

    found = []
    for key, own in groupby(sorted(of_study(study.facts, study.rows(RUNS)), key=cell), key=cell):
        panel = f"{key[0]}, {key[1]}, {key[2]} workers"
        counts = [(origin, int(origin["runs"])) for origin in own]
        found += [f"{one.subject}: {one.what}; {one.fix}." for one in code_drift(panel, counts)]
    if stale := int(study.frame(RUNS)["stale"].sum()):
        found.append(
            f"{stale} runs come from another source of their method or workload than is here; they are in no rank."
        )
    return found


def reproduce(study: StudyData) -> str:
    """The commands that make the page again from nothing, a line each."""
    commits = study.facts["provenance"]["commit"]
    lines = [f"git checkout {commits[0]}"] if len(commits) == 1 else []
    lines += ["make setup", str(study.facts["command"]), shlex.join(["bandwise", "report", study.called])]
    return "\n".join([*lines, "bandwise reproduce RUN_ID   # one run alone, compared with its record"])
