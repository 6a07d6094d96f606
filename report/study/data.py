"""The tables of one study as a page needs them: by panel, with what is known about it.

Reads tables alone, made here or published as `suite.analysis.published` says; a page says which.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from report.errors import ReportError
from report.sheets.claims_data import Verdicts, load_verdicts
from report.sheets.costs_data import Costs, load_costs
from report.study.speed_data import SessionData, load_sessions, refused_records
from suite.analysis.collect import FACTS_SCHEMA, facts_path
from suite.analysis.columns import BUDGET_TABLES, MICRO, OF_STUDY, SINCE_CURVES, Table
from suite.analysis.evidence import Accuracy, accuracy
from suite.analysis.published import Side, Source, find_table, source
from suite.analysis.tables import Row, read_table, table_path

SHARDINGS = {"iid": "shards i.i.d.", "by-class": "shards by class"}


@dataclass(frozen=True)
class Panel:
    """What is compared with each other: one workload, sharding and world size, with its rows and its yardstick.

    ladder, iso: rows of the tables of a budget ladder; empty where the sweep has none.
    """

    workload: str
    sharding: str
    world_size: int
    summary: list[Row]
    runs: list[Row]
    verdict: Row
    facts: Mapping[str, Any]
    ladder: list[Row] = field(default_factory=list)
    iso: list[Row] = field(default_factory=list)

    @property
    def slug(self) -> str:
        """A name for anchors and files: letters, digits and hyphens."""
        text = f"{self.workload}-{self.sharding}-n{self.world_size}"
        return "-".join(filter(None, "".join(c if c.isalnum() else "-" for c in text).split("-"))).lower()

    @property
    def title(self) -> str:
        """For headings: shards by class."""
        return SHARDINGS.get(self.sharding, self.sharding)

    @property
    def unit(self) -> str:
        """Of metric differences: points, bits/byte, or nothing."""
        return "" if self.facts["unit"] == "1" else str(self.facts["unit"])

    @property
    def digits(self) -> int:
        """Decimals in which the metric is written: two for points, four for the smaller units."""
        return 2 if self.facts["unit"] == "points" else 4

    @property
    def margin(self) -> float:
        """Largest difference that counts as equal."""
        return float(self.facts["margin"])

    @property
    def sensitive(self) -> bool:
        """Whether the negative controls show that a bad method would have been seen."""
        return bool(self.verdict["sensitive"])

    def judged(self, row: Row) -> Accuracy:
        """What is said of the accuracy of one of its methods."""
        why = "" if self.sensitive else str(self.verdict["reason"])
        return accuracy(row, higher=self.facts["direction"] == "higher", not_sensitive=why)

    @property
    def baselines(self) -> list[Row]:
        """The uncompressed runs."""
        return [row for row in self.summary if row["baseline"] is None and not row["control"]]

    @property
    def methods(self) -> list[Row]:
        """What is compared with a baseline, controls left out."""
        return [row for row in self.summary if row["baseline"] is not None and not row["control"]]

    @property
    def controls(self) -> list[Row]:
        """The negative controls."""
        return [row for row in self.summary if row["control"]]


@dataclass(frozen=True)
class StudyData:
    """All tables of a study, its facts, its panels in order, and what was timed: its own sessions first, then
    those of no sweep; the tables of the cost model, which are of no study; the claims that any of this decides; and
    records of sessions that are there and are not read; origin: where the study's own tables come from.
    """

    sweep: str
    tables: Mapping[str, tuple[Table, list[Row]]]
    facts: Mapping[str, Any]
    panels: list[Panel]
    sessions: tuple[SessionData, ...] = ()
    costs: Costs = field(default_factory=Costs)
    verdicts: Verdicts = field(default_factory=Verdicts)
    refused: Sequence[Row] = ()
    origin: Source = field(default_factory=lambda: Source("", Path(), local=True))

    @property
    def called(self) -> str:
        """How a command names the sweep: its name, or its file's where it is not one that ships."""
        return shlex.split(str(self.facts["command"]))[-1]

    def rows(self, table: Table) -> list[Row]:
        """Rows of one table; none where tables of an earlier version lack it."""
        return self.tables.get(table.suffix, (table, []))[1]


def has_tables(results_root: Path | str, sweep: str) -> bool:
    """Whether there are tables of a sweep, made here or published."""
    return facts_path(source(results_root, sweep).root, sweep).is_file()


def _facts(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ReportError(f"{path} does not exist; run the sweep, then `bandwise report`") from None
    except json.JSONDecodeError as error:
        raise ReportError(f"{path} is damaged ({error}); run `bandwise report` on the sweep again") from None
    if found.get("schema_version") != FACTS_SCHEMA:
        version = found.get("schema_version")
        raise ReportError(
            f"{path} has schema_version {version}, this version reads {FACTS_SCHEMA}; make it again"
        )
    return dict(found)


def load(
    results_root: Path | str,
    sweep: str,
    alone: bool = True,
    costs: Costs | None = None,
    verdicts: Verdicts | None = None,
    side: Side = "whole",
) -> StudyData:
    """Read the tables of a sweep, and with `alone` those of sessions of no sweep.

    side: which are taken where some were made here and others are published.
    costs, verdicts: tables that all studies share, where they have been read already.
    Raises ReportError or TableError where one is missing or of another shape.
    """
    root = Path(results_root)
    origin = source(root, sweep, side)
    facts = _facts(facts_path(origin.root, sweep))
    paths = {table: table_path(origin.root, table, sweep) for table in OF_STUDY}
    tables = {
        table.suffix: (table, read_table(path, table))
        for table, path in paths.items()
        if path.is_file() or table not in SINCE_CURVES
    }
    micro = find_table(root, MICRO)
    if "budgets" in facts:
        tables |= {t.suffix: (t, read_table(table_path(origin.root, t, sweep), t)) for t in BUDGET_TABLES}
    tables[MICRO.suffix] = (MICRO, read_table(micro, MICRO) if micro.is_file() else [])
    sessions = load_sessions(root, sweep, side) + (load_sessions(root, None, side) if alone else ())
    decided = (load_verdicts(root) if verdicts is None else verdicts).of(
        {sweep, *(session.name for session in sessions)}
    )
    return StudyData(
        sweep,
        tables,
        facts,
        _panels(tables, facts),
        sessions,
        load_costs(root) if costs is None else costs,
        decided,
        refused_records(root),
        origin,
    )


def _panels(tables: Mapping[str, tuple[Table, list[Row]]], facts: Mapping[str, Any]) -> list[Panel]:
    def of(suffix: str, key: tuple[Any, ...]) -> list[Row]:
        rows = tables[suffix][1] if suffix in tables else []
        return [r for r in rows if (r["workload"], r["sharding"], r["world_size"]) == key]

    panels = []
    for cell in facts["workloads"]:
        key = (cell["workload"], cell["sharding"], cell["world_size"])
        verdict = of("sensitivity", key)
        if len(verdict) != 1:
            raise ReportError(f"the tables disagree about {key}; run `bandwise report` on the sweep again")
        panels.append(
            Panel(
                *key, of("summary", key), of("runs", key), verdict[0], cell, of("ladder", key), of("iso", key)
            )
        )
    order = list(SHARDINGS)
    return sorted(
        panels,
        key=lambda p: (
            p.workload,
            p.world_size,
            order.index(p.sharding) if p.sharding in order else 9,
            p.sharding,
        ),
    )
