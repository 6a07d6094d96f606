"""What was timed, as a page needs it: the tables of sessions, by link.

Reads tables alone, like `data`. A page shows the sessions of its own sweep, and those of no sweep, whose
models are not trained to the end here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from report.errors import ReportError
from report.rendering import slug
from suite.analysis.columns import EQUAL_LOSS_SECONDS, Table
from suite.analysis.evidence import Speed, speed
from suite.analysis.published import SESSION, Side, Source, load_refused, sessions_held, source
from suite.analysis.session_tables import load_facts
from suite.analysis.speed_columns import ARMS, CASES, DIRECT, PROBE, SPEED_TABLES, STAGES, session_table_path
from suite.analysis.tables import Row, read_table
from suite.timing.spec import not_shown

OPTIONAL = (STAGES, EQUAL_LOSS_SECONDS)
"""Tables that only some sessions have: bytes by stage of newer records, seconds at equal accuracy of sweeps with a ladder."""


@dataclass(frozen=True)
class LinkData:
    """One link of a session: its facts and the rows of its tables."""

    facts: Mapping[str, Any]
    cases: list[Row]
    arms: list[Row]
    probe: list[Row]
    direct: list[Row]
    iso: list[Row] = field(default_factory=list)

    @property
    def label(self) -> str:
        """100 Mbit/s."""
        return str(self.facts["label"])

    @property
    def slug(self) -> str:
        """For anchors and files: 100-mbit-s."""
        return slug(self.label)

    @property
    def usable(self) -> bool:
        """Whether it gives numbers."""
        return bool(self.facts["status"] == "done")

    def timed_of(self, arm: str, sharding: str) -> Speed:
        """What is said of the speed of a method."""
        rows = (row for row in self.arms if (row["arm"], row["sharding"]) == (arm, sharding))
        return speed(next(rows, None), self.facts)

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

    @property
    def families(self) -> dict[str, str]:
        """Algorithm -> family, of what was timed; torch's own count as uncompressed."""
        return {str(row["algorithm"]): str(row["family"]) for row in self.arms}

    def family(self, case: Row) -> str:
        """Of a case."""
        return "baseline" if case["role"] == "ddp" else self.families.get(str(case["algorithm"]), "")


@dataclass(frozen=True)
class SessionData:
    """One session: the tables by suffix, its facts, and its links in the order in which they were timed; `refused`: records
    of it that are there and are not read, as rows; `origin`: where its tables come from.
    """

    name: str
    tables: Mapping[str, tuple[Table, list[Row]]]
    facts: Mapping[str, Any]
    links: list[LinkData]
    refused: Sequence[Row] = ()
    origin: Source = field(default_factory=lambda: Source("", Path(), local=True))

    @property
    def stages(self) -> list[Row]:
        """Bytes by stage; empty where the session was held before they were recorded."""
        return self.rows(STAGES) if STAGES.suffix in self.tables else []

    def rows(self, table: Table) -> list[Row]:
        """Rows of one table."""
        return self.tables[table.suffix][1]

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
        return f"{found['name']} ({options})" if options else str(found["name"])


def load_sessions(results_root: Path, sweep: str | None, side: Side = "whole") -> tuple[SessionData, ...]:
    """The sessions of a sweep, or of none, by name, but for shipped ones that pages leave out.

    Raises TableError for a damaged or foreign file.
    """
    hidden = not_shown()
    refused = refused_records(results_root)
    found = (
        _session(results_root, name, sweep, refused, side)
        for name in sessions_held(results_root)
        if name not in hidden
    )
    return tuple(session for session in found if session is not None)


def refused_records(results_root: Path) -> list[Row]:
    """Records of sessions that are there and are not read, as rows of the table `refused`."""
    return [row for row in load_refused(results_root) if row["kind"] == "session"]


def refused_words(row: Row) -> str:
    """One of them in a sentence."""
    return f"Record {row['record']} of session {row['name']} is not read: {row['reason']}. What to do: {row['fix']}."


def _session(
    results_root: Path, name: str, sweep: str | None, refused: Sequence[Row], side: Side
) -> SessionData | None:
    """A session, if it is of that sweep."""
    origin = source(results_root, f"{SESSION}{name}", side)
    root, facts = origin.root, load_facts(results_root, name, side)
    if facts is None:
        raise ReportError(f"the tables of session {name} vanished while the page was built; build it again")
    if facts["sweep"] != sweep:
        return None
    known = [*SPEED_TABLES, *(table for table in OPTIONAL if session_table_path(root, table, name).is_file())]
    tables = {t.suffix: (t, read_table(session_table_path(root, t, name), t)) for t in known}

    def of(table: Table, label: str) -> list[Row]:
        rows = tables[table.suffix][1] if table.suffix in tables else []
        return [row for row in rows if row["link"] == label]

    links = [
        LinkData(
            link,
            *(of(table, str(link["label"])) for table in (CASES, ARMS, PROBE, DIRECT, EQUAL_LOSS_SECONDS)),
        )
        for link in facts["links"]
    ]
    return SessionData(name, tables, facts, links, [row for row in refused if row["name"] == name], origin)
