"""Times to a target: known answers, misses that count as infinite, curves that are refused, profiles over cells."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from suite.analysis.check import check_study
from suite.analysis.collect import collect, documents
from suite.analysis.columns import CURVES, PROFILES, RUNS, TO_TARGET
from suite.analysis.study import Study
from suite.analysis.tables import from_csv, table_path
from suite.analysis.to_target import arrivals
from suite.runs.result import Status
from suite.runs.store import Store
from tests.suite.analysis import made_up_curves
from tests.suite.analysis import made_up_study as made
from tests.suite.analysis.made_up_curves import keep, spec_of

ARMS = ("allreduce-sgd", "local-sgd H=16", "global-qsgd standard")
CHOSEN = tuple(m for m in made.MADE if m.arm.name in ARMS)
SGD, LOCAL, QUANTISED = ARMS
PATH = [50.0, 90.0, 95.0, 97.0]
"""What the baseline has after 50, 100, 150 and 200 steps; less the margin of 0.4 the target is 96.6."""


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


def row_of(store: Store, study: Study, arm: str, sharding: str = "iid") -> dict:
    rows = collect(store.root, study).rows(TO_TARGET)
    (found,) = [row for row in rows if (row["arm"], row["sharding"]) == (arm, sharding)]
    return found


def test_known_times(store: Store, study: Study) -> None:
    """Seeds arrive after 50, 100, 100, 150, 200 steps and never: sorted, the median lies between 100 and 150."""
    ends = [97.0, 98.0, 99.0, 96.6, 97.0, 96.5]
    paths = [
        [97.0, 90.0, 97.0, ends[0]],
        [50.0, 96.6, 90.0, ends[1]],
        [50.0, 96.7, 90.0, ends[2]],
        [50.0, 90.0, 95.0, ends[3]],
        [50.0, 90.0, 96.6, ends[4]],
        [50.0, 90.0, 96.59, ends[5]],
    ]
    for seed, path in enumerate(paths):
        keep(store, spec_of(study, LOCAL, seed), path, 1.0)
    row = row_of(store, study, LOCAL)
    assert (row["reference"], row["target"]) == (SGD, pytest.approx(96.6))
    assert (row["n"], row["n_reached"], row["n_diverged"], row["resolution"]) == (6, 5, 0, 50)
    assert (row["steps"], row["steps_low"], row["steps_high"]) == (125, 50, math.inf)
    assert (row["wire_bytes"], row["wire_bytes_low"], row["wire_bytes_high"]) == (125, 50, math.inf)
    # the baseline takes 200 steps and 2,000 bytes with every seed
    assert row["n_pairs"] == 6
    assert (row["steps_ratio"], row["steps_ratio_low"], row["steps_ratio_high"]) == ((2 + 4 / 3) / 2, 0, 4)
    assert (row["bytes_ratio"], row["bytes_ratio_low"], row["bytes_ratio_high"]) == ((20 + 40 / 3) / 2, 0, 40)
    baseline = row_of(store, study, SGD)
    assert (baseline["steps"], baseline["n_pairs"], baseline["steps_ratio"]) == (200, None, None)


def test_at_once_and_never(store: Store, study: Study) -> None:
    for seed in range(6):
        keep(store, spec_of(study, LOCAL, seed), [99.0, 20.0, 20.0, 20.0], 0.0)
        keep(store, spec_of(study, QUANTISED, seed), [20.0] * 4)
    at_once, never = row_of(store, study, LOCAL), row_of(store, study, QUANTISED)
    assert (at_once["n_reached"], at_once["steps"], at_once["wire_bytes"]) == (6, 50, 0)
    assert (at_once["steps_ratio"], at_once["bytes_ratio"]) == (4, math.inf)  # it sent nothing
    assert (never["n_reached"], never["steps"], never["steps_low"]) == (0, math.inf, math.inf)
    assert (never["steps_ratio"], never["bytes_ratio"]) == (0, 0)


def test_a_run_that_diverged_is_a_miss_even_if_it_was_good_before(store: Store, study: Study) -> None:
    for seed in range(4):
        spec = made.fail(
            store, study, LOCAL, "iid", seed, Status("diverged", "training loss is nan at step 57")
        )
        keep(store, spec, [99.0, None])
    row = row_of(store, study, LOCAL)
    assert (row["n"], row["n_reached"], row["n_diverged"]) == (6, 2, 4)
    assert (row["steps"], row["steps_low"], row["steps_high"]) == (math.inf, 200, math.inf)


def test_runs_that_failed_or_left_no_curve_are_counted_out(store: Store, study: Study) -> None:
    made.fail(store, study, LOCAL, "iid", 0, Status("timeout", "stopped after 60 s"))
    (store.folder(spec_of(study, LOCAL, 1).run_id) / "metrics.jsonl").unlink()
    row = row_of(store, study, LOCAL)
    assert (row["n"], row["n_reached"], row["n_pairs"]) == (4, 4, 4)
    assert (row["steps"], row["steps_low"]) == (200, None), "four seeds give a median and no interval"


def test_lower_is_better(store: Store, study: Study) -> None:
    yardstick = replace(made.DIGITS, metric="accuracy", direction="lower")
    flipped = replace(study, yardsticks={"digits-mlp": yardstick})
    for entry in study.entries:
        keep(store, entry.spec, [4.0, 3.0, 2.5, 2.0] if entry.arm != LOCAL else [4.0, 2.4, 2.41, 2.5], 1.0)
    row = row_of(store, flipped, LOCAL)
    assert (row["target"], row["n_reached"], row["steps"]) == (pytest.approx(2.4), 6, 100)


def test_the_target_is_set_by_the_uncompressed_arm_that_ends_worst_and_by_no_method(tmp_path: Path) -> None:
    names = ("allreduce-sgd", "allreduce-lion", "local-sgd H=16")
    chosen = tuple(m for m in made.MADE if m.arm.name in names)
    study = made.study_of(made=chosen)
    store = made.run_all(tmp_path, study, chosen)
    for entry in study.entries:
        end = {"allreduce-sgd": 97.0, "allreduce-lion": 95.0, "local-sgd H=16": 60.0}[entry.arm]
        keep(store, entry.spec, [20.0, end])
    found = collect(tmp_path, study).rows(TO_TARGET)
    assert {row["reference"] for row in found} == {"allreduce-lion"}
    assert [row["target"] for row in found] == [pytest.approx(94.6)] * 6
    for seed in range(4):  # most of its seeds diverge: it sets no target any more
        made.fail(
            store, study, "allreduce-lion", "iid", seed, Status("diverged", "training loss is inf at step 9")
        )
    assert row_of(store, study, LOCAL)["reference"] == "allreduce-sgd"
    for seed in range(4):
        made.fail(
            store, study, "allreduce-sgd", "iid", seed, Status("diverged", "training loss is inf at step 9")
        )
    rows = collect(tmp_path, study).rows(TO_TARGET)
    assert {row["sharding"] for row in rows} == {"by-class"}, "nobody sets a target i.i.d."


def test_runs_of_earlier_versions_have_steps_and_no_bytes(store: Store, study: Study) -> None:
    keep(store, spec_of(study, LOCAL, 3), PATH, None)
    row = row_of(store, study, LOCAL)
    assert (row["n_reached"], row["steps"], row["steps_ratio"]) == (6, 200, 1)
    assert (row["wire_bytes"], row["bytes_ratio"]) == (None, None)
    sent = [
        r["wire_bytes"]
        for r in collect(store.root, study).rows(CURVES)
        if (r["arm"], r["seed"], r["sharding"]) == (LOCAL, 3, "iid")
    ]
    assert sent == [None] * 4


def test_the_table_of_curves_holds_every_evaluation_and_reads_back(store: Store, study: Study) -> None:
    collected = collect(store.root, study)
    assert len(collected.rows(CURVES)) == 3 * 2 * 6 * 4
    texts = documents(store.root, collected)
    rows = from_csv(CURVES, texts[table_path(store.root, CURVES, "made-up")])
    (first,) = [r for r in rows if (r["arm"], r["seed"], r["sharding"], r["step"]) == (SGD, 0, "iid", 50)]
    assert (first["value"], first["nll"], first["train_loss"], first["wire_bytes"]) == (50.0, 0.5, 1.0, 500.0)
    shuffled = replace(study, entries=tuple(reversed(study.entries)))
    assert documents(store.root, collect(store.root, shuffled)) == texts
    again = from_csv(TO_TARGET, texts[table_path(store.root, TO_TARGET, "made-up")])
    assert {row["arm"] for row in again} == set(ARMS)


def test_rungs_of_a_ladder_are_in_no_curve(store: Store, study: Study) -> None:
    """They are evaluated at steps of the whole runs, so that one table could not hold both."""
    alone = collect(store.root, study)
    rungs = [replace(e, spec=replace(e.spec, steps=made.STEPS // 2), budget=0.5) for e in study.entries]
    by_name = {m.arm.name: m for m in CHOSEN}
    for entry in rungs:
        made.finish(store, entry.spec, Status("done"), made.result_of(by_name[entry.arm], entry.spec))
        keep(store, entry.spec, PATH)
    climbed = collect(store.root, replace(study, entries=(*study.entries, *rungs)))
    assert (climbed.rows(CURVES), climbed.rows(TO_TARGET)) == (alone.rows(CURVES), alone.rows(TO_TARGET))
    assert documents(store.root, climbed)


def test_without_curves_there_is_no_row(tmp_path: Path, study: Study) -> None:
    made.run_all(tmp_path, study, CHOSEN)
    collected = collect(tmp_path, study)
    assert (collected.rows(CURVES), collected.rows(TO_TARGET), collected.rows(PROFILES)) == ([], [], [])


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
    assert row_of(store, study, QUANTISED)["n"] == 5
    readable = [one for one in check_study(store.root, study) if one.rule == "readable"]
    assert len(readable) == len(damaged)
    for run_id, reason in damaged.items():
        (one,) = [one for one in readable if run_id in one.subject]
        assert "metrics.jsonl" in one.what
        assert reason in one.what


def four_cells(study: Study) -> Study:
    """The study on two workloads, with two shardings each."""
    twice = [replace(e, workload="other", spec=replace(e.spec, world_size=8)) for e in study.entries]
    yardsticks = {"digits-mlp": made.DIGITS, "other": made.DIGITS}
    return replace(study, entries=(*study.entries, *twice), yardsticks=yardsticks)


def test_profiles_over_four_cells(tmp_path: Path) -> None:
    """In every cell the local arm takes a quarter of the steps; the quantised one a twentieth of the bytes, or never arrives."""
    study = four_cells(made.study_of(made=CHOSEN))
    store = made.run_all(tmp_path, study, CHOSEN)
    for entry in study.entries:
        path = {SGD: PATH, LOCAL: [97.0] * 4, QUANTISED: PATH}[entry.arm]
        if entry.arm == QUANTISED and entry.spec.sharding == "by-class":
            path = [20.0] * 4
        keep(store, entry.spec, path, {SGD: 20.0, LOCAL: 20.0, QUANTISED: 1.0}[entry.arm])
    rows = collect(tmp_path, study).rows(PROFILES)
    assert {(row["cells"], row["seeds"]) for row in rows} == {(4, 6)}

    def share(quantity: str, arm: str, tau: float) -> float:
        own = [
            r for r in rows if (r["quantity"], r["arm"]) == (quantity, arm) and r["tau"] <= tau * (1 + 1e-9)
        ]
        return own[-1]["share"]

    assert [share("steps", LOCAL, tau) for tau in (1, 4)] == [1, 1]
    assert [share("steps", SGD, tau) for tau in (1, 3.9, 4)] == [0, 0, 1]
    assert [share("steps", QUANTISED, tau) for tau in (1, 3.9, 4, 8)] == [0, 0, 0.5, 0.5]
    # bytes: 200 of the quantised, 1,000 of the local, 4,000 of plain SGD; by class the local arm is the best
    assert [share("bytes", QUANTISED, tau) for tau in (1, 64)] == [0.5, 0.5]
    assert [share("bytes", LOCAL, tau) for tau in (1, 4.9, 5.04)] == [0.5, 0.5, 1]
    assert {row["never"] for row in rows if row["arm"] == QUANTISED} == {0.5}


def test_profiles_compare_what_all_cells_have(tmp_path: Path) -> None:
    study = four_cells(made.study_of(made=CHOSEN))
    store = made.run_all(tmp_path, study, CHOSEN)
    for entry in study.entries:
        keep(store, entry.spec, PATH)
    fewer = [e for e in study.entries if not (e.arm == LOCAL and e.workload == "other")]
    assert {row["arm"] for row in collect(tmp_path, replace(study, entries=tuple(fewer))).rows(PROFILES)} == {
        SGD,
        QUANTISED,
    }
    three = [e for e in study.entries if e.workload != "other" or e.spec.sharding == "iid"]
    assert collect(tmp_path, replace(study, entries=tuple(three))).rows(PROFILES) == []
    five = [e for e in study.entries if e.spec.seed < 5]
    assert collect(tmp_path, replace(study, entries=tuple(five))).rows(PROFILES) == []


def test_made_up_curves_are_curves(tmp_path: Path, study: Study) -> None:
    store = made.run_all(tmp_path, study, CHOSEN)
    made_up_curves.keep_all(store, study)
    collected = collect(tmp_path, study)
    arrived = arrivals(study, collected.tables[RUNS], collected.tables[CURVES])
    assert set(arrived["sharding"]) == {"iid", "by-class"}
    assert len(arrived) == len(study.entries)
