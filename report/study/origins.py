"""Where the numbers of a study come from: commits, environments and machines with how many runs each, and what is mixed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from report.drawing.numbers import MISSING
from report.drawing.table import Cell, Column, Line, View
from report.study.data import StudyData
from suite.analysis.check import drift as code_drift
from suite.analysis.check import hardware
from suite.analysis.columns import RUNS
from suite.analysis.published import CELL, Origin, of_study

KINDS: Final = MappingProxyType(
    {
        "commit": ("commit", "dirty", "changes"),
        "environment": ("environment_hash", "torch", "python"),
        "machine": ("cpu", "system", "cores", "threads"),
    }
)
"""What is told apart -> by which attributes."""
WORDS: Final = MappingProxyType(
    {"torch": "torch", "python": "Python", "cores": "cores", "threads": "threads a run"}
)
COLUMNS: Final = (
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
        lines += [_line(kind, names, key, runs[key], sorted(where[key])) for key in ordered]
    return View("origins", "Commits, environments and machines", COLUMNS, tuple(lines))


def _line(kind: str, names: tuple[str, ...], key: tuple[Any, ...], runs: int, studies: list[str]) -> Line:
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
    """What the runs of a panel differ in, by the rules of `bandwise check`, in sentences; and what ran older sources."""
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
                f"{before}{stale} runs come from another source of their method than this checkout's; they are in no rank."
            )
    return found


def _cell(origin: Origin) -> tuple[Any, ...]:
    return tuple(origin[name] for name in CELL)


def _stale(study: StudyData) -> int:
    rows: Iterable[Any] = study.rows(RUNS)
    return sum(bool(row["stale"]) for row in rows)
