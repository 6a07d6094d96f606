"""Curves: every evaluation in the table, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.analysis.check import check_study
from suite.analysis.collect import collect
from suite.analysis.study import Study
from suite.analysis.tables import CURVES, RUNS
from suite.runs.store import Store
from tests.suite.analysis import made_up_study as made
from tests.suite.analysis.made_up_curves import keep, spec_of

ARMS = ("allreduce-sgd", "local-sgd H=16", "global-qsgd standard")
CHOSEN = tuple(m for m in made.MADE if m.arm.name in ARMS)
SGD, LOCAL, QUANTISED = ARMS
PATH = [50.0, 90.0, 95.0, 97.0]
"""What the baseline has after 50, 100, 150 and 200 steps."""


@pytest.fixture
def study() -> Study:
    return made.study_of(made=CHOSEN)


@pytest.fixture
def store(tmp_path: Path, study: Study) -> Store:
    """Six seeds of three arms, all on the baseline's path, with a tenth of the baseline's bytes."""
    store = made.run_all(tmp_path, study, CHOSEN)
    for entry in study.entries:
        keep(store, entry.spec, PATH, 10.0 if entry.arm == SGD else 1.0)
    return store


def test_runs_of_earlier_versions_have_steps_and_no_bytes(store: Store, study: Study) -> None:
    keep(store, spec_of(study, LOCAL, 3), PATH, None)
    sent = [
        r["wire_bytes"]
        for r in collect(store.root, study).rows(CURVES)
        if (r["arm"], r["seed"], r["sharding"]) == (LOCAL, 3, "iid")
    ]
    assert sent == [None] * 4


REFUSED = {
    '{"step": 50, "lr": 0.1, "train_loss": 1.0, "accuracy": "<script>"}\n': "line 1: accuracy is '<script>', not a number",
    '{"step": 50, "lr": 0.1, "train_loss": 1.0, "accuracy": 1e999}\n': "refused",
    '{"step": 50, "lr": 0.1}\n': "line 1: key 'train_loss' is missing",
    '{"step": 50, "lr": 0.1, "train_loss": 1.0, "accuracy": 9': "damaged",
    '{"step": 50, "lr": 0.1, "train_loss": 1.0, "accuracy": 9}\n' * 2: "its steps do not rise",
    '{"step": 200, "lr": 0.1, "train_loss": 2.0, "accuracy": 9}\n': "does not end as result.json does",
    "[1]\n": "line 1: the top level must be a mapping, not a list",
}
"""What a file of a curve holds, and what is said of it."""


def test_curves_that_are_refused_are_named_and_break_nothing_else(store: Store, study: Study) -> None:
    """Each of another run, all of one arm but the last one."""
    cells = [(LOCAL, seed) for seed in range(6)] + [(QUANTISED, 2)]
    damaged = {}
    for (arm, seed), text in zip(cells, REFUSED, strict=True):
        spec = spec_of(study, arm, seed)
        (store.folder(spec.run_id) / "metrics.jsonl").write_text(text)
        damaged[spec.run_id] = REFUSED[text]
    collected = collect(store.root, study)
    assert {row["status"] for row in collected.rows(RUNS)} == {"done"}
    drawn = {(row["arm"], row["seed"]) for row in collected.rows(CURVES) if row["sharding"] == "iid"}
    assert drawn == {(arm, seed) for arm in ARMS for seed in range(6)} - set(cells)
    readable = [one for one in check_study(store.root, study) if one.rule == "readable"]
    assert len(readable) == len(damaged)
    for run_id, reason in damaged.items():
        (one,) = [one for one in readable if run_id in one.subject]
        assert "metrics.jsonl" in one.what
        assert reason in one.what
