"""On what a table of the cost model was measured: a small JSON file beside it, with nothing of the machine's name or paths."""

from __future__ import annotations

import datetime
import json
import os
import time
from pathlib import Path
from typing import Any

from suite.analysis.columns import Table
from suite.analysis.published import source
from suite.analysis.tables import Row, table_path, write_table
from suite.runs.files import dump, write_atomic
from suite.runs.provenance import provenance
from suite.timing.load import Load, Meter, allocator


class Watch:
    """From its making on: how long it takes, and who else uses the machine."""

    def __init__(self) -> None:
        self._meter = Meter(cpu=family_seconds)
        self._meter.find()
        self._before = self._meter.snapshot()
        self._started = time.monotonic()

    def facts(self, threads: int) -> dict[str, Any]:
        """The facts so far: time, load by others, allocator, provenance. threads: that the measurement used."""
        self._meter.find()  # processes have been started since
        load: Load = self._meter.since(self._before)
        return {
            "ended": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "took_s": round(time.monotonic() - self._started, 1),
            "threads": threads,
            "allocator": allocator(dict(os.environ)),
            "foreign_share": round(load.foreign_share, 4),
            "steal_share": round(load.steal_share, 4),
            "load_average": load.load_average,
            "gpu": "not measured",
            "provenance": provenance(),
        }


def family_seconds(pid: int) -> float:
    """CPU seconds of a process and of its children that have ended. Raises OSError once it is gone."""
    text = Path("/proc", str(pid), "stat").read_text(encoding="utf-8")
    own_and_children = [int(number) for number in text.rpartition(")")[2].split()[11:15]]
    return sum(own_and_children) / os.sysconf("SC_CLK_TCK")


def facts_path(results_root: Path, table: Table) -> Path:
    """Where the facts of a table lie: tables/<suffix>-facts.json."""
    path = table_path(results_root, table)
    return path.with_name(f"{path.stem}-facts.json")


def read_facts(results_root: Path, table: Table) -> dict[str, Any] | None:
    """The facts of a table, None where it has not been measured."""
    try:
        path = facts_path(source(results_root, table.suffix).root, table)
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return facts


def write_with_facts(results_root: Path, table: Table, rows: list[Row], facts: dict[str, Any]) -> Path:
    """Write a table and its facts.

    Args:
        results_root: The results root.
        table: The table.
        rows: Its rows.
        facts: On what it was measured (`Watch.facts`).

    Returns:
        Path of the table.
    """
    path = write_table(table_path(results_root, table), table, rows)
    write_atomic(facts_path(results_root, table), dump(facts, indent=1) + "\n")
    return path
