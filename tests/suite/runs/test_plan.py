"""Plans: every mistake is found before anything runs; seeds that cannot carry ranks are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bandwise.verbs.sweep import described
from suite.runs.documents import YamlError
from suite.runs.plan import (
    MINIMUM_FOR_INTERVAL,
    Estimator,
    PlanError,
    make_plan,
    open_specs,
    smallest_p,
    summary,
)
from suite.runs.store import Status, Store, failed
from suite.runs.sweep import Arm, Trial, Tuned, load_rates, load_sweep, sweep_names, tuned_for, write_rates
from suite.training.train import train_group
from suite.workloads import get
from tests.suite.runs.project import SWEEP, one_spec, write_sweep


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


def test_a_plan_holds_every_arm_with_every_seed_and_pairs_seeds(tmp_path: Path) -> None:
    plan = make_plan(load_sweep(write_sweep(tmp_path)))
    assert [(run.arm.label, run.spec.seed) for run in plan.runs] == [
        ("plain", 0), ("local", 0), ("plain", 1), ("local", 1), ("plain", 2), ("local", 2),
    ]  # fmt: skip
    spec = plan.runs[1].spec
    assert spec.algorithm.options["period"] == 4
    assert spec.algorithm.options["total_steps"] == 12
    assert (spec.lr.peak, spec.lr.min, spec.lr.warmup) == (0.1, pytest.approx(0.01), 2)
    assert len({run.spec.run_id for run in plan.runs}) == 6


@pytest.mark.parametrize(
    ("seeds", "said"), [(4, "means alone: an interval needs 6 seeds"), (6, "intervals, no ranks")]
)
def test_a_plan_promises_intervals_only_with_the_seeds_for_them(
    seeds: int, said: str, tmp_path: Path
) -> None:
    path = write_sweep(tmp_path, SWEEP.replace("seeds: 3", f"seeds: {seeds}"))
    found = summary(make_plan(load_sweep(path)), Store(tmp_path / "results"))
    assert found["seeds_for_intervals"] == MINIMUM_FOR_INTERVAL == 6
    (line,) = [line for line in described(found) if "comparisons" in line]
    assert said in line
    assert ("interval" in line.replace("an interval needs", "")) == (seeds >= 6), "nothing else is promised"


def test_a_filter_keeps_matching_arms(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path))
    assert {run.arm.label for run in make_plan(sweep, "loc*").runs} == {"local"}
    with pytest.raises(PlanError, match=r"no arm of sweep 'small' matches 'x\*'; its arms: plain, local"):
        make_plan(sweep, "x*")


def test_an_arm_needs_its_baseline_in_the_same_panel(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, SWEEP + "exclude: [{arm: plain}]\n"))
    with pytest.raises(YamlError, match=r"small.yaml:11: key 'arms.local.baseline': 'plain' is excluded"):
        make_plan(sweep)


@pytest.mark.parametrize(("comparisons", "seeds"), [(1, 6), (2, 7), (10, 9), (20, 10), (40, 11)])
def test_the_seeds_that_ranks_need(comparisons: int, seeds: int) -> None:
    assert smallest_p(seeds, comparisons) <= 0.05 < smallest_p(seeds - 1, comparisons)


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


def test_failures_of_circumstance_are_open_and_outcomes_of_the_method_are_not(tmp_path: Path) -> None:
    plan, store = make_plan(load_sweep(write_sweep(tmp_path))), Store(tmp_path / "results")
    specs = plan.specs
    failed(specs[0], Status("diverged", "loss is inf")).save(store)
    failed(specs[1], Status("error", "the worker died")).save(store)
    assert open_specs(specs, store) == specs[1:]
    found = summary(plan, store)
    assert found["states"] == {"missing": 4, "diverged": 1, "error": 1}
    assert (found["runs"], found["to_do"]) == (6, 5)


TUNABLE = SWEEP.replace(", lr: 0.1}", "}")


def test_untuned_arms_say_how_to_tune(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, TUNABLE))
    with pytest.raises(
        YamlError, match=r"small.yaml:10: key 'arms.plain.lr': .*`bandwise sweep \S+/small.yaml --tune`"
    ):
        make_plan(sweep)


def test_rates_are_read_back_and_refused_for_other_settings(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, TUNABLE))
    (panel,) = sweep.panels()
    trials = (
        Trial(lr=0.1, value=1.5, status="done", runs=("0" * 16, "2" * 16)),
        Trial(lr=1.0, status="diverged", runs=("1" * 16,)),
    )
    entries = [
        Tuned(
            workload="quadratic",
            sharding="iid",
            world_size=2,
            arm=arm.label,
            lr=0.1,
            edge="low",
            tuned_for=tuned_for(sweep, panel, arm),
            trials=trials,
        )
        for arm in sweep.arms.values()
    ]
    write_rates(sweep, entries)
    assert load_rates(sweep.rates_path).entries == tuple(entries)
    assert {run.spec.lr.peak for run in make_plan(sweep).runs} == {0.1}
    changed = load_sweep(write_sweep(tmp_path, TUNABLE.replace("steps: 12", "steps: 13")))
    with pytest.raises(YamlError, match=r"small-lr.yaml was tuned for other settings"):
        make_plan(changed)


@pytest.mark.parametrize("name", sweep_names())
def test_shipped_sweeps_can_be_planned(name: str) -> None:
    sweep = load_sweep(name)
    plan = make_plan(sweep, without_data=name.startswith("papers/"))
    by_spec: dict[str, list[Arm]] = {}
    for run in plan.runs:
        by_spec.setdefault(run.spec.run_id, []).append(run.arm)
    same = [[arm.label for arm in arms] for arms in by_spec.values() if len(arms) > 1]
    pinned = {arm.label for arm in sweep.arms.values() if arm.lr is not None}
    assert all(pinned & set(labels) for labels in same), "two arms are the same run, and not by a pinned rate"
    controls = {arm.algorithm for arm in sweep.arms.values() if arm.control}
    if name == "smoke" or name.startswith(
        ("claims/", "papers/")
    ):  # says nothing; has those of its claim; of its paper
        return
    assert {"control-no-communication", "control-one-worker", "control-random-k"} <= controls
    of_lion = any("lion" in arm.algorithm for arm in sweep.arms.values())
    assert ("control-one-rank-sign" in controls) == of_lion, "the control of Lion's votes"


@pytest.mark.parametrize("name", [name for name in sweep_names() if load_sweep(name).references])
def test_a_study_at_equal_time_has_a_control_with_every_optimizer_and_two_tuning_seeds(name: str) -> None:
    """No communication with each baseline's optimizer; with one tuning seed nobody knows how uncertain the choice of rates is."""
    sweep = load_sweep(name)
    silent = {arm.baseline for arm in sweep.arms.values() if arm.algorithm == "control-no-communication"}
    assert silent == {arm.baseline for arm in sweep.arms.values()}
    assert sweep.tuning.n_seeds >= 2
    assert {arm.label for panel in sweep.panels() for arm in sweep.arms_at(panel, sweep.budgets[0])} == {
        *sweep.references
    }


def test_the_quick_study_is_of_a_workload_that_can_tell() -> None:
    quick = load_sweep("quick")
    assert [choice.name for choice in quick.workloads] == ["code-packages"]
    assert (quick.shardings, quick.margin) == (("iid", "by-class"), get("code-packages").margin)


@pytest.mark.parametrize(("period", "warned"), [(13, True), (12, False), (4, False)])
def test_rounds_longer_than_the_training_are_warned_of(period: int, warned: bool, tmp_path: Path) -> None:
    """The training has 12 steps."""
    path = write_sweep(tmp_path, SWEEP.replace("period: 4", f"period: {period}"))
    found = summary(make_plan(load_sweep(path)), Store(tmp_path / "results"))
    assert [("local:" in text, "once, after the last step" in text) for text in found["warnings"]] == [
        (True, True)
    ] * warned
    assert (
        any("warning: local: local-sgd has rounds of 13 steps" in line for line in described(found)) == warned
    )


@pytest.mark.full
def test_a_guess_before_any_run_is_near_what_training_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BANDWISE_CACHE", str(tmp_path))
    spec = one_spec("allreduce-adamw", workload="code-gpt", world_size=4, steps=40)
    guess = Estimator().of([spec]).seconds
    (outcome,) = train_group([spec])
    assert outcome.result["status"] == "done"
    assert guess == pytest.approx(outcome.result["train_s"], rel=0.5)
