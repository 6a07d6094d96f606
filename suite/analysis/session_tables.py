"""From a session's record to its tables: cases, arms, probe, direct runs, and a small JSON file of facts.

The one place where the analysis of speed meets files, the planner and the registry. Everything is derived from the
record of one session and from what the sweep asks for now; the same record gives the same bytes. A session that could
not be held at all leaves tables without rows, and its facts say why and what to do.

*rho* is how much a link weighs for a model, seconds of an fp32 ring over seconds of computing, a step. The ring's seconds are
those of an all-reduce of all parameters in fp32, 2 (n - 1) / n x 32 d bits a rank, at the rate that the probe's fp32 all-reduce
reached on this link. The seconds of computing are those of the reference with its collectives replaced by local copies. A link
with rho well below 1 leaves nothing for compression to win; papers' settings can be placed on the same axis (a share s of a step
spent in all-reduce is rho = s / (1 - s)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from suite.analysis.collect import collect_sweep
from suite.analysis.collect import write as write_study
from suite.analysis.equal_time import net_table, round_rows
from suite.analysis.join import Wanted, differences, joined, speed_only
from suite.analysis.published import (
    FACTS_SCHEMA,
    find_frame,
    load_facts,
    runs_at_all_budgets,
    session_facts_path,
)
from suite.analysis.speed import (
    Check,
    LinkSamples,
    case_table,
    direct_runs,
    interval,
    probe_table,
)
from suite.analysis.speed import alike as composed_alike
from suite.analysis.study import study_of
from suite.analysis.tables import (
    ARMS,
    CASES,
    DIRECT,
    NET,
    NET_ROUNDS,
    PLACE,
    PROBE,
    SESSION,
    Row,
    Table,
    frame_of,
    session_table_path,
    write_table,
)
from suite.links.link import ALL_REDUCE_FP32, REAL
from suite.runs.files import canonical_json, dump, write_atomic
from suite.runs.plan import Plan, make_plan
from suite.runs.spec import MACHINE, RunSpec, same_machine
from suite.runs.store import Store
from suite.runs.sweep import Sweep, load_sweep
from suite.timing.cases import CaseError, kinds_of
from suite.timing.spec import sessions_of
from suite.timing.store import records

UNCOMPRESSED: Final = ("fp32", "bf16")
MEASURED: Final = ("done", "disturbed")
"""States of a session that was held from start to end."""


def collect_session(results_root: Path | str, name: str) -> list[Path] | None:
    """Derive the tables of a session from its record; returns what was written, or None where there is no record.

    Of several records the newest that was held to the end counts, else the newest. A record that is damaged or of another
    version is passed over; `bandwise publish --check` names it.
    """
    root = Path(results_root)
    record = newest(root, name)
    if record is None:
        return None
    return write(root, name, record, Store(root), repeats(root, record))


def collect_study(results_root: Path | str, sweep: Sweep) -> bool:
    """Derive the tables of a sweep from its runs, and those of its sessions.

    Args:
        results_root: Under which runs and records lie.
        sweep: As it was read.

    Returns:
        Whether any run of it is there. Where none is, and of a session without a record, tables that there are stay.
    """
    root, collected = Path(results_root), collect_sweep(results_root, sweep)
    ran = not set(collected.facts["statuses"]) <= {"missing"}
    if ran:
        write_study(root, collected)
    timed = [collect_session(root, name) for name in sessions_of(sweep.name)]  # of the sweep's tables, too
    if ran and any(timed) and sweep.gates:
        write_study(root, collect_sweep(root, sweep))  # net speedups over rho are of the session's, kappa
    return ran


def repeats(results_root: Path, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sessions of the record's name that were held to the end and time the same as the record, it among them, by age.

    The same: cases and what they are of, the uncompressed runs among which the reference was looked for, and the machine.
    """
    found = [one for one in records(results_root, record["name"]) if one["status"] in MEASURED]
    alike = [one for one in found if _alike(one, record) and same_machine(*held_on(one), *held_on(record))]
    return alike or [dict(record)]


TIMED: Final = ("workload", "world_size", "batch_size", "bucket_bytes", "sweep")
"""Keys of what a session times, in its record and in its facts: seconds of sessions that differ in one are not put together."""


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    reference = [record["spec"].get("reference") for record in (one, other)]
    return all(one[key] == other[key] for key in (*TIMED, "uses")) and reference[0] == reference[1]


def newest(results_root: Path, name: str) -> dict[str, Any] | None:
    """The record of a session that counts, or None.

    A session that was held on the emulated cluster and between real nodes keeps both: the newest of each place counts, and the
    real link stands beside the emulated ones. What is compared is compared on one link.
    """
    found = records(results_root, name)
    found.sort(key=lambda record: (record["status"] in MEASURED, record["started"], record["session_id"]))
    last = {between_nodes(record): record for record in found if record["status"] in MEASURED}
    one_gpu = len({record["provenance"].get("gpu") for record in last.values()}) == 1
    if (
        len(last) == 2
        and one_gpu
        and _alike(last[False], last[True])
        and _ids(last[False]) == _ids(last[True])
    ):
        return {**last[False], "links": [*last[False]["links"], *last[True]["links"]]}
    return found[-1] if found else None


def timed_words(facts: Mapping[str, Any]) -> str:
    """What a session has timed and how disturbed it was, by its facts.

    session quick: 100 Mbit/s 6 rounds, 3 of 420 blocks disturbed; 1 Gbit/s not measured: the reference has 2 undisturbed rounds
    """
    links = [
        f"{link['label']} {link['rounds']} rounds, {link['disturbed_blocks']} of {link['blocks']} blocks disturbed"
        + ("" if link["status"] == "done" else f", no numbers: {link['reason']}")
        for link in facts["links"]
    ]
    said = "; ".join(links) or f"nothing was timed: {facts['reason']}"
    return f"session {facts['name']}: {said}"


def between_nodes(record: Mapping[str, Any]) -> bool:
    """Whether a session was held between real nodes."""
    return any(REAL in link["link"] for link in record["links"])


def _ids(record: Mapping[str, Any]) -> set[str]:
    return {case["case_id"] for case in record["cases"]}


def write(
    results_root: Path,
    name: str,
    record: Mapping[str, Any],
    store: Store,
    repeated: Sequence[Mapping[str, Any]] = (),
) -> list[Path]:
    """Write the tables and the facts of a record (`derive`); returns the files."""
    tables, facts = derive(record, store, repeated)
    written = [
        write_table(session_table_path(results_root, table, name), table, frame)
        for table, frame in tables.items()
    ]
    path = session_facts_path(results_root, name)
    write_atomic(path, dump(facts, indent=1) + "\n")
    return [*written, path]


def derive(
    record: Mapping[str, Any],
    store: Store,
    repeated: Sequence[Mapping[str, Any]] = (),
) -> tuple[dict[Table, pd.DataFrame], dict[str, Any]]:
    """The tables of a session, and its facts.

    Args:
        record: The newest session that was held here.
        store: Of the runs that its trainings are joined to.
        repeated: All sessions here that time the same, for net speedups; what is published alike (`Alike`) is added, and stands
            for links that the record was not held over. None: the record alone.

    Returns:
        Frames by table, `rounds` and `net` where the sweep has references, and the facts.
    """
    alike = Alike.of(store.root, record) if repeated else None
    direct, checks = _whole_runs(record, repeated, alike)
    plan, fault = _plan(record)
    wanted, fault = _wanted(record, store, plan) if plan else ([], fault)
    arms = speed_only(record) if record["sweep"] is None else joined(record, wanted, checks)[0]
    cases = case_table(record)
    tables = {CASES: cases, ARMS: arms, PROBE: probe_table(record), DIRECT: direct}
    sessions, links = [_held(one) for one in repeated or [record]], list[dict[str, Any]]()
    if alike:
        over = [link["label"] for link in record["links"]]
        for table, own in tables.items():
            there = alike.frame(table)
            tables[table] = pd.concat([there[~there["link"].isin(over)], own], ignore_index=True)
        links = [link for link in alike.facts["links"] if link["label"] not in over]
    if plan and plan.sweep.references:
        rounds = frame_of(
            NET_ROUNDS, [row for one in repeated or [record] for row in _rounds(one, wanted, checks)]
        )
        if alike:
            there = alike.frame(NET_ROUNDS)
            earlier = there[~there["session_id"].isin([one["session_id"] for one in sessions])]
            rounds = pd.concat([earlier, rounds], ignore_index=True)
            days = set(earlier["session_id"])
            sessions = [one for one in alike.facts["sessions"] if one["session_id"] in days] + sessions
        tables[NET_ROUNDS] = rounds
        runs = runs_at_all_budgets(store.root, plan.sweep.name)
        if runs is not None and wanted:
            part = wanted[0].spec.workload
            label = next(run.panel.workload.label for run in plan.runs if run.spec.workload == part)
            kind = (label, int(record["world_size"]))
            tables[NET] = net_table(study_of(plan), runs, rounds, tables[ARMS], kind)
    facts = _facts(record, fault, cases, sessions)
    facts["links"] = sorted(
        [*links, *facts["links"]], key=lambda link: link["link"].get("rate_bps") or math.inf
    )
    return tables, facts


@dataclass(frozen=True)
class Alike:
    """What is published of a session that timed what a record times, so that a session may be held on several days, each over a
    few links.

    Alike: the same workload, workers, batch, buckets and sweep, on a machine of the same processor, cores and torch
    (`same_machine`), which looked for its reference among the same DDP cases. facts: of the published session. arms: (sharding,
    arm) of the record all of whose cases it timed. cases: of the record.
    """

    root: Path
    facts: Mapping[str, Any]
    arms: frozenset[tuple[str, str]]
    cases: frozenset[str]

    @classmethod
    def of(cls, results_root: Path, record: Mapping[str, Any]) -> Alike | None:
        """What is published alike; None where nothing is."""
        facts = load_facts(results_root, record["name"], "published")
        timed = find_frame(results_root, CASES, f"{SESSION}{record['name']}", "published")
        if facts is None or timed is None or not _same_seconds(facts, record):
            return None
        of_ddp = {case["case_id"] for case in record["cases"] if case["role"] == "ddp"}
        if set(timed.loc[timed["role"] == "ddp", "case_id"]) != of_ddp:
            return None
        known = set(timed["case_id"])
        arms = frozenset(
            (sharding, arm)
            for arm, of_arm in record["uses"].items()
            for sharding, cases in of_arm.items()
            if known.issuperset(cases.values())
        )
        return cls(results_root, facts, arms, frozenset(_ids(record)))

    def frame(self, table: Table) -> pd.DataFrame:
        """Rows of one of its tables, those of arms and cases that are timed now."""
        found = find_frame(self.root, table, f"{SESSION}{self.facts['name']}", "published")
        if found is None:
            return frame_of(table, ())
        if "case_id" in found:
            return found[found["case_id"].isin(self.cases)]
        if "arm" in found:
            return found[pd.MultiIndex.from_frame(found[["sharding", "arm"]]).isin(self.arms)]
        return found

    def direct(self) -> tuple[pd.DataFrame, dict[str, list[Check]]]:
        """What `direct_runs` gives of a record."""
        rows, checks = self.frame(DIRECT), dict[str, list[Check]]()
        found = rows.merge(self.frame(ARMS)[[*PLACE, "composition"]], on=PLACE)
        for row in found.fillna({"composition": "", "reason": ""}).to_dict("records"):
            check = Check(row["arm"], composed_alike(row["composition"]), row["verdict"], row["reason"])
            checks.setdefault(row["link"], []).append(check)
        return rows, checks


def _whole_runs(
    record: Mapping[str, Any], repeated: Sequence[Mapping[str, Any]], alike: Alike | None
) -> tuple[pd.DataFrame, dict[str, list[Check]]]:
    """The table `direct` of a session, and what it says of each link (by label).

    What it did not train whole on a link is of the newest session alike that did, held here or published, so that a session may
    be held again with some of its whole runs.
    """
    table, checks = direct_runs(record)
    earlier = [direct_runs(one) for one in reversed(repeated) if one["session_id"] != record["session_id"]]
    if alike:
        earlier.append(alike.direct())
    held = {link["label"] for link in record["links"]}
    for rows, found in earlier:
        known = pd.MultiIndex.from_frame(table[PLACE])
        more = rows["link"].isin(held) & ~pd.MultiIndex.from_frame(rows[PLACE]).isin(known)
        table = pd.concat([table, rows[more]], ignore_index=True)
        checks = {label: _completed(checks.get(label, []), found.get(label, [])) for label in held}
    return table, checks


def machine_words(found: Mapping[str, Any]) -> str:
    """What decides whether seconds of two machines are put together, of a record or of facts: AMD EPYC, 2 cores, torch 2.13.0."""
    cpu, cores, torch = (found["provenance"][name] for name in MACHINE)
    signature = found["provenance"].get("cpu_signature")
    gpu = found["provenance"].get("gpu")
    return f"{cpu}{f' ({signature})' if signature else ''}, {cores} cores, torch {torch}{f', {gpu}' if gpu else ''}"


def _same_seconds(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two sessions timed the same on the same kind of machine, each a record or facts, with all that facts are of."""
    alike = (canonical_json([found[name] for name in TIMED]) for found in (one, other))
    return len(set(alike)) == 1 and same_machine(*held_on(one), *held_on(other))


def held_on(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The provenance of every session of a record (itself) or of facts."""
    return [found["provenance"], *(held["provenance"] for held in found.get("sessions", ()))]


def _held(record: Mapping[str, Any]) -> Row:
    return {name: record[name] for name in ("session_id", "started", "provenance")}


def _rounds(record: Mapping[str, Any], wanted: list[Wanted], others: Mapping[str, list[Check]]) -> list[Row]:
    """Rows of the table `rounds` of one session. others: checks of what it did not train whole itself."""
    _, own = direct_runs(record)
    checks = {label: _completed(own.get(label, []), others.get(label, [])) for label in {*own, *others}}
    return round_rows(record["session_id"], joined(record, wanted, checks)[1])


def _completed(checks: Sequence[Check], others: Sequence[Check]) -> list[Check]:
    """The checks of a link, with those of others for arms that have none."""
    there = {check.arm for check in checks}
    return [*checks, *(check for check in others if check.arm not in there)]


def _plan(record: Mapping[str, Any]) -> tuple[Plan | None, str]:
    """The plan of the record's sweep as it is now; None where it has none, or with why there is none."""
    if record["sweep"] is None:
        return None, ""
    try:
        return make_plan(load_sweep(record["sweep"])), ""
    except ValueError as error:
        return None, f"the sweep {record['sweep']} cannot be planned: {error}"


def _wanted(record: Mapping[str, Any], store: Store, plan: Plan) -> tuple[list[Wanted], str]:
    """The trainings of a plan, and why none of them can be joined, if so."""
    found: dict[tuple[Any, ...], RunSpec] = {}  # the first seed of every arm and panel
    for run in plan.whole:
        key = (run.arm.label, run.panel.sharding, run.panel.workload.label, run.panel.world_size)
        found.setdefault(key, run.spec)
    alike = {key: run for key, run in found.items() if not differences(record, run)}
    if not alike and found:
        nearest = min((differences(record, spec) for spec in found.values()), key=lambda s: (len(s), s))
        fault = f"the session and the sweep {record['sweep']} are not of the same kind: {nearest}"
    else:
        fault = ""
    chosen = {(arm, sharding): spec for (arm, sharding, *_), spec in (alike or found).items()}
    return [
        Wanted(arm, sharding, spec, plan.sweep.steps, _cases(record, spec), _ran(store, spec.run_id))
        for (arm, sharding), spec in sorted(chosen.items(), key=lambda item: item[0])
    ], fault


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


def _facts(record: Mapping[str, Any], fault: str, cases: pd.DataFrame, held: Sequence[Row]) -> dict[str, Any]:
    kept = (
        "name", "session_id", "status", "reason", "fix", "title", "sweep", "started", "ended", "workload",
        "parameters", "world_size", "batch_size", "bucket_bytes", "shardings", "machine", "provenance",
    )  # fmt: skip
    return {
        "schema_version": FACTS_SCHEMA,
        **{key: record[key] for key in kept if key in record},
        "sessions": list(held),
        "join": {"refused": bool(fault), "reason": fault},
        "links": [_link_facts(record, link, cases) for link in record["links"]],
    }


def _link_facts(record: Mapping[str, Any], link: Mapping[str, Any], cases: pd.DataFrame) -> dict[str, Any]:
    labels = {case["case_id"]: case["label"] for case in record["cases"]}

    def case(case_id: str | None) -> dict[str, Any] | None:
        return None if case_id is None else {"case_id": case_id, "label": labels[case_id]}

    blocks = link["blocks"]
    # uncompressed DDP that the rounds show to be faster than the reference, which was chosen before them
    ddp = cases[(cases["link"] == link["label"]) & (cases["role"] == "ddp") & (cases["speedup_low"] > 1)]
    value, reason = rho(record, link)
    return {
        "label": link["label"],
        "link": link["link"],
        "status": link["status"],
        "reason": link["reason"],
        "reference": case(link.get("reference")),
        "default": case(link.get("default")),
        "best": {name: case(found) for name, found in sorted((link.get("best") or {}).items())},
        "faster": ddp.loc[ddp["algorithm"].isin(UNCOMPRESSED), "case"].tolist(),
        "rounds": len({block["round"] for block in blocks}),
        "blocks": len(blocks),
        "disturbed_blocks": sum(bool(block["disturbed"]) for block in blocks),
        "repeated_blocks": sum(block["attempt"] > 0 for block in blocks),
        **{f"{name}_max": _most(blocks, name) for name in ("foreign_share", "steal_share", "load")},
        "rho": value,
        "rho_reason": reason,
    }


def _most(blocks: list[Mapping[str, Any]], name: str) -> float | None:
    return max((block[name] for block in blocks if block.get(name) is not None), default=None)


def rho(record: Mapping[str, Any], link: Mapping[str, Any]) -> tuple[dict[str, float | None] | None, str]:
    """rho of a link with what it is made of, or None and the reason.

    The interval is that of the median of the computing seconds over rounds, None below six; the ring's rate is one number, that
    of the probe's largest fp32 all-reduce.
    """
    samples = LinkSamples(link, record["cases"])
    if not samples.usable:
        return None, link.get("reason") or "the link stayed disturbed"
    found = [(p["bytes"], p["bits_per_s"]) for p in link["probe"] if p["what"] == ALL_REDUCE_FP32]
    rates = [rate for _, rate in sorted(found, reverse=True) if rate and math.isfinite(rate)]
    if not rates:
        return None, "the probe holds no fp32 all-reduce"
    compute = samples.step(link["reference"], "null")
    if compute.empty:
        return None, "no undisturbed block of the reference without communication"
    n, middle, compute_s = record["world_size"], interval(compute), compute.median()
    ring_s = 2 * (n - 1) / n * 32 * record["parameters"] / rates[0]
    value = {
        "value": ring_s / compute_s,
        "low": ring_s / middle.high if middle else None,
        "high": ring_s / middle.low if middle else None,
        "n": len(compute),
        "ring_s": ring_s,
        "compute_s": compute_s,
        "bits_per_s": rates[0],
    }
    return value, ""
