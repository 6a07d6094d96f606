"""A made-up timing session whose truth is known: what every kind of step takes is chosen, and so is every disturbance.

All blocks of a round share a factor, as a slow minute of a machine would; ratios within a round are therefore exact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from suite.analysis.published import session_facts_path
from suite.analysis.session_tables import derive
from suite.analysis.speed import planned_kinds
from suite.analysis.tables import SPEED_TABLES, rows_of, session_table_path, write_table
from suite.runs.files import dump
from suite.runs.plan import make_plan
from suite.runs.spec import resolve_algorithm
from suite.runs.store import Store
from suite.runs.sweep import load_sweep
from suite.timing.cases import kinds_of
from suite.timing.store import Case
from tests.suite.analysis.made_up_study import PROVENANCE

ROUNDS = 6
N, BATCH, BUCKET, D = 4, 32, 4 << 20, 301_066
RATE = 1e8
LENGTHS = (1, 4, 16, 64)

SWEEP = """
title: made up
workloads: [digits-mlp]
shardings: [iid, by-class]
world_size: 4
steps: 100
batch_size: 32
seeds: 2
lr: {schedule: cosine, warmup: 10, min_ratio: 0.01}
arms:
  sgd: {algorithm: allreduce-sgd, options: {momentum: 0.9}, lr: 0.1}
  lion: {algorithm: allreduce-lion, lr: 0.0003}
  lion-1bit: {algorithm: lion-cub-1bit, options: {momentum_sync: never}, baseline: lion, lr: 0.0003}
  lion-1bit-10:
    {algorithm: lion-cub-1bit, options: {momentum_sync: periodic, sync_every: 10}, baseline: lion, lr: 0.0003}
  local-16: {algorithm: local-sgd, options: {momentum: 0.9, period: 16}, baseline: sgd, lr: 0.1}
  local-8: {algorithm: local-sgd, options: {momentum: 0.9, period: 8}, baseline: sgd, lr: 0.1}
  qsr: {algorithm: qsr-sgd, options: {momentum: 0.9, h_base: 4}, per_lr: {alpha: 2.0}, baseline: sgd, lr: 0.1}
  squeeze: {algorithm: apmsqueeze, baseline: sgd, lr: 0.001}
  silence: {algorithm: control-no-communication, options: {momentum: 0.9}, baseline: sgd, control: true, lr: 0.1}
"""

STEP_S = {"step": 0.1, "sync": 0.08, "warm-up": 0.12, "compressed": 0.03}
LION_S = 0.02
REFERENCE_S, DEFAULT_S = 0.05, 0.1


def round_truth_s(h: int) -> float:
    """Seconds of a round of h steps: a straight line, so that interpolation is exact."""
    return 0.06 + 0.01 * h


def truth_s(case: Mapping[str, Any]) -> float:
    """Seconds a unit of a case in a round without a factor."""
    if case["role"] == "ddp":
        return REFERENCE_S if case["algorithm"] == "bf16" else DEFAULT_S
    if case["kind"].startswith("round-"):
        return round_truth_s(case["unit_steps"])
    return LION_S if case["algorithm"] == "lion-cub-1bit" and case["kind"] == "step" else STEP_S[case["kind"]]


def factor(number: int) -> float:
    """What all blocks of a round have in common."""
    return 1 + 0.3 * math.sin(number + 1)


def write_sweep(folder: Path, text: str = SWEEP) -> Path:
    """The made-up sweep as a file."""
    path = folder / "made-up-sweep.yaml"
    path.write_text(text)
    return path


def block(
    case: Mapping[str, Any], number: int, mode: str = "run", seconds: float | None = None
) -> dict[str, Any]:
    """One block: three units around the truth, their median exactly there."""
    true = truth_s(case) * factor(number) * {"run": 1.0, "null": 0.4, "serial": 1.2}[mode]
    middle = true if seconds is None else seconds
    phases = {
        "forward_backward": 0.01,
        "encode": 0.002,
        "communication": 0.05,
        "decode": 0.003,
        "update": 0.001,
    }
    return {
        "round": number,
        "position": 0,
        "attempt": 0,
        "case_id": case["case_id"],
        "mode": mode,
        "unit_s": middle,
        "unit_seconds": [middle, 0.9 * middle, 1.5 * middle],
        "spread": 0.02,
        "phases": {**phases, "plan": 0.0001} if mode == "serial" and case["role"] == "method" else None,
        "foreign_share": 0.01 * number,
        "steal_share": 0.0,
        "load": 3.5,
        "disturbed": False,
        "reason": "",
    }


def ddp(algorithm: str, bucket: int) -> dict[str, Any]:
    """A case of torch's own."""
    case = Case(
        "ddp", f"DDP {algorithm}, {bucket} MB buckets", "step", 1, algorithm, {"bucket_cap_mb": bucket}
    )
    return {**case.as_dict(), "wire_bytes": None, "received_bytes": None, "path": {}}


DDP = (ddp("fp32", 25), ddp("bf16", 8), ddp("fp32", 1))


@cache
def _trainings(path: Path) -> dict[tuple[str, str], Any]:
    plan = make_plan(load_sweep(str(path)))
    return {(run.arm.label, run.panel.sharding): run.spec for run in reversed(plan.whole)}


def _method_case(case: Case) -> dict[str, Any]:
    sent = {"wire_bytes": 1000.0 * case.unit_steps, "received_bytes": 2000.0 * case.unit_steps}
    return {**case.as_dict(), **sent, "path": {"signs": "compiled"}}


def record(path: Path | None, arms: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A session of the sweep at `path`, or of `arms` alone, over one link that gave numbers."""
    return changed(_of_sweep(path) if path else _record(None, arms))


@cache
def _of_sweep(path: Path) -> dict[str, Any]:
    return _record(path)


def _record(path: Path | None, arms: Mapping[str, Any] | None = None) -> dict[str, Any]:
    if path is not None:
        parts = {key: spec.algorithm for key, spec in _trainings(path).items()}
    else:
        parts = {
            (arm, "-"): resolve_algorithm(chosen["algorithm"], chosen["options"], N, 1000)
            for arm, chosen in (arms or {}).items()
        }
    cases, uses = {case["case_id"]: case for case in DDP}, {}
    for (arm, sharding), part in parts.items():
        for kind, case in kinds_of(part, LENGTHS).items():
            cases.setdefault(case.case_id, _method_case(case))
            uses.setdefault(arm, {}).setdefault(sharding, {})[kind] = case.case_id
    made = {
        "schema_version": 1,
        "name": "made-up",
        "session_id": "20261120T183000Z-ab12cd34",
        "status": "done",
        "reason": "",
        "fix": "",
        "started": "2026-11-20T18:30:00Z",
        "ended": "2026-11-20T18:34:00Z",
        "title": "A made-up session",
        "sweep": None if path is None else str(path),
        "spec": {"rounds_h": list(LENGTHS), "arms": dict(arms or {})},
        "workload": {"name": "digits-mlp", "version": 1, "options": {}},
        "parameters": D,
        "world_size": N,
        "batch_size": BATCH,
        "bucket_bytes": BUCKET,
        "shardings": ["iid", "by-class"] if path else ["-"],
        "provenance": {**PROVENANCE, "commit": "0123456789abcdef"},
        "machine": {"cores": 2, "ranks": 4, "threads_per_rank": 1, "oversubscription": 2.0},
        "cases": list(cases.values()),
        "uses": uses,
        "links": [],
    }
    if path is not None:
        spec = next(iter(_trainings(path).values()))
        made["workload"] = spec.workload.as_dict()
    made["links"] = [link(made)]
    return json.loads(json.dumps(made))


def link(made: Mapping[str, Any]) -> dict[str, Any]:
    """A link with every case in every round and mode."""
    timed = [case for case in made["cases"] if case["options"].get("bucket_cap_mb") != 1]
    return {
        "link": {"workers": N, "rate_bps": RATE, "down_bps": None, "delay_s": 0.0, "stragglers": {}},
        "label": "100 Mbit/s",
        "status": "done",
        "reason": "",
        "probe": [
            {"what": "all-reduce fp32", "bytes": 4_000, "seconds": [0.01] * 6, "bits_per_s": 4e7},
            {"what": "all-reduce fp32", "bytes": 4_000_000, "seconds": [0.6, 0.5, 0.7] * 2, "bits_per_s": 9e7},
            {"what": "round-trip 0-1", "bytes": 4, "seconds": [2e-4, 3e-4, 4e-4], "bits_per_s": 1e5},
        ],
        "screen": [{"case_id": case["case_id"], "unit_seconds": [0.2, 0.1, 0.3]} for case in DDP],
        "reference": DDP[1]["case_id"],
        "default": DDP[0]["case_id"],
        "best": {"fp32": DDP[0]["case_id"], "bf16": DDP[1]["case_id"]},
        "blocks": [
            block(case, number, mode)
            for number in range(ROUNDS)
            for case in timed
            for mode in ("run", "null", "serial")
        ],
        "direct": [],
    }  # fmt: skip


def direct(path: Path, arm: str, ratio: Callable[[int], float]) -> list[dict[str, Any]]:
    """Whole trainings of an arm, i.i.d., a seed a round, such that composed over direct seconds is `ratio` of the round."""
    spec = _trainings(path)[arm, "iid"]
    specs = [replace(spec, seed=number) for number in range(ROUNDS)]
    kinds = planned_kinds(spec)
    whole = composed_truth_s(arm)
    return [
        {
            "round": number,
            "attempt": 0,
            "arm": arm,
            "sharding": "iid",
            "run_id": specs[number].run_id,
            "spec": specs[number].as_dict(),
            "seconds": whole * factor(number) / ratio(number),
            "steps": spec.steps,
            "steps_by_kind": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
            "final": {"accuracy": 97.5, "nll": 0.1},
            "disturbed": False,
        }
        for number in range(ROUNDS)
    ]


def composed_truth_s(arm: str) -> float:
    """Seconds of a whole training of an arm in a round whose factor is 1, worked out by hand."""
    return {
        "sgd": 100 * STEP_S["step"],
        "lion": 100 * STEP_S["step"],
        "lion-1bit": 100 * LION_S,
        "lion-1bit-10": 90 * LION_S + 10 * STEP_S["sync"],
        "local-16": 6 * round_truth_s(16) + round_truth_s(4),
        "local-8": 12 * round_truth_s(8) + round_truth_s(4),
        "squeeze": 15 * STEP_S["warm-up"] + 85 * STEP_S["compressed"],
        "silence": round_truth_s(100),
    }[arm]


def saved(root: Path, made: Mapping[str, Any]) -> Path:
    """The record where a session leaves it."""
    path = root / "sessions" / str(made["name"]) / str(made["session_id"]) / "session.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made))
    return path


def changed(made: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A copy of a record with other fields."""
    return {**deepcopy(dict(made)), **fields}


def derived(record, store):
    """The rows of the tables of a session by suffix, and its facts."""
    tables, facts = derive(record, store)
    return {table.suffix: rows_of(frame) for table, frame in tables.items()}, facts


def arms(record, store):
    """The rows of the table `arms` i.i.d., by arm."""
    return arms_of(derived(record, store)[0])


def arms_of(tables, sharding="iid"):
    """The same of tables that are there."""
    return {row["arm"]: row for row in tables["arms"] if row["sharding"] == sharding}


# ---- tables of sessions, for pages

MACHINE = {
    "cores": 2, "ranks": 4, "threads_per_rank": 1, "oversubscription": 2.0, "allocator": "libc", "governor": None,
    "load_average": [1.0, 1.0, 1.0], "emulated": True, "backend": "gloo", "congestion_control": "reno",
}  # fmt: skip
SLOW, FAST = "100 Mbit/s", "1 Gbit/s"
REFERENCE, DEFAULT = (str(case["label"]) for case in (DDP[1], DDP[0]))
ALONE = {
    name: {"algorithm": name, "options": options}
    for name, options in {
        "lion-cub-1bit": {"momentum_sync": "never"},
        "apmsqueeze": {},
        "qsr-sgd": {"alpha": 0.2},
        "allreduce-sgd": {},
    }.items()
}


def over_links(root: Path, *labels: str, **fields: Any) -> dict[str, Any]:
    """The record of a session `timed`, over links of these labels, which take equally long."""
    made = changed(record(write_sweep(root)), name="timed", **fields)
    made["links"] = [changed(made["links"][0], label=label) for label in labels]
    return made


def write_tables(root: Path, made: Mapping[str, Any], sweep: str | None = "made-up") -> Path:
    """Its tables as those of a session of another sweep, on a whole machine; returns the path of its facts."""
    found, facts = derive(made, Store(root))
    for table in SPEED_TABLES:
        write_table(session_table_path(root, table, made["name"]), table, found[table])
    path = session_facts_path(root, made["name"])
    path.write_text(dump({**facts, "sweep": sweep, "machine": MACHINE}, indent=1) + "\n", encoding="utf-8")
    return path


def write_both(root: Path) -> None:
    """A session over two links, and one of a model that is not trained to the end."""
    timed = over_links(root, SLOW, FAST)
    timed["links"][0]["direct"] = direct(Path(timed["sweep"]), "sgd", lambda number: 0.98 + 0.012 * number)
    write_tables(root, timed)
    gpt = {"name": "code-gpt", "version": 1, "options": {"size": "3.3m"}}
    write_tables(root, changed(record(None, ALONE), name="alone", workload=gpt), None)
