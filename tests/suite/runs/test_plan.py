"""Plans: every mistake is found before anything runs; seeds that cannot carry ranks, or decide nothing, are refused."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from scipy import stats

from bandwise.cli import main
from suite.analysis.collect import collect_sweep
from suite.analysis.study import study_of
from suite.analysis.tables import RUNS, SUMMARY
from suite.runs.files import YamlError
from suite.runs.plan import PlanError, make_plan, open_specs, power_of, refuse_underpowered, summary
from suite.runs.store import Status, Store, failed
from suite.runs.sweep import Sweep, load_sweep, sweep_names, tuned_for
from tests.suite.runs.project import SWEEP, TUNABLE, train_here, with_rates, write_sweep


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("local-sgd,", "loca-sgd,", "small.yaml:11: key 'arms.local.algorithm': .*did you mean 'local-sgd'"),
        ("period: 4", "perid: 4", "small.yaml:11: key 'arms.local.options': .*did you mean 'period'"),
        ("period: 4", "period: 0", "small.yaml:11: key 'arms.local.options': .*at least 1"),
        ("[quadratic]", "[quadratc]", "small.yaml:2: key 'workloads\\[0\\]': .*quadratic"),
        ("[iid]", "[idd]", "small.yaml:2: key 'workloads\\[0\\]': .*did you mean 'iid'"),
    ],
)
def test_mistakes_are_found_with_line_and_key(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in SWEEP
    with pytest.raises(YamlError, match=message):
        make_plan(load_sweep(write_sweep(tmp_path, SWEEP.replace(old, new, 1))))


def test_a_filter_keeps_matching_arms(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path))
    assert {run.arm.label for run in make_plan(sweep, "loc*").runs} == {"local"}
    with pytest.raises(PlanError, match=r"no arm of sweep 'small' matches 'x\*'; its arms: plain, local"):
        make_plan(sweep, "x*")


def test_an_arm_needs_its_baseline_in_the_same_panel(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, SWEEP + "exclude: [{arm: plain}]\n"))
    with pytest.raises(YamlError, match=r"small.yaml:11: key 'arms.local.baseline': 'plain' is excluded"):
        make_plan(sweep)


def test_a_ranking_that_no_data_could_reach_is_refused(tmp_path: Path) -> None:
    arms = "".join(
        f"  more{i}: {{algorithm: local-sgd, options: {{period: {i}}}, baseline: plain, lr: 0.1}}\n"
        for i in (2, 3)
    )
    five = SWEEP.replace("seeds: 3", "seeds: 6\nranks: true") + arms
    with pytest.raises(PlanError, match=re.escape("6 seeds and 3 comparisons")) as caught:
        make_plan(load_sweep(write_sweep(tmp_path, five)))
    assert "use 7 seeds" in str(caught.value)
    plan = make_plan(load_sweep(write_sweep(tmp_path, five.replace("seeds: 6", "seeds: 7"))))
    assert summary(plan, Store(tmp_path))["panels"][0]["smallest_p"] == pytest.approx(3 * 2 / 2**7)
    with pytest.raises(PlanError, match="use 24 seeds at most, or `ranks: false`"):
        make_plan(load_sweep(write_sweep(tmp_path, five.replace("seeds: 6", "seeds: 25"))))


def test_failures_of_circumstance_are_open_and_outcomes_of_the_method_are_not(tmp_path: Path) -> None:
    plan, store = make_plan(load_sweep(write_sweep(tmp_path))), Store(tmp_path / "results")
    specs = plan.specs
    failed(specs[0], Status("diverged", "loss is inf")).save(store)
    failed(specs[1], Status("error", "the worker died")).save(store)
    assert open_specs(specs, store) == specs[1:]
    found = summary(plan, store)
    assert found["states"] == {"missing": 4, "diverged": 1, "error": 1}
    assert (found["runs"], found["to_do"]) == (6, 5)


def test_untuned_arms_say_how_to_tune(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, TUNABLE))
    with pytest.raises(
        YamlError, match=r"small.yaml:10: key 'arms.plain.lr': .*`bandwise sweep \S+/small.yaml --tune`"
    ):
        make_plan(sweep)


def test_a_sweep_is_tuned_when_every_arm_that_is_scored_has_a_rate(tmp_path: Path) -> None:
    assert load_sweep(write_sweep(tmp_path)).is_tuned, "all rates are pinned"
    path = write_sweep(tmp_path, SWEEP.replace("baseline: plain, lr: 0.1}", "baseline: plain}"))
    assert not load_sweep(path).is_tuned
    (tmp_path / "small-lr.yaml").write_text("sweep: small\nseeds: [10000]\nrates: []\n")
    assert not load_sweep(path).is_tuned, "a file that lacks an arm"


@pytest.mark.parametrize("name", sweep_names())
def test_shipped_sweeps_have_the_controls_that_their_verdicts_need(name: str) -> None:
    """No communication with each baseline's optimizer; with one tuning seed nobody knows how uncertain the choice of rates is."""
    sweep = load_sweep(name)
    controls = {arm.algorithm for arm in sweep.arms.values() if arm.control}
    if not (
        name == "smoke" or name.startswith(("claims/", "papers/"))
    ):  # says nothing; has its claim's; its paper's
        assert {"control-no-communication", "control-random-k"} <= controls
        alone = [
            arm for arm in sweep.arms.values() if arm.is_alternative and (arm.world_size == 1 or arm.control)
        ]
        assert alone, "one worker: an alternative"
        of_lion = any("lion" in arm.algorithm for arm in sweep.arms.values())
        assert ("control-one-rank-sign" in controls) == of_lion, "the control of Lion's votes"
    if sweep.references:
        silent = {arm.baseline for arm in sweep.arms.values() if arm.algorithm == "control-no-communication"}
        assert silent == {arm.baseline for arm in sweep.arms.values()}
        assert sweep.tuning.n_seeds >= 2
        arms = (arm.label for panel in sweep.panels() for arm in sweep.arms_at(panel, sweep.budgets[0]))
        assert {*arms} == {*sweep.references}


# ---- budgets ----------------------------------------------------------------------------------------------------------------

LADDER = SWEEP.replace("steps: 12", "steps: 12\nbudgets: [0.5, 1, 1.41]")


# ---- arms that use the machines otherwise ------------------------------------------------------------------------------------

APART = (
    LADDER.replace("world_size: 2", "world_size: [2, 4]")
    + """\
  twice: {algorithm: allreduce-sgd, batch: 2, length: 0.5, baseline: plain, alternative: true, lr: 0.1}
  left-out: {algorithm: control-one-worker, baseline: plain, lr: 0.1}
  alone: {algorithm: allreduce-sgd, world_size: 1, length: 2, baseline: plain, lr: 0.1}
"""
)


def test_an_arm_may_have_a_batch_a_length_and_workers_of_its_own(tmp_path: Path) -> None:
    plain, plan = (
        make_plan(load_sweep(write_sweep(tmp_path, text, name)))
        for text, name in ((LADDER, "plain"), (APART, "apart"))
    )
    assert {run.spec.run_id for run in plain.runs} < {run.spec.run_id for run in plan.runs}
    specs = {
        (run.arm.label, run.budget): run.spec
        for run in plan.runs
        if run.panel.world_size == 4 and run.spec.seed == 0
    }
    own = {key: (s.steps, s.lr.warmup, s.batch_size, s.world_size) for key, s in specs.items()}
    assert [own["plain", budget] for budget in (0.5, 1, 1.41)] == [(6, 1, 2, 4), (12, 2, 2, 4), (17, 3, 2, 4)]
    assert [own["twice", budget] for budget in (0.5, 1, 1.41)] == [(3, 0, 4, 4), (6, 1, 4, 4), (8, 1, 4, 4)]
    assert [own["alone", budget] for budget in (0.5, 1, 1.41)] == [
        (12, 2, 2, 1),
        (24, 4, 2, 1),
        (34, 6, 2, 1),
    ]
    sweep, panel = plan.sweep, plan.runs[0].panel
    arms = {label: sweep.arms[label] for label in ("plain", "twice", "alone")}
    assert len({tuned_for(sweep, panel, arm) for arm in arms.values()}) == 3
    assert tuned_for(sweep, panel, arms["plain"]) == tuned_for(plain.sweep, panel, arms["plain"])
    assert {label for label, arm in sweep.arms.items() if arm.is_alternative} == {"twice", "left-out"}


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        ("world_size: 4", "13: key 'arms.x.world_size': .* n=2 has no 4 workers: use at most its 2"),
        ("length: 0.05", r"13: key 'arms.x.length': of the 12 steps .* leaves runs of \[0, 1, 1\] steps: make it longer"),
        ("batch: 0.25", "13: key 'arms.x.batch': of the 2 examples of the sweep is no whole number of them"),
        ("batch: 1, length: 1, world_size: 2", "13: key 'arms.x': trains the runs of 'plain': give each method once"),
    ],
)  # fmt: skip
def test_what_an_arm_cannot_be_is_refused_by_its_line(arm: str, message: str, tmp_path: Path) -> None:
    text = LADDER + f"  x: {{algorithm: allreduce-sgd, {arm}, baseline: plain, lr: 0.1}}\n"
    with pytest.raises(YamlError, match=message):
        load_sweep(write_sweep(tmp_path, text))
    read = text.replace("seeds: 3", "seeds: 3\nreferences: [x]").replace(arm, "batch: 2")
    with pytest.raises(YamlError, match=r"key 'arms.x': net speedups are read on it"):
        load_sweep(write_sweep(tmp_path, read))


def test_arms_of_their_own_are_compared_in_the_setting_of_the_sweep(tmp_path: Path) -> None:
    text = APART.replace("[2, 4]", "2").replace("budgets: [0.5, 1, 1.41]\n", "")
    train_here(path := write_sweep(tmp_path, text), tmp_path / "results")
    found = collect_sweep(tmp_path / "results", path)
    runs = {row["arm"]: row for row in found.rows(RUNS)}
    assert {row["world_size"] for row in runs.values()} == {2}
    assert {arm: row["workers"] for arm, row in runs.items() if row["workers"]} == {"alone": 1}
    arms = {row["arm"]: row for row in found.rows(SUMMARY)}
    assert [arms[arm]["n_pairs"] for arm in ("twice", "alone")] == [3, 3]
    assert arms["twice"]["bytes_ratio"] == 2.0, "as many bytes a step, in half of the steps"
    assert arms["alone"]["bytes_ratio"] == float("inf")
    (facts,) = found.facts["workloads"]
    assert (facts["world_size"], facts["steps"], facts["batch_size"]) == (2, 12, 2)
    study = study_of(make_plan(load_sweep(path)))
    assert {arm.name for arm in study.arms if arm.alternative} == {"twice", "left-out"}


# ---- power -------------------------------------------------------------------------------------------------------------------

POWERED = TUNABLE.replace("seeds: 3", "seeds: 6") + (
    "headline: true\nmargin: 0.1\ntuning: {points: 3, factor: 2, seeds: 2, centres: {plain: 0.5}}\n"
)


def tuned(folder: Path, text: str, apart: float, seeds: int = 2) -> Sweep:
    """The sweep with rates at which the difference of `local` to `plain` varies by `apart` between two tuning seeds."""

    def losses(arm: str) -> dict[float, list[float]]:
        return {0.5: [1.0 + (0.5 + apart * (arm == "local")) * seed for seed in range(seeds)]}

    return with_rates(write_sweep(folder, text), losses, 0.5)


def test_the_half_width_is_that_of_a_t_interval_with_the_spread_of_tuning(tmp_path: Path) -> None:
    (power,) = power_of(tuned(tmp_path, POWERED, apart=0.04))
    sd = 0.04 / math.sqrt(2)  # of two differences that lie 0.04 apart
    assert (power.sd, power.df, power.margin) == (pytest.approx(sd), 1, 0.1)
    assert power.half_width == pytest.approx(stats.t.ppf(0.975, 5) * sd / math.sqrt(6))
    assert power.enough == (power.half_width <= 0.05)


def test_an_underpowered_headline_is_refused_with_the_seeds_that_would_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_underpowered(tuned(tmp_path, POWERED, apart=0.04))
    sweep = tuned(tmp_path, POWERED, apart=0.2)
    (power,) = power_of(sweep)
    needed = power.seeds_needed
    assert needed > 6
    with pytest.raises(PlanError, match=rf"more than half the margin of 0.1 .*: use {needed} seeds"):
        refuse_underpowered(sweep)
    assert power_of(tuned(tmp_path, POWERED.replace("seeds: 6", f"seeds: {needed}"), apart=0.2))[0].enough
    tuned(tmp_path, POWERED, apart=0.2)
    assert main(["sweep", str(sweep.path), "--results", str(tmp_path / "results")]) == 2
    assert f"use {needed} seeds" in capsys.readouterr().err
    assert not (tmp_path / "results" / "runs").exists()


def test_without_two_tuning_seeds_nothing_is_known(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"tune it on two seeds or more with `bandwise sweep .*--tune`"):
        refuse_underpowered(tuned(tmp_path, POWERED, apart=0.0, seeds=1))
    refuse_underpowered(tuned(tmp_path, POWERED.replace("headline: true\n", ""), apart=9.0))
