"""From a session's record to its tables: cases, arms, probe, direct runs, bounds, and a small JSON file of facts.

The one place where the analysis of speed meets files, the planner and the registry. Everything is derived from the
record of one session and from what the sweep asks for now; the same record gives the same bytes. A session that could
not be held at all leaves tables without rows, and its facts say why and what to do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from suite.analysis.bounds import BOUNDS, bound_rows
from suite.analysis.direct import direct_rows
from suite.analysis.iso_seconds import climbs, iso_second_rows
from suite.analysis.join import Wanted, differences, joined_rows
from suite.analysis.ladder_columns import ISO_SECONDS
from suite.analysis.published import SESSION, Side, source
from suite.analysis.rho import rho
from suite.analysis.speed import case_rows, probe_rows
from suite.analysis.speed_columns import ARMS, CASES, DIRECT, PROBE, session_facts_path, session_table_path
from suite.analysis.speed_only import speed_only_rows
from suite.analysis.stages import STAGES, stage_rows
from suite.analysis.tables import Row, TableError, write_table
from suite.runs.files import dump, read, write_atomic
from suite.runs.plan import Plan, make_plan
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.runs.sweep import Sweep, load_sweep
from suite.timing.cases import CaseError, Uses, kinds_of, parts_of
from suite.timing.spec import lender_of, load_session
from suite.timing.store import records

FACTS_SCHEMA: Final = 1
UNCOMPRESSED: Final = ("fp32", "bf16")
MEASURED: Final = ("done", "disturbed")
"""States of a session that was held from start to end."""


def collect_session(results_root: Path | str, name: str, sweep: Sweep | None = None) -> list[Path] | None:
    """Derive the tables of a session from its record; returns what was written, or None where there is no record.

    Of several records the newest that was held to the end counts, else the newest. sweep: what the session is joined
    to, where it is not a shipped one. A record that is damaged
    or of another version is passed over; `bandwise check` names it.
    """
    root = Path(results_root)
    record = newest(root, name) or borrowed(root, name)
    if record is None:
        return None
    return write(root, name, record, Store(root), sweep)


def newest(results_root: Path, name: str) -> dict[str, Any] | None:
    """The record of a session that counts, or None."""
    found = records(results_root, name)
    found.sort(key=lambda record: (record["status"] in MEASURED, record["started"], record["session_id"]))
    return found[-1] if found else None


def write(
    results_root: Path, name: str, record: Mapping[str, Any], store: Store, sweep: Sweep | None = None
) -> list[Path]:
    """Write the tables and the facts of a record; returns the files. One of `stages` only where the record has them."""
    tables, facts = derive(record, store, sweep)
    written = [
        write_table(session_table_path(results_root, table, name), table, tables[table.suffix])
        for table in (CASES, ARMS, PROBE, DIRECT, BOUNDS, STAGES, ISO_SECONDS)
        if table.suffix in tables
    ]
    path = session_facts_path(results_root, name)
    write_atomic(path, dump(facts, indent=1) + "\n")
    return [*written, path]


def derive(
    record: Mapping[str, Any], store: Store, sweep: Sweep | None = None
) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """Rows by table suffix, and the facts; a table `iso-seconds` where the sweep has a budget ladder."""
    direct, checks = direct_rows(record)
    plan, fault = _plan(record, sweep)
    wanted, fault = _wanted(record, store, plan) if plan else ([], fault)
    of_sweep = record["sweep"] is not None
    arms = joined_rows(record, wanted, checks) if of_sweep else speed_only_rows(record)
    tables = {
        CASES.suffix: case_rows(record),
        ARMS.suffix: arms,
        PROBE.suffix: probe_rows(record),
        DIRECT.suffix: direct,
        BOUNDS.suffix: bound_rows(record),
    }
    if stages := stage_rows(record):
        tables[STAGES.suffix] = stages
    if plan and len(plan.sweep.budgets) > 1:
        tables[ISO_SECONDS.suffix] = iso_second_rows(record, climbs(store.root, plan, wanted), arms)
    return tables, _facts(record, fault)


def _plan(record: Mapping[str, Any], sweep: Sweep | None) -> tuple[Plan | None, str]:
    """The plan of the record's sweep as it is now; None where it has none, or with why there is none."""
    if record["sweep"] is None:
        return None, ""
    try:
        named = sweep is not None and sweep.name == record["sweep"]
        return make_plan(sweep if sweep and named else load_sweep(str(record["sweep"]))), ""
    except ValueError as error:
        return None, f"the sweep {record['sweep']} cannot be planned: {error}"


def _wanted(record: Mapping[str, Any], store: Store, plan: Plan) -> tuple[list[Wanted], str]:
    """The trainings of a plan, and why none of them can be joined, if so."""
    found = _trainings(plan)
    alike = {key: run for key, run in found.items() if not differences(record, run)}
    if not alike and found:
        nearest = min((differences(record, spec) for spec in found.values()), key=lambda s: (len(s), s))
        fault = f"the session and the sweep {record['sweep']} are not of the same kind: {nearest}"
    else:
        fault = ""
    chosen = {(arm, sharding): spec for (arm, sharding, *_), spec in (alike or found).items()}
    return [
        Wanted(arm, sharding, spec, _cases(record, spec), _ran(store, spec.run_id))
        for (arm, sharding), spec in sorted(chosen.items(), key=lambda item: item[0])
    ], fault


def _trainings(plan: Plan) -> dict[tuple[Any, ...], RunSpec]:
    """The spec of the first seed of every arm and panel."""
    found: dict[tuple[Any, ...], RunSpec] = {}
    for run in plan.whole:
        key = (run.arm.label, run.panel.sharding, run.panel.workload.label, run.panel.world_size)
        found.setdefault(key, run.spec)
    return found


def _cases(record: Mapping[str, Any], spec: RunSpec) -> dict[str, str]:
    """The cases that a training needs by its options and today's code; only rounds of the lengths that were timed."""
    try:
        found = kinds_of(spec.algorithm, record["spec"]["rounds_h"])
    except CaseError:
        return {}
    return {kind: case.case_id for kind, case in found.items()}


def _ran(store: Store, run_id: str) -> dict[str, int] | None:
    """How many steps of which kind a finished run took; None where it has not finished."""
    result = store.result(run_id)
    if result is None or result["status"] != "done":
        return None
    return dict(result["steps_by_kind"])


def borrowed(results_root: Path, name: str) -> dict[str, Any] | None:
    """The record of the session whose one this session borrows until it is held itself, joined to this one's sweep by
    the cases that its arms need; None where it borrows none.
    """
    lender = lender_of(name)
    record = newest(results_root, lender) if lender else None
    if record is None:
        return None
    session = load_session(name)
    timed = {case["case_id"] for case in record["cases"]}
    uses: Uses = {}
    for arm, sharding, part in parts_of(session):
        kinds = kinds_of(part, record["spec"]["rounds_h"])
        there = {kind: case.case_id for kind, case in kinds.items() if case.case_id in timed}
        if there:
            uses.setdefault(arm, {})[sharding] = there
    sweep = None if session.sweep is None else session.sweep.name
    own = {
        "name": name,
        "title": session.title,
        "sweep": sweep,
        "shardings": list(session.shardings),
        "uses": uses,
    }
    return {**record, **own, "lender": lender}


def _facts(record: Mapping[str, Any], fault: str) -> dict[str, Any]:
    kept = (
        "name", "session_id", "status", "reason", "fix", "title", "sweep", "started", "ended", "workload",
        "parameters", "world_size", "batch_size", "bucket_bytes", "shardings", "machine", "provenance",
    )  # fmt: skip
    return {
        "schema_version": FACTS_SCHEMA,
        **{key: record[key] for key in (*kept, "lender") if key in record},
        "join": {"refused": bool(fault), "reason": fault},
        "links": [_link_facts(record, link) for link in record["links"]],
    }


def _link_facts(record: Mapping[str, Any], link: Mapping[str, Any]) -> dict[str, Any]:
    labels = {case["case_id"]: case["label"] for case in record["cases"]}

    def case(case_id: str | None) -> dict[str, Any] | None:
        return None if case_id is None else {"case_id": case_id, "label": labels[case_id]}

    blocks = link["blocks"]
    value, reason = rho(record, link)
    return {
        "label": link["label"],
        "link": link["link"],
        "status": link["status"],
        "reason": link["reason"],
        "reference": case(link.get("reference")),
        "default": case(link.get("default")),
        "best": {name: case(found) for name, found in sorted((link.get("best") or {}).items())},
        "faster": _faster(record, link),
        "rounds": len({block["round"] for block in blocks}),
        "blocks": len(blocks),
        "disturbed_blocks": sum(bool(block["disturbed"]) for block in blocks),
        "repeated_blocks": sum(block["attempt"] > 0 for block in blocks),
        **{f"{name}_max": _most(blocks, name) for name in ("foreign_share", "steal_share", "load")},
        "rho": value,
        "rho_reason": reason,
    }


def _faster(record: Mapping[str, Any], link: Mapping[str, Any]) -> list[str]:
    """Uncompressed DDP that the rounds show to be faster than the reference, which was chosen before them."""
    rows = [row for row in case_rows({**record, "links": [link]}) if row["algorithm"] in UNCOMPRESSED]
    return [str(row["case"]) for row in rows if row["role"] == "ddp" and (row["speedup_low"] or 0) > 1]  # type: ignore[operator]


def _most(blocks: list[Mapping[str, Any]], name: str) -> float | None:
    return max((block[name] for block in blocks if block.get(name) is not None), default=None)


def load_facts(results_root: Path | str, name: str, side: Side = "whole") -> dict[str, Any] | None:
    """The facts of a session's tables, or None where there are none. Raises TableError for another version.

    side: which are taken where some were made here and others are published.
    """
    path = session_facts_path(source(results_root, f"{SESSION}{name}", side).root, name)
    text = read(path)
    if text is None:
        return None
    try:
        found = dict(json.loads(text))
    except json.JSONDecodeError as error:
        raise TableError(f"{path} is damaged ({error}); run `bandwise report` again") from None
    if found.get("schema_version") != FACTS_SCHEMA:
        raise TableError(
            f"{path} has schema_version {found.get('schema_version')}, this version reads {FACTS_SCHEMA}; "
            "run `bandwise report` again"
        )
    return found
