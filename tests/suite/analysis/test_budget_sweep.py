"""From the runs of a budget ladder to its tables: what rungs say, and that they keep apart."""

from __future__ import annotations

import math

import pytest

from suite.analysis.collect import collect
from suite.analysis.columns import BUDGET_SWEEP, SUMMARY
from suite.runs.store import Status
from tests.suite.analysis import made_up_ladder as ladder
from tests.suite.analysis import made_up_study as made


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


def test_what_the_rungs_say(exact):
    rows = {
        row["budget"]: row
        for row in exact.rows(BUDGET_SWEEP)
        if (row["arm"], row["sharding"]) == ("global-qsgd standard", "iid")
    }
    whole = rows[1.0]["mean"]
    for budget, row in rows.items():
        steps = ladder.steps_at(budget)
        assert (row["steps"], row["n"], row["n_done"], row["n_diverged"]) == (steps, 6, 6, 0)
        assert row["mean"] - whole == pytest.approx(2 * math.log2(steps / made.STEPS))
        assert row["ci_low"] < row["mean"] < row["ci_high"]
    assert sorted(rows) == list(ladder.BUDGETS)


def test_a_diverged_rung_is_counted_and_moves_nothing_else(tmp_path, study, noisy):
    before = collect(tmp_path, study)
    spec = next(e.spec for e in study.entries if (e.arm, e.budget) == ("qsr-sgd", 1.41))
    made.finish(noisy, spec, Status("diverged", "training loss is inf at step 9"), noisy.result(spec.run_id))
    found = collect(tmp_path, study)
    assert found.rows(SUMMARY) == before.rows(SUMMARY)
    lost = {
        (r["arm"], r["budget"]): r["n_diverged"] for r in found.rows(BUDGET_SWEEP) if r["sharding"] == "iid"
    }
    assert {key for key, count in lost.items() if count} == {("qsr-sgd", 1.41)}
