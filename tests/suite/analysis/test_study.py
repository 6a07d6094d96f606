"""A sweep file becomes a study: who is compared with whom, how it is judged, what tuning tried."""

from __future__ import annotations

import pytest

from reference_impls import info
from suite.analysis.summary import Yardstick, study_of, tuning_rows
from suite.runs.plan import make_plan
from suite.runs.sweep import Trial, Tuned, load_sweep, tuned_for, write_rates
from suite.workloads import get

SWEEP = """
title: A small study
workloads: [digits-mlp]
shardings: [iid]
world_size: 2
steps: 6
batch_size: 4
seeds: 6
arms:
  allreduce-sgd: {algorithm: allreduce-sgd, lr: 0.1}
  local: {algorithm: local-sgd, options: {period: 3}, baseline: allreduce-sgd}
  alone: {algorithm: control-one-worker, baseline: allreduce-sgd, control: true, lr: 0.1}
"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """The sweep with a file of rates in which the tuned arm lies on an edge."""
    path = tmp_path_factory.mktemp("sweep") / "small.yaml"
    path.write_text(SWEEP)
    sweep = load_sweep(str(path))
    panel = next(sweep.panels())
    trials = tuple(
        Trial(lr=lr, value=value, nll=nll, status="done" if value else "diverged", runs=(f"{i:016x}",))
        for i, (lr, value, nll) in enumerate(((0.03, 60.0, 1.1), (0.1, 70.0, 0.9), (0.3, None, None)))
    )
    tuned = Tuned(
        workload=panel.workload.label,
        sharding="iid",
        world_size=2,
        arm="local",
        lr=0.1,
        edge="high",
        tuned_for=tuned_for(sweep, panel, sweep.arms["local"]),
        trials=trials,
    )
    write_rates(sweep, [tuned])
    return sweep


def test_study(sweep):
    study = study_of(make_plan(sweep))
    assert [(a.name, a.baseline, a.control, a.family) for a in study.arms] == [
        ("allreduce-sgd", None, False, "baseline"),
        ("local", "allreduce-sgd", False, "synchronisation"),
        ("alone", "allreduce-sgd", True, "control"),
    ]
    assert study.by_name["local"].lr_edges == {("digits-mlp", "iid", 2): True}
    assert study.by_name["alone"].lr_edges == {}
    assert study.by_name["local"].source_hash == info("local-sgd").source_hash
    workload = get("digits-mlp")
    assert study.yardsticks == {"digits-mlp": Yardstick("accuracy", "points", "higher", workload.margin)}
    assert len(study.entries) == 18
    assert (study.command, study.about, study.ranks) == ("bandwise sweep small.yaml", "A small study", False)


def test_tuning_rows(sweep):
    rows = tuning_rows(sweep)
    assert [(r["lr"], r["status"], r["value"], r["chosen"], r["edge"]) for r in rows] == [
        (0.03, "done", 60.0, False, False),
        (0.1, "done", 70.0, True, True),
        (0.3, "diverged", None, False, False),
    ]
