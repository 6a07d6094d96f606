"""Run folders to tables: every planned run is a row, whatever became of it.

`collect` reads the folders of a study's runs and nothing else, so other sweeps in the same results tree do
not leak in. A run that failed keeps its status and reason and has no value; a run that was never started is a
row with the status *missing*. `write` puts the tables under results/tables beside a small JSON file with
what a table cannot hold.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from suite.analysis.budget_sweep import budget_table
from suite.analysis.columns import (
    BUDGET_RUNS,
    BUDGET_SWEEP,
    CURVES,
    RUNS,
    SENSITIVITY,
    SUMMARY,
    TUNING,
    WORTH,
    Table,
)
from suite.analysis.curves import curves_of
from suite.analysis.equal_time import worth_table
from suite.analysis.published import ATTRIBUTES, FACTS_SCHEMA, counted, facts_path
from suite.analysis.study import Arm, Entry, Study, Yardstick, study_of, tuning_rows
from suite.analysis.summary import summarise
from suite.analysis.tables import Row, frame_of, rows_of, table_path, to_csv
from suite.runs.files import canonical_json, dump, write_atomic
from suite.runs.plan import make_plan
from suite.runs.spec import is_older
from suite.runs.store import LIVE, Status, Store
from suite.runs.sweep import WHOLE, Sweep, load_sweep

SYNCHRONISING = ("average", "sync")
Standing = tuple[Status, dict[str, Any] | None]
"""How a run stands, and its result where there is one that can be used."""


@dataclass(frozen=True)
class Collected:
    """The tables of one study, and its facts: what a reader asks first, as plain JSON values.

    tables: `runs`, which are those of budget 1 and of which summary and sensitivity speak, and all others; those of a sweep over
    budgets only where there is one.
    """

    sweep: str
    tables: Mapping[Table, pd.DataFrame]
    facts: dict[str, Any]

    def rows(self, table: Table) -> list[Row]:
        """The rows of one of the tables; none where the study has no such table."""
        return rows_of(self.tables[table]) if table in self.tables else []


def _per_step(result: Mapping[str, Any], name: str, steps: int) -> float | None:
    total = result.get("bytes", {}).get(name)
    return None if total is None or not steps else total / steps


def _reason(status: Status) -> str | None:
    """The reason without what changes from minute to minute, so that the tables stay the same."""
    if status.state in LIVE:
        return "not finished yet; the same `bandwise sweep` goes on from here"
    return status.reason or None


def _stale(result: Mapping[str, Any], arm: Arm, yardstick: Yardstick) -> bool:
    now = {"algorithm": arm.source_hash, "workload": yardstick.source_hash}
    return is_older(result.get("sources") or {}, now)


def _run_row(standing: Standing, study: Study, entry: Entry) -> Row:
    spec, arm = entry.spec, study.by_name[entry.arm]
    status, found = standing
    result = found or {}
    metric = study.yardsticks[entry.workload].metric
    final = result.get("final") or {}
    if status.state == "done" and metric not in final:
        status = Status(
            "invalid", f"result.json is refused (final lacks the metric {metric} of its workload)"
        )
    done = status.state == "done"
    value = final.get(metric)
    steps = int(result.get("steps") or 0)
    kinds = result.get("steps_by_kind") or {}
    provenance = result.get("provenance") or {}
    return {
        "workload": entry.workload,
        "sharding": spec.sharding,
        "world_size": spec.world_size,
        "arm": arm.name,
        "seed": spec.seed,
        "run_id": spec.run_id,
        "sweep": study.name,
        "algorithm": spec.algorithm.name,
        "family": arm.family,
        "options": canonical_json(spec.algorithm.options),
        "backend": spec.backend,
        "steps": spec.steps,
        "batch_size": spec.batch_size,
        "lr_peak": spec.lr.peak,
        "status": status.state,
        "reason": _reason(status),
        "metric": metric,
        "value": value if done else None,
        "nll": final.get("nll") if done else None,
        "payload_bytes_per_step": _per_step(result, "payload_per_rank_mean", steps),
        "wire_bytes_per_step": _per_step(result, "wire_per_rank_mean", steps),
        "wire_bytes_per_step_max": _per_step(result, "wire_per_rank_max", steps),
        "syncs": sum(int(kinds.get(kind, 0)) for kind in SYNCHRONISING) if result else None,
        "commit": provenance.get("commit"),
        "environment": provenance.get("environment_hash"),
        "stale": _stale(result, arm, study.yardsticks[entry.workload]),
    }


def _finished_at(store: Store, run_id: str) -> float | None:
    note = store.note(run_id)
    return None if note is None else note.updated_s


def _day(moment_s: float | None) -> str | None:
    if moment_s is None:
        return None
    return datetime.datetime.fromtimestamp(moment_s, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def _distinct(provenances: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    return sorted({str(p[key]) for p in provenances if p.get(key) is not None})


def _facts(
    store: Store,
    study: Study,
    states: Iterable[str],
    origins: Sequence[Mapping[str, Any] | None],
) -> dict[str, Any]:
    """Facts of a study. origins: the provenance of each planned run, None of one without a result."""
    provenances = [provenance for provenance in origins if provenance is not None]
    days = {
        day
        for e in study.entries
        if (m := _finished_at(store, e.spec.run_id)) is not None and (day := _day(m)) is not None
    }
    panels = {(e.workload, e.spec.sharding, e.spec.world_size): e.spec for e in study.whole}
    budgets = sorted({entry.budget for entry in study.entries})
    return {
        "schema_version": FACTS_SCHEMA,
        "sweep": study.name,
        "about": study.about,
        "command": study.command,
        "ranks": study.ranks,
        "first_finished": min(days, default=None),
        "last_finished": max(days, default=None),
        "statuses": dict(sorted(Counter(states).items())),
        **({"budgets": budgets} if len(budgets) > 1 else {}),
        "workloads": [
            {
                "workload": label,
                "sharding": sharding,
                "world_size": world_size,
                "steps": spec.steps,
                "batch_size": spec.batch_size,
                "bucket_bytes": spec.bucket_bytes,
                "schedule": spec.lr.schedule,
                "warmup": spec.lr.warmup,
                "metric": study.yardsticks[label].metric,
                "unit": study.yardsticks[label].unit,
                "direction": study.yardsticks[label].direction,
                "margin": study.yardsticks[label].margin,
            }
            for (label, sharding, world_size), spec in sorted(panels.items(), key=lambda item: item[0])
        ],
        "sources": {arm.name: arm.source_hash for arm in study.arms if arm.source_hash},
        "origins": counted(
            ((e.workload, e.spec.sharding, e.spec.world_size), provenance)
            for e, provenance in zip(study.entries, origins, strict=True)
            if provenance is not None
        ),
        "provenance": {key: _distinct(provenances, key) for key in ATTRIBUTES},
    }


def collect(results_root: Path | str, study: Study, tuning: Iterable[Row] = ()) -> Collected:
    """Read every planned run of a study and derive its tables.

    Args:
        results_root: Under which the runs lie.
        study: What was planned.
        tuning: Rows of the table `tuning`, from the tuning sweep, if any.

    Returns:
        The tables. A run whose files are damaged is a row with the status *invalid* and why.

    Raises:
        StoreError: The disk cannot be read.
        StudyError: Runs cannot be compared.
    """
    store = Store(results_root)
    standings = {entry.spec.run_id: store.state(entry.spec.run_id) for entry in study.entries}
    origins = [
        None if result is None else result.get("provenance") or {}
        for _, result in (standings[entry.spec.run_id] for entry in study.entries)
    ]
    every = frame_of(RUNS, [_run_row(standings[entry.spec.run_id], study, entry) for entry in study.entries])
    every["budget"] = [entry.budget for entry in study.entries]
    runs, others = every[every["budget"] == WHOLE], every[every["budget"] != WHOLE]
    curves = curves_of(store, study, {run_id: result for run_id, (_, result) in standings.items()})
    summary, sensitivity = summarise(study, runs)
    tables = {
        RUNS: runs[list(RUNS.names)],
        SUMMARY: summary,
        SENSITIVITY: sensitivity,
        TUNING: frame_of(TUNING, tuning),
        CURVES: curves,
    }
    if len(others):
        tables |= {
            BUDGET_RUNS: others[list(BUDGET_RUNS.names)],
            BUDGET_SWEEP: budget_table(study, every),
        }
    if study.references:
        tables[WORTH] = worth_table(study, every)
    return Collected(
        study.name,
        tables,
        _facts(store, study, every["status"], origins),
    )


def documents(results_root: Path | str, collected: Collected) -> dict[Path, str]:
    """The files of the tables and of the facts, with their text. The same collection gives the same bytes."""
    root = Path(results_root)
    texts = {
        table_path(root, table, collected.sweep): to_csv(table, frame)
        for table, frame in collected.tables.items()
    }
    return {**texts, facts_path(root, collected.sweep): dump(collected.facts, indent=1) + "\n"}


def write(results_root: Path | str, collected: Collected) -> list[Path]:
    """Write the tables and the facts; returns the files."""
    made = documents(results_root, collected)
    for path, text in made.items():
        write_atomic(path, text)
    return list(made)


def collect_sweep(results_root: Path | str, sweep: Sweep | str) -> Collected:
    """The tables of a sweep, given by its name, its file or as read, from the run folders under the root.

    Raises UnknownSweepError, YamlError, StoreError or StudyError, each with what to do.
    """
    found = load_sweep(sweep) if isinstance(sweep, str) else sweep
    return collect(results_root, study_of(make_plan(found)), tuning_rows(found))
