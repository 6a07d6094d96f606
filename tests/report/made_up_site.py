"""A results folder with something of all that a site shows: speed, failures, damage, hostile names, claims."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from suite.analysis.collect import collect, write
from suite.analysis.published import facts_path
from suite.runs.store import Store
from tests.report.conftest import fail_some
from tests.suite.analysis import made_up_session
from tests.suite.analysis import made_up_study as made

RESULTS = Path(__file__).resolve().parents[2] / "results" / "published"
HOSTILE_ARM = '<b onclick="x()">"bad" & é</b>'


def results(root: Path) -> Store:
    """Fill the folder; returns its runs."""
    bad = tuple(
        replace(m, arm=replace(m.arm, name=HOSTILE_ARM)) if m.arm.name == "qsr-sgd" else m for m in made.MADE
    )
    study = made.study_of(made=bad)
    store = made.run_all(root, study, bad)
    fail_some(store, study)
    ids = {(e.arm, e.spec.sharding, e.spec.seed): e.spec.run_id for e in study.entries}
    damaged = store.folder(ids["allreduce-lion", "iid", 3]) / "result.json"
    damaged.write_text(damaged.read_text()[:200])
    (store.folder(ids["local-sgd H=16", "iid", 4]) / "result.json").unlink()
    write(root, collect(root, study))
    made_up_session.write_both(root)
    for name in ("claims.csv", "claims-parts.csv"):
        shutil.copy(RESULTS / "tables" / name, root / "tables" / name)
    facts_path(root, "broken").write_text("{")
    record = root / "sessions" / "timed" / "20270101T000000Z-00000000"
    record.mkdir(parents=True)
    (record / "session.json").write_text('{"schema_version": 1}')
    return store
