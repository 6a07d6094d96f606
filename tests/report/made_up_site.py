"""A results folder with something of all that a site shows: speed, failures, damage, hostile names, claims."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from suite.analysis.collect import collect, write
from suite.analysis.published import facts_path
from suite.runs.files import dump
from suite.runs.store import Status, Store
from tests.report import made_up_speed
from tests.suite.analysis import made_up_study as made

RESULTS = Path(__file__).resolve().parents[2] / "results" / "published"
HOSTILE = 'step 3: </script><script>alert("1")</script> & <img src=x onerror=alert(2)>'
HOSTILE_ARM = '<b onclick="x()">"bad" & é</b>'
WHOLE = ("global-qsgd standard", "iid", 0)
"""The run that has a curve and a ledger."""


def results(root: Path) -> Store:
    """Fill the folder; returns its runs."""
    bad = tuple(
        replace(m, arm=replace(m.arm, name=HOSTILE_ARM)) if m.arm.name == "qsr-sgd" else m for m in made.MADE
    )
    study = made.study_of(made=bad)
    store = made.run_all(root, study, bad)
    made.fail(
        store, study, "apmsqueeze", "by-class", 2, Status("diverged", "training loss is nan at step 57")
    )
    made.fail(store, study, "local-sgd H=4", "iid", 1, Status("error", HOSTILE))
    whole = run_id(study, *WHOLE)
    spec = store.spec(whole)
    result = store.result(whole) or {}
    result["bytes"]["by"] = [ledger(rank) for rank in range(4)]
    result["path"] = {"quantise": "compiled"}
    result["provenance"] = {
        **made.PROVENANCE, "dirty": True, "changes": {"sha256": "ab" * 32, "bytes": 1234},
        "variables": {"OMP_NUM_THREADS": "1"},
    }  # fmt: skip
    made.finish(store, spec, Status("done"), result)
    lines = [
        {"step": 25 * k, "lr": 0.1, "train_loss": 2.0 / k, "accuracy": 90.0 + k, "nll": 0.1}
        for k in range(1, 9)
    ]
    (store.folder(whole) / "metrics.jsonl").write_text("".join(dump(line) + "\n" for line in lines))
    damaged = store.folder(run_id(study, "allreduce-lion", "iid", 3)) / "result.json"
    damaged.write_text(damaged.read_text()[:200])
    (store.folder(run_id(study, "local-sgd H=16", "iid", 4)) / "result.json").unlink()
    write(root, collect(root, study))
    made_up_speed.save_both(root)
    for name in ("claims.csv", "claims-parts.csv"):
        shutil.copy(RESULTS / "tables" / name, root / "tables" / name)
    facts_path(root, "broken").write_text("{")
    record = root / "sessions" / "timed" / "20270101T000000Z-00000000"
    record.mkdir(parents=True)
    (record / "session.json").write_text('{"schema_version": 1}')
    return store


def run_id(study: made.Study, arm: str, sharding: str, seed: int) -> str:
    """Id of a planned run."""
    return next(
        e.spec.run_id for e in study.entries if (e.arm, e.spec.sharding, e.spec.seed) == (arm, sharding, seed)
    )


def ledger(rank: int) -> dict[str, object]:
    """A row of the ledger."""
    return {
        "rank": rank, "calls": 400, "kind": "step", "stage": "gradient", "collective": "all-gather", "group": "world",
        "payload_bytes": 1.2e6, "wire_bytes": 1.8e6 + rank * 4e5, "received_bytes": 1.8e6,
    }  # fmt: skip
