"""From the runs of a budget ladder to its tables: known crossings are found, censored on their side, and rungs keep apart."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from suite.analysis.check import check_study
from suite.analysis.collect import collect, documents, write
from suite.analysis.columns import BUDGET_RUNS, BUDGET_SWEEP, EQUAL_LOSS, RUNS, SENSITIVITY, SUMMARY
from suite.analysis.export import find
from suite.analysis.published import facts_path
from suite.analysis.tables import read_table, table_path
from suite.runs.files import dump
from suite.runs.result import Status
from tests.suite.analysis import made_up_ladder as ladder
from tests.suite.analysis import made_up_study as made

BY_NAME = {m.arm.name: m for m in ladder.MADE}


@pytest.fixture(scope="module")
def study():
    return ladder.study_of()


@pytest.fixture(scope="module")
def exact(tmp_path_factory, study):
    """Without noise, so that crossings are exact."""
    root = tmp_path_factory.mktemp("exact")
    ladder.run_all(root, study, noise=0.0)
    return collect(root, study)


@pytest.fixture
def noisy(tmp_path, study):
    return ladder.run_all(tmp_path, study)


def iso_of(collected, arm, cost, sharding="iid"):
    (row,) = [
        r for r in collected.rows(EQUAL_LOSS) if (r["arm"], r["cost"], r["sharding"]) == (arm, cost, sharding)
    ]
    return row


@pytest.mark.parametrize(
    ("arm", "sharding"),
    [("global-qsgd standard", "iid"), ("local-sgd H=4", "iid"), ("lion-cub-1bit never", "iid"),
     ("global-qsgd standard", "by-class"), ("qsr-sgd", "by-class")],
)  # fmt: skip
def test_known_crossings_are_found(exact, arm, sharding):
    chosen = BY_NAME[arm]
    true = 1 / ladder.crossing(chosen, sharding)
    steps, sent = (iso_of(exact, arm, cost, sharding) for cost in ("steps", "bytes"))
    assert steps["ratio"] == pytest.approx(true, rel=0.002)
    assert sent["ratio"] == pytest.approx(true * chosen.ratio, rel=0.002)
    assert steps["low"] <= steps["ratio"] <= steps["high"]
    assert (steps["n"], steps["censored"], steps["reason"]) == (6, None, None)
    assert steps["target"] == chosen.arm.baseline


def test_beyond_the_ladder_the_side_is_told_with_what_is_known(exact):
    never = iso_of(exact, "local-sgd H=4", "steps", "by-class")
    assert (never["censored"], never["ratio"], never["low"]) == ("never reached", 0.0, 0.0)
    assert never["high"] == pytest.approx(made.STEPS / ladder.steps_at(1.41))
    early = iso_of(exact, "qsr-sgd", "bytes", "iid")
    assert (early["censored"], early["ratio"], early["high"]) == (
        "reached before the first rung",
        math.inf,
        math.inf,
    )
    assert early["low"] == pytest.approx(2 * 6.0)


def test_an_uncompressed_run_is_there_by_definition(exact):
    row = iso_of(exact, "allreduce-lion", "bytes")
    assert (row["ratio"], row["low"], row["high"], row["target"]) == (1.0, 1.0, 1.0, "allreduce-lion")


def test_what_sends_nothing_has_no_ratio_of_bytes(exact):
    row = iso_of(exact, "control-one-worker", "bytes")
    assert (row["ratio"], row["reason"]) == (None, "it sends nothing")
    assert iso_of(exact, "control-one-worker", "steps")["censored"] == "never reached"


def test_rungs_leave_the_tables_of_budget_1_as_they_are(tmp_path, study, noisy):
    whole = replace(study, entries=tuple(study.whole))
    alone, found = collect(tmp_path, whole), collect(tmp_path, study)
    assert (found.rows(RUNS), found.rows(SUMMARY), found.rows(SENSITIVITY)) == (
        alone.rows(RUNS),
        alone.rows(SUMMARY),
        alone.rows(SENSITIVITY),
    )
    assert {row["steps"] for row in found.rows(RUNS)} == {made.STEPS}
    assert {row["budget"] for row in found.rows(BUDGET_RUNS)} == {0.5, 0.71, 1.41}
    assert found.facts["statuses"] == {"done": len(study.entries)}
    assert found.facts["budgets"] == list(ladder.BUDGETS)
    assert {cell["steps"] for cell in found.facts["workloads"]} == {made.STEPS}
    names = {path.name for path in documents(tmp_path, alone)}
    assert not names & {"climbed-rungs.csv", "climbed-ladder.csv", "climbed-iso.csv"}
    assert "budgets" not in alone.facts


def test_what_the_rungs_say(exact):
    rows = {
        row["budget"]: row
        for row in exact.rows(BUDGET_SWEEP)
        if (row["arm"], row["sharding"]) == ("global-qsgd standard", "iid")
    }
    for budget, row in rows.items():
        steps = ladder.steps_at(budget)
        assert (row["steps"], row["n"], row["n_done"], row["n_pairs"]) == (steps, 6, 6, 6)
        assert row["gap_mean"] == pytest.approx(2 * math.log2(steps / made.STEPS) - 0.4)
        assert row["wire_bytes"] == pytest.approx(made.RING_BYTES / 4 * steps)
        assert row["ci_low"] < row["mean"] < row["ci_high"]
    assert sorted(rows) == list(ladder.BUDGETS)


def test_a_diverged_rung_takes_the_ratio_and_nothing_else(tmp_path, study, noisy):
    before = collect(tmp_path, study)
    spec = next(e.spec for e in study.entries if (e.arm, e.budget) == ("qsr-sgd", 1.41))
    made.finish(noisy, spec, Status("diverged", "training loss is inf at step 9"), noisy.result(spec.run_id))
    found = collect(tmp_path, study)
    row = iso_of(found, "qsr-sgd", "steps")
    assert row["ratio"] is None
    assert row["reason"] == "1 of its 30 runs, those of the target included, diverged"
    assert found.rows(SUMMARY) == before.rows(SUMMARY)
    lost = {
        (r["arm"], r["budget"]): r["n_diverged"] for r in found.rows(BUDGET_SWEEP) if r["sharding"] == "iid"
    }
    assert {key for key, count in lost.items() if count} == {("qsr-sgd", 1.41)}
    assert iso_of(found, "local-sgd H=4", "steps") == iso_of(before, "local-sgd H=4", "steps")


def test_too_few_seeds_are_told(tmp_path, study, noisy):
    spec = next(e.spec for e in study.entries if (e.arm, e.budget) == ("qsr-sgd", 0.5))
    made.finish(noisy, spec, Status("error", "no"), noisy.result(spec.run_id))
    row = iso_of(collect(tmp_path, study), "qsr-sgd", "steps")
    assert (row["n"], row["ratio"]) == (5, None)
    assert row["reason"] == "5 seeds finished at every budget, and it takes 6"


def test_tables_are_written_checked_and_exported(tmp_path, study, noisy):
    found = collect(tmp_path, study)
    write(tmp_path, found)
    for table, rows in (
        (BUDGET_RUNS, found.rows(BUDGET_RUNS)),
        (BUDGET_SWEEP, found.rows(BUDGET_SWEEP)),
        (EQUAL_LOSS, found.rows(EQUAL_LOSS)),
        (RUNS, found.rows(RUNS)),
    ):
        read = read_table(table_path(tmp_path, table, "climbed"), table)
        assert len(read) == len(rows)
        assert find(tmp_path, "climbed", table.suffix) == (table, read)
    assert facts_path(tmp_path, "climbed").read_text() == dump(found.facts, indent=1) + "\n"
    rules = {finding.rule for finding in check_study(tmp_path, study)}
    assert not rules & {"complete", "seeds", "tables"}
    moved = next(e.spec for e in study.entries if e.budget == 1.41)
    (noisy.folder(moved.run_id) / "result.json").unlink()
    (noisy.folder(moved.run_id) / "status.json").unlink()
    findings = {finding.rule: finding for finding in check_study(tmp_path, study)}
    assert moved.run_id in findings["complete"].subject
    assert "tables" in findings
