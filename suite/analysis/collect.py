"""Run folders to tables: every planned run is a row, whatever became of it.

`collect` reads the folders of a study's runs and nothing else, so other sweeps in the same results tree do not leak in. A run
that failed keeps its status and reason and has no value; a run that was never started is a row with the status *missing*. What
a run noted as it trained lies beside its result, in `metrics.jsonl`, and is read with the same doubt: a curve that is damaged,
or does not end where the result says, is refused by name, the run keeps its result and has no curve. Where the whole test part
would take long, all points of a curve are of the same part of it. `write` puts the tables under results/tables beside a small
JSON file with what a table cannot hold.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from suite.analysis.equal_time import worth_table
from suite.analysis.published import ATTRIBUTES, FACTS_SCHEMA, counted, facts_path
from suite.analysis.summary import (
    Arm,
    Entry,
    Study,
    Yardstick,
    ends_of,
    interval_by,
    refuse_two_of_a_seed,
    study_of,
    summarise,
    tuning_rows,
)
from suite.analysis.tables import (
    ARM,
    BUDGET_RUNS,
    BUDGET_SWEEP,
    CURVES,
    RUN,
    RUNS,
    SENSITIVITY,
    SUMMARY,
    TUNING,
    WORTH,
    Row,
    Table,
    Value,
    checked,
    frame_of,
    rows_of,
    table_path,
    to_csv,
)
from suite.runs.files import RefusedError, canonical_json, dump, write_atomic
from suite.runs.plan import make_plan
from suite.runs.spec import is_older
from suite.runs.store import AGAIN, LIVE, Status, Store
from suite.runs.sweep import WHOLE, Sweep, load_sweep

SYNCHRONISING: Final = ("average", "sync")
ENDED: Final = ("done", "diverged")
"""What a run is that has a curve: others say nothing of the method."""
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


# ---- curves


def read_curve(store: Store, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluations of a run with this result, in order; none where it kept none. Raises `RefusedError`."""
    run_id, metric = result["run_id"], result["metric"]
    lines = store.metrics(run_id)
    path = store.folder(run_id) / "metrics.jsonl"
    for number, line in enumerate(lines, start=1):
        for name in {metric, "nll"} & line.keys():
            if isinstance(line[name], bool) or not isinstance(line[name], int | float | None):
                raise RefusedError(
                    path, f"is refused (line {number}: {name} is {line[name]!r}, not a number)", AGAIN
                )
    if lines and result["status"] == "done":
        last = lines[-1]
        if (last["step"], last["train_loss"]) != (result["steps"], result["train_loss_last"]):
            raise RefusedError(path, "is refused (it does not end as result.json does)", AGAIN)
    return lines


def curves_of(store: Store, study: Study, results: Mapping[str, Mapping[str, Any] | None]) -> pd.DataFrame:
    """The table `curves`: a row an evaluation of every run that is done or has diverged.

    Args:
        store: Where the runs lie.
        study: Whose runs of budget 1 are read.
        results: What they ended with, by run id; None where there is none that can be used.

    Returns:
        The table; a run whose curve is refused has no row (`bandwise publish --check` names it).
    """
    rows = (row for entry in study.whole for row in _curve_rows(store, entry, results[entry.spec.run_id]))
    return frame_of(CURVES, rows)


def _curve_rows(store: Store, entry: Entry, result: Mapping[str, Any] | None) -> Iterable[Row]:
    if result is None or result["status"] not in ENDED or "metric" not in result:
        return
    try:
        lines = read_curve(store, result)
    except RefusedError:
        return  # `bandwise publish --check` names it
    for line in lines:
        yield {
            "workload": entry.workload,
            "sharding": entry.spec.sharding,
            "world_size": entry.spec.world_size,
            "arm": entry.arm,
            "seed": entry.spec.seed,
            "step": line["step"],
            "value": _float(line.get(result["metric"])),
            "nll": _float(line.get("nll")),
            "train_loss": _float(line["train_loss"]),
            "wire_bytes": _float(line.get("wire_bytes")),
        }


def _float(value: Any) -> Value:
    return None if value is None else float(value)


# ---- budgets


def budget_table(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """The table `ladder`: a row an arm and budget.

    Args:
        study: Its arms, and how its workloads are judged.
        runs: Rows of the table `runs` of all budgets, with `budget`.

    Returns:
        The table.

    Raises:
        StudyError: An arm has two runs of one seed and budget.
    """
    refuse_two_of_a_seed(study, runs, "budget")
    place = [*ARM, "budget"]
    several = runs.groupby(ARM)["budget"].transform("nunique") > 1
    ordered = runs[several].sort_values([*RUN, "budget"])
    done = ordered[ordered["status"] == "done"]
    every = ordered.groupby(place)
    table = pd.DataFrame(
        {
            "steps": every["steps"].first(),
            "n": every.size(),
            "n_done": done.groupby(place).size(),
            "n_diverged": (ordered["status"] == "diverged").groupby([ordered[name] for name in place]).sum(),
            "mean": done.groupby(place)["value"].mean(),
        }
    ).join(ends_of(interval_by(done, "value", place), "ci"))
    table = table.fillna({"n_done": 0}).astype({"n_done": "int64"}).reset_index()
    yards = [study.yardsticks[workload] for workload in table["workload"]]
    return checked(
        BUDGET_SWEEP, table.assign(metric=[yard.metric for yard in yards], unit=[yard.unit for yard in yards])
    )


# ---- files


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
