"""What is on record of one run: its folder in the results, or where that is gone (a fresh clone), its row in a table.

A folder holds everything to the bit. A row of a runs table, made here or published, holds the final numbers with nine
digits, and the table of curves beside it the evaluations; the spec is then that run of the sweep's plan which has the id.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from suite.analysis.columns import RUNS
from suite.analysis.ladder_columns import RUNGS
from suite.analysis.published import FOLDER
from suite.analysis.tables import TABLES
from suite.runs.files import parsed, read
from suite.runs.plan import make_plan
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.runs.sweep import load_sweep

RUN_ID: Final = re.compile(r"[0-9a-f]{16}")
COMPARABLE: Final = frozenset({"torch", "python", "system", "cpu"})
"""Facts of a study that are texts, as in a run's provenance."""
PLACES: Final = (TABLES, f"{FOLDER}/{TABLES}", f"{FOLDER}/*/{TABLES}")
"""Where runs have rows: what was made here, what is published, and what is under a label."""


class RecordError(ValueError):
    """Nothing usable is on record of a run; the message says where was looked and what to do."""


@dataclass(frozen=True)
class Recorded:
    """A run as it once ended. `place` is where that stands.

    exact: `outcome` and `metrics` are whole; otherwise they have the numbers of tables, nine digits each, and `metrics` is
    empty where no table has the curve. `attributes`: commit, environment and the like, whatever was recorded.
    """

    spec: RunSpec
    place: str
    exact: bool
    outcome: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


def from_folder(store: Store, run_id: str) -> Recorded | None:
    """The record in the run's folder; None where the run has not ended there. Raises `StoreError` for a damaged one."""
    result = store.result(run_id)
    if result is None:
        return None
    attributes = {**(result.get("provenance") or {}), "path": result.get("path") or {}}
    if changes := attributes.get("changes"):
        attributes["changes"] = changes["sha256"]
    attributes |= {f"source of the {part}": hashed for part, hashed in (result.get("sources") or {}).items()}
    return Recorded(
        store.spec(run_id), str(store.folder(run_id)), True, result, store.metrics(run_id), attributes
    )


def find(root: Path, run_id: str) -> Recorded:
    """The record of a run under a results root: its folder, else its row. Raises `RecordError`."""
    if not RUN_ID.fullmatch(run_id):
        raise RecordError(
            f"{run_id!r} is no run id: one has 16 hex digits, as in the column run_id of a runs table"
        )
    found = from_folder(Store(root), run_id)
    if found is not None:
        return found
    for path, row in _rows(root, run_id):
        if row.get("status") != "missing":
            return _from_row(path, row)
    raise RecordError(
        f"nothing is on record of run {run_id} under {root}: no folder with a result, no row of a runs table; "
        "`bandwise run` carries a planned run out, --results names another results folder"
    )


def _rows(root: Path, run_id: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """Rows of the run in all runs tables, those made here first."""
    for place, suffix in itertools.product(PLACES, (RUNS.suffix, RUNGS.suffix)):
        for path in sorted(root.glob(f"{place}/**/*-{suffix}.csv"), reverse=True):
            text = read(path) or ""
            if run_id in text:
                for row in csv.DictReader(io.StringIO(text, newline="")):
                    if row.get("run_id") == run_id:
                        yield path, row


def _from_row(path: Path, row: Mapping[str, str]) -> Recorded:
    run_id, sweep = row["run_id"], row["sweep"]
    specs = (spec for spec in make_plan(load_sweep(sweep)).specs if spec.run_id == run_id)
    spec = next(specs, None)
    if spec is None:
        commit = row.get("commit") or "the commit of its table"
        raise RecordError(
            f"{path} has run {run_id}, but sweep {sweep} plans no such run any more: check out {commit} and give the "
            "command there"
        )
    names = ("value", "nll", "payload_bytes_per_step", "wire_bytes_per_step", "wire_bytes_per_step_max")
    numbers = {name: float(row[name]) for name in names if row.get(name)}
    attributes = {
        **_of_the_study(path),
        "commit": row.get("commit") or None,
        "environment_hash": row.get("environment") or None,
    }
    outcome = {"status": row["status"], "metric": row["metric"], **numbers}
    return Recorded(spec, str(path), False, outcome, tuple(_curve(path, row)), attributes)


def _curve(path: Path, row: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The run's evaluations in the table beside its row's; none of a rung, nor where tables of an earlier version lack it."""
    if not path.name.endswith("runs.csv"):
        return
    key = ("workload", "sharding", "world_size", "arm", "seed")
    text = read(path.with_name(path.name.removesuffix("runs.csv") + "curves.csv")) or ""
    for line in csv.DictReader(io.StringIO(text, newline="")):
        if all(line.get(name) == row[name] for name in key):
            named = {**line, row["metric"]: line["value"]}
            numbers = (row["metric"], "nll", "train_loss", "wire_bytes")
            yield {"step": int(line["step"])} | {
                name: float(named[name]) for name in numbers if named.get(name)
            }


def _of_the_study(path: Path) -> dict[str, str]:
    """What all runs of a table have in common, by the facts beside it; nothing where they differ or there are none."""
    facts = path.with_name(re.sub(r"(runs|rungs)\.csv$", "study.json", path.name))
    text = read(facts)
    found = parsed(text, facts)["provenance"] if text else {}
    return {name: values[0] for name, values in found.items() if len(values) == 1 and name in COMPARABLE}
