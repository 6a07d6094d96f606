"""The tables of one study as a page needs them: by panel and by link of its sessions, with what is known about each.

Reads tables alone, made here or published as `suite.analysis.published` says; a page says which.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from report.accuracy import SHARDINGS, Panel
from report.claims import Verdicts, load_verdicts
from report.pages import ReportError, slug
from suite.analysis.published import (
    PublishedError,
    Side,
    Source,
    facts_path,
    load_facts,
    read_facts,
    refused_sessions,
    sessions_held,
    source,
)
from suite.analysis.tables import (
    ARMS,
    BUDGET_SWEEP,
    BUDGET_TABLES,
    CASES,
    CELL,
    CURVES,
    GATES,
    NET,
    OF_SESSION,
    OF_STUDY,
    RHO,
    RUNS,
    SENSITIVITY,
    SESSION,
    SPEED_TABLES,
    SUMMARY,
    SWEEP_OPTIONAL,
    WINDOWS,
    WORTH,
    Row,
    Table,
    TableError,
    frame_of,
    read_frame,
    rows_of,
    session_table_path,
    table_path,
)
from suite.timing.spec import may_be_of, not_shown


def by_arm(rows: Iterable[Row], **cells: object) -> dict[str, Row]:
    """The rows that have these cells, by arm."""
    return {row["arm"]: row for row in rows if cells.items() <= row.items()}


def listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def name_and_options(label: str) -> tuple[str, dict[str, str]]:
    """Of a workload by its label, such as python-gpt(size=0.15m)."""
    name, _, given = label.removesuffix(")").partition("(")
    return name, dict(pair.split("=", 1) for pair in given.split(",") if pair)


@dataclass(frozen=True)
class StudyData:
    """All tables of a study, its facts, its panels in order, and its sessions; the claims that any of this decides; and records
    of sessions that are there and are not read; origin: where the study's own tables come from.
    """

    sweep: str
    tables: Mapping[Table, pd.DataFrame]
    facts: Mapping[str, Any]
    panels: list[Panel]
    sessions: tuple[SessionData, ...] = ()
    verdicts: Verdicts = field(default_factory=Verdicts)
    refused: Sequence[Row] = ()
    origin: Source = field(default_factory=lambda: Source("", Path(), local=True))

    def heading(self, panel: Panel) -> str:
        """How one of its panels is told from the others."""
        several = len({(one.workload, one.world_size) for one in self.panels}) > 1
        return panel.whole_place if several else panel.place

    @property
    def called(self) -> str:
        """How a command names the sweep: its name, or its file's where it is not one that ships."""
        return shlex.split(str(self.facts["command"]))[-1]

    def frame(self, table: Table) -> pd.DataFrame:
        """One table; without rows where the study has none."""
        return self.tables[table] if table in self.tables else frame_of(table, ())

    def rows(self, table: Table) -> list[Row]:
        """Its rows."""
        return rows_of(self.frame(table))


def load(
    results_root: Path | str,
    sweep: str,
    verdicts: Verdicts | None = None,
    side: Side = "whole",
) -> StudyData:
    """Read the tables of a sweep and of its sessions.

    verdicts: tables that all studies share, where they have been read already.
    side: which are taken where some were made here and others are published.
    Raises ReportError or TableError where one is missing or of another shape.
    """
    root = Path(results_root)
    origin = source(root, sweep, side)
    path = facts_path(origin.root, sweep)
    if (facts := read_facts(path)) is None:
        raise ReportError(f"{path} does not exist; run the sweep, then `bandwise report`")
    optional = [table for table in SWEEP_OPTIONAL if table not in BUDGET_TABLES]
    known = [*OF_STUDY, *(BUDGET_TABLES if "budgets" in facts else ()), *optional]
    paths = {table: table_path(origin.root, table, sweep) for table in known}
    tables = {
        table: _read(path, table)
        for table, path in paths.items()
        if path.is_file() or table not in (CURVES, *optional)
    }
    sessions = load_sessions(root, sweep, side)
    decided = (load_verdicts(root) if verdicts is None else verdicts).of(
        {sweep, *(session.name for session in sessions)}
    )
    panels = _panels(tables, facts)
    return StudyData(sweep, tables, facts, panels, sessions, decided, refused_sessions(root), origin)


def _read(path: Path, table: Table) -> pd.DataFrame:
    """A table whose rows all name their method, gates of none apart. Raises TableError for a damaged one."""
    frame = read_frame(path, table)
    if "arm" in frame and table is not GATES and frame["arm"].isna().any():
        raise TableError(f"{path} has a row without a method; make the tables again")
    return frame


def _panels(tables: Mapping[Table, pd.DataFrame], facts: Mapping[str, Any]) -> list[Panel]:
    fields = {
        "summary": SUMMARY, "runs": RUNS, "budgets": BUDGET_SWEEP, "worth": WORTH, "rho": RHO, "windows": WINDOWS,
    }  # fmt: skip

    def of(table: Table, key: tuple[Any, ...]) -> list[Row]:
        frame = tables.get(table)
        return [] if frame is None else rows_of(frame[(frame[CELL] == [*key]).all(axis="columns")])

    panels = []
    for cell in facts["workloads"]:
        key = tuple(cell[name] for name in CELL)
        verdict = of(SENSITIVITY, key)
        if len(verdict) != 1:
            raise ReportError(f"the tables disagree about {key}; run `bandwise report` on the sweep again")
        known: dict[str, Any] = {name: of(table, key) for name, table in fields.items()}
        known |= zip(CELL, key, strict=True)
        panels.append(Panel(verdict=verdict[0], facts=cell, **known))
    order = list(SHARDINGS)

    def place(panel: Panel) -> tuple[str, int, int, str]:
        known = panel.sharding in order
        return panel.workload, panel.world_size, order.index(panel.sharding) if known else 9, panel.sharding

    return sorted(panels, key=place)


@dataclass(frozen=True)
class LinkData:
    """One link of a session: its facts and the rows of its tables."""

    facts: Mapping[str, Any]
    cases: list[Row]
    arms: list[Row]
    net: list[Row]

    @property
    def label(self) -> str:
        """100 Mbit/s."""
        return str(self.facts["label"])

    @property
    def rho(self) -> Mapping[str, float | None] | None:
        """value, low, high of seconds that plain bf16 gradients take on the link, and those seconds, `ring_s`, over `compute_s`;
        the facts have fp32 ones. None where there is none.
        """
        found = self.facts["rho"]
        halves = ("value", "low", "high", "ring_s")
        return found and {
            name: value / 2 if name in halves and value is not None else value
            for name, value in found.items()
        }

    @property
    def slug(self) -> str:
        """For anchors and files: 100-mbit-s."""
        return slug(self.label)

    @property
    def usable(self) -> bool:
        """Whether it gives numbers."""
        return bool(self.facts["status"] == "done")

    @property
    def reference(self) -> Row | None:
        """The fastest uncompressed DDP, which speedups are over."""
        return next((row for row in self.cases if row["reference"]), None)

    @property
    def default(self) -> Row | None:
        """fp32 DDP at its defaults."""
        return next((row for row in self.cases if row["default"]), None)

    @property
    def timed(self) -> list[Row]:
        """The cases with seconds a step; those that were only screened have none."""
        return [row for row in self.cases if row["step_s"] is not None]

    def family(self, case: Row) -> str:
        """Of a case; torch's own count as uncompressed."""
        families = {row["algorithm"]: row["family"] for row in self.arms}
        return "baseline" if case["role"] == "ddp" else families.get(case["algorithm"], "")


@dataclass(frozen=True)
class SessionData:
    """One session: its tables, its facts, and its links in the order in which they were timed; `refused`: records
    of it that are there and are not read, as rows; `origin`: where its tables come from.
    """

    name: str
    tables: Mapping[Table, pd.DataFrame]
    facts: Mapping[str, Any]
    links: list[LinkData]
    refused: Sequence[Row] = ()
    origin: Source = field(default_factory=lambda: Source("", Path(), local=True))

    def rows(self, table: Table) -> list[Row]:
        """Rows of one table."""
        return rows_of(self.tables[table])

    @property
    def sweep(self) -> str | None:
        """The sweep that it belongs to; None: speed alone."""
        return None if self.facts["sweep"] is None else str(self.facts["sweep"])

    @property
    def usable(self) -> bool:
        """Whether any of its links gives numbers."""
        return any(link.usable for link in self.links)

    @property
    def workload(self) -> str:
        """What was timed, with its options: code-gpt (size 3.3m)."""
        found = self.facts["workload"]
        options = ", ".join(f"{key} {value}" for key, value in sorted(found["options"].items()))
        return f"{found['name']} ({options})" if options else found["name"]

    def timed(self, workload: str) -> bool:
        """Whether it timed the workload of that label, such as code-gpt(size=0.14m): its name, and the options that it gives."""
        (name, given), found = name_and_options(workload), self.facts["workload"]
        same = (str(found["options"].get(key)) == value for key, value in given.items())
        return bool(name == found["name"]) and all(same)


def load_sessions(results_root: Path, sweep: str | None, side: Side = "whole") -> tuple[SessionData, ...]:
    """The sessions of a sweep, or of none, by name, but for shipped ones that pages leave out.

    Raises TableError for a damaged or foreign file, PublishedError for a published one of its own that has changed.
    """
    hidden = not_shown()
    refused = refused_sessions(results_root)
    found = (
        _session(results_root, name, sweep, refused, side)
        for name in sessions_held(results_root)
        if name not in hidden
    )
    return tuple(session for session in found if session is not None)


def refused_words(row: Row) -> str:
    """One of them in a sentence."""
    return f"Record {row['record']} of session {row['name']} is not read: {row['reason']}. What to do: {row['fix']}."


def _session(
    results_root: Path, name: str, sweep: str | None, refused: Sequence[Row], side: Side
) -> SessionData | None:
    """A session, if it is of that sweep."""
    try:
        origin = source(results_root, f"{SESSION}{name}", side)
    except PublishedError:
        if may_be_of(name, sweep):
            raise
        return None
    root, facts = origin.root, load_facts(results_root, name, side)
    if facts is None:
        raise ReportError(f"the tables of session {name} vanished while the page was built; build it again")
    if facts["sweep"] != sweep:
        return None
    paths = {table: session_table_path(root, table, name) for table in OF_SESSION}
    tables = {
        table: _read(path, table) for table, path in paths.items() if path.is_file() or table in SPEED_TABLES
    }
    by_link = {
        table: {label: rows_of(own) for label, own in frame.groupby("link")}
        for table, frame in tables.items()
    }
    links = [
        LinkData(link, *(by_link.get(table, {}).get(link["label"], []) for table in (CASES, ARMS, NET)))
        for link in facts["links"]
    ]
    return SessionData(name, tables, facts, links, [row for row in refused if row["name"] == name], origin)


def trouble(reason: object) -> str:
    """A recorded reason without its full stop, to stand inside a sentence."""
    return str(reason or "it gave no numbers").rstrip(". ")
