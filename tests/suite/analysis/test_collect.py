"""From run folders to tables: what is in them, what became of failures and of curves, and bytes that do not move."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from suite.analysis.check import check_study
from suite.analysis.collect import collect, write
from suite.analysis.tables import BUDGET_SWEEP, CURVES, RUNS, SENSITIVITY, SUMMARY
from suite.runs.store import Status, Store
from tests.suite.analysis import made_up_ladder as ladder
from tests.suite.analysis import made_up_study as made
from tests.suite.analysis.made_up_curves import keep, spec_of

BASELINES = {"allreduce-lion", "allreduce-sgd"}
RANKED = {*BASELINES, "lion-cub-1bit never", "local-sgd H=16", "global-qsgd standard", "control-random-k"}


@pytest.fixture
def study():
    return made.study_of()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folders of the whole study, made once; tests change copies."""
    root = tmp_path_factory.mktemp("finished")
    made.run_all(root, made.study_of())
    return root


@pytest.fixture
def store(tmp_path, finished):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return Store(tmp_path)


def row_of(rows, arm, sharding="iid", **match):
    found = [r for r in rows if r["arm"] == arm and r["sharding"] == sharding and match.items() <= r.items()]
    assert len(found) == 1
    return found[0]


def test_the_same_folders_give_the_same_bytes(tmp_path, study, store):
    files = write(tmp_path, collect(tmp_path, study))
    before = {path.name: path.read_bytes() for path in files}
    entries = replace(study, entries=tuple(reversed(study.entries)), arms=tuple(reversed(study.arms)))
    write(tmp_path, collect(tmp_path, entries))
    assert {path.name: path.read_bytes() for path in files} == before
    names = ("curves.csv", "runs.csv", "sensitivity.csv", "study.json", "summary.csv", "tuning.csv")
    assert sorted(before) == [f"made-up-{name}" for name in names]


def test_no_p_values_unless_the_sweep_ranks_and_could(tmp_path):
    chosen = tuple(m for m in made.MADE if m.arm.name in RANKED)
    study = made.study_of(seeds=9, ranks=True, made=chosen)
    made.run_all(tmp_path, study, chosen)
    ranked = collect(tmp_path, study).rows(SUMMARY)
    worst = row_of(ranked, "lion-cub-1bit never", "by-class")
    assert worst["p_exact"] == 2**-8
    assert worst["p_holm"] == pytest.approx(3 * 2**-8)
    assert row_of(ranked, "control-random-k")["p_exact"] is None
    tested = [r for r in ranked if r["p_holm"] is not None]
    assert [r["arm"] for r in tested] == sorted(RANKED - BASELINES - {"control-random-k"}) * 2
    assert all(r["p_exact"] <= r["p_holm"] for r in tested)
    few = made.study_of(seeds=6, ranks=True, made=chosen)
    assert all(r["p_exact"] is None for r in collect(tmp_path, few).rows(SUMMARY))
    assert all(r["p_exact"] is None for r in collect(tmp_path, replace(study, ranks=False)).rows(SUMMARY))


def test_a_failed_baseline_seed_takes_its_pairs_with_it(tmp_path, study, store):
    made.fail(store, study, "allreduce-adamw", "iid", 3, Status("oom", "step 4: out of memory"))
    row = row_of(collect(tmp_path, study).rows(SUMMARY), "local-adamw H=4")
    assert (row["n_done"], row["n_pairs"], row["equal"]) == (6, 5, "undecided")
    assert row["ci_low"] is not None
    assert row["diff_low"] is None


def test_results_of_older_code_are_marked_and_not_ranked(tmp_path):
    chosen = tuple(m for m in made.MADE if m.arm.name in RANKED)
    study = made.study_of(seeds=9, ranks=True, made=chosen)
    made.run_all(tmp_path, study, chosen)

    def moved(name):
        sources = ["moved" if name in arm.name else made.SOURCE for arm in study.arms]
        arms = [replace(arm, source_hash=source) for arm, source in zip(study.arms, sources, strict=True)]
        return collect(tmp_path, replace(study, arms=tuple(arms)))

    found = moved("H=16")
    assert {row["arm"] for row in found.rows(RUNS) if row["stale"]} == {"local-sgd H=16"}
    rows = {row["arm"]: row for row in found.rows(SUMMARY) if row["sharding"] == "by-class"}
    assert (rows["local-sgd H=16"]["n_stale"], rows["local-sgd H=16"]["p_exact"]) == (9, None)
    assert rows["lion-cub-1bit never"]["p_holm"] == pytest.approx(3 * 2**-8)
    rows = {row["arm"]: row for row in moved("lion").rows(SUMMARY) if row["sharding"] == "iid"}
    assert rows["lion-cub-1bit never"]["p_exact"] is None
    assert rows["local-sgd H=16"]["p_exact"] is not None


def test_a_workload_that_supports_no_verdict_gives_none(tmp_path, store):
    study = made.study_of()
    judged = collect(tmp_path, study).rows(SUMMARY)
    assert {"yes", "no"} <= {row["equal"] for row in judged}
    yardstick = replace(study.yardsticks["digits-mlp"], no_verdict="because of something")
    found = collect(tmp_path, replace(study, yardsticks={"digits-mlp": yardstick}))
    assert {row["equal"] for row in found.rows(SUMMARY)} == {None, "not sensitive"}
    assert {row["sensitive"] for row in found.rows(SENSITIVITY)} == {False}
    assert all(str(row["reason"]).endswith("because of something") for row in found.rows(SENSITIVITY))


def test_controls_of_an_optimizer_that_no_method_uses_take_no_verdict_back(tmp_path):
    by_name = {one.arm.name: one for one in made.MADE}
    hidden = replace(by_name["control-no-communication"], losses=(0.0, 0.0))
    seen = replace(
        by_name["control-one-worker"], arm=made.arm("control-one-worker", "control", "allreduce-adamw", True)
    )
    names = ("allreduce-sgd", "allreduce-adamw", "apmsqueeze")
    arms = (*(by_name[name] for name in names), hidden, seen)
    for i, (few, sensitive) in enumerate(((arms, True), ((*arms, by_name["local-sgd H=4"]), False))):
        study = made.study_of(made=few)
        made.run_all(tmp_path / str(i), study, few)
        (row,) = [r for r in collect(tmp_path / str(i), study).rows(SENSITIVITY) if r["sharding"] == "iid"]
        assert row["sensitive"] is sensitive, row["reason"]
        assert sensitive or "control-no-communication cannot be told" in row["reason"]


def test_a_diverged_rung_is_counted_and_moves_nothing_else(tmp_path):
    study = ladder.study_of()
    store = ladder.run_all(tmp_path, study)
    before = collect(tmp_path, study)
    spec = next(e.spec for e in study.entries if (e.arm, e.budget) == ("qsr-sgd", 1.41))
    made.finish(store, spec, Status("diverged", "training loss is inf at step 9"), store.result(spec.run_id))
    found = collect(tmp_path, study)
    assert found.rows(SUMMARY) == before.rows(SUMMARY)
    lost = {
        (r["arm"], r["budget"]): r["n_diverged"] for r in found.rows(BUDGET_SWEEP) if r["sharding"] == "iid"
    }
    assert {key for key, count in lost.items() if count} == {("qsr-sgd", 1.41)}


# ---- curves

ARMS = ("allreduce-sgd", "local-sgd H=16", "global-qsgd standard")
CHOSEN = tuple(m for m in made.MADE if m.arm.name in ARMS)
THREE = made.study_of(made=CHOSEN)
SGD, LOCAL, QUANTISED = ARMS
PATH = [50.0, 90.0, 95.0, 97.0]
"""What the baseline has after 50, 100, 150 and 200 steps."""


@pytest.fixture
def with_curves(tmp_path: Path) -> Store:
    """Six seeds of three arms, all on the baseline's path, with a tenth of the baseline's bytes."""
    store = made.run_all(tmp_path, THREE, CHOSEN)
    for entry in THREE.entries:
        keep(store, entry.spec, PATH, 10.0 if entry.arm == SGD else 1.0)
    return store


def test_runs_of_earlier_versions_have_steps_and_no_bytes(with_curves: Store) -> None:
    keep(with_curves, spec_of(THREE, LOCAL, 3), PATH, None)
    sent = [
        r["wire_bytes"]
        for r in collect(with_curves.root, THREE).rows(CURVES)
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


def test_curves_that_are_refused_are_named_and_break_nothing_else(with_curves: Store) -> None:
    """Each of another run, all of one arm but the last one."""
    cells = [(LOCAL, seed) for seed in range(6)] + [(QUANTISED, 2)]
    damaged = {}
    for (arm, seed), text in zip(cells, REFUSED, strict=True):
        spec = spec_of(THREE, arm, seed)
        (with_curves.folder(spec.run_id) / "metrics.jsonl").write_text(text)
        damaged[spec.run_id] = REFUSED[text]
    collected = collect(with_curves.root, THREE)
    assert {row["status"] for row in collected.rows(RUNS)} == {"done"}
    drawn = {(row["arm"], row["seed"]) for row in collected.rows(CURVES) if row["sharding"] == "iid"}
    assert drawn == {(arm, seed) for arm in ARMS for seed in range(6)} - set(cells)
    readable = [one for one in check_study(with_curves.root, THREE) if one.rule == "readable"]
    assert len(readable) == len(damaged)
    for run_id, reason in damaged.items():
        (one,) = [one for one in readable if run_id in one.subject]
        assert "metrics.jsonl" in one.what
        assert reason in one.what
