"""Budget ladders of sweep files: what they plan, that rung 1 is the sweep itself, and what is refused by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from bandwise.verbs.sweep import described
from suite.runs.documents import YamlError
from suite.runs.plan import make_plan, run_rows, statuses, summary
from suite.runs.store import Store
from suite.runs.sweep import Tuned, load_sweep, tuned_for, write_rates
from tests.suite.runs.project import SWEEP, write_sweep

LADDER = SWEEP.replace("steps: 12", "steps: 12\nbudgets: [0.5, 1, 1.41]")
SQUEEZE = LADDER + "  squeeze: {algorithm: apmsqueeze, baseline: plain, lr: 0.1}\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[]", "the list is empty"),
        ("[0, 1]", "each is a multiple of `steps` between 1/16 and 16"),
        ("[-1, 1]", "each is a multiple of `steps` between 1/16 and 16"),
        ("[1, 1e300]", "each is a multiple of `steps` between 1/16 and 16"),
        ("[1, 1]", "must rise, each to more steps than the one before; of 12 steps these are [12, 12]"),
        ("[1, 0.5]", "must rise, each to more steps than the one before; of 12 steps these are [12, 6]"),
        ("[1, 1.01]", "must rise, each to more steps than the one before; of 12 steps these are [12, 12]"),
        ("[0.5, 2]", "1 must be among them: rates are tuned and methods are compared there"),
        ("[1]", "a budget sweep has two budgets or more: add some, or leave the key out"),
        ("1", "a budget sweep has two budgets or more: add some, or leave the key out"),
    ],
)
def test_what_is_no_ladder_is_refused_by_its_line(given: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(YamlError) as caught:
        load_sweep(write_sweep(tmp_path, LADDER.replace("[0.5, 1, 1.41]", given)))
    assert str(caught.value) == f"small.yaml:6: key 'budgets': {message}"


@pytest.mark.parametrize(
    ("given", "where", "said"),
    [("[half, 1]", "[0]", "a number, not 'half'"), ("[nan, 1]", "[0]", "a number, not 'nan'"),
     ("[[1], 2]", "[0]", "a number, not a list"), ("{a: 1}", "", "a number, not a mapping"),
     ("[1, true]", "[1]", "a number, not True"), ("[null, 1]", "[0]", "a number, not nothing"),
     ("", "", "a number, not nothing"), ("[1, 1e999]", "[1]", "a finite number, not inf")],
)  # fmt: skip
def test_budgets_are_numbers(given: str, where: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(YamlError) as caught:
        load_sweep(write_sweep(tmp_path, LADDER.replace("[0.5, 1, 1.41]", given)))
    assert str(caught.value) == f"small.yaml:6: key 'budgets{where}' must be {said}"


def test_everything_that_has_a_length_is_rescaled_and_nothing_else(tmp_path: Path) -> None:
    plan = make_plan(load_sweep(write_sweep(tmp_path, SQUEEZE)))
    assert [run.budget for run in plan.runs] == [0.5] * 9 + [1.0] * 9 + [1.41] * 9
    rungs = {run.budget: run.spec for run in plan.runs if (run.arm.label, run.spec.seed) == ("squeeze", 0)}
    assert {budget: spec.steps for budget, spec in rungs.items()} == {0.5: 6, 1.0: 12, 1.41: 17}
    assert {budget: spec.lr.warmup for budget, spec in rungs.items()} == {0.5: 1, 1.0: 2, 1.41: 3}
    assert {spec.lr.peak for spec in rungs.values()} == {0.1}
    assert {budget: spec.algorithm.options["total_steps"] for budget, spec in rungs.items()} == {
        budget: spec.steps for budget, spec in rungs.items()
    }
    local = {run.spec.algorithm.options["period"] for run in plan.runs if run.arm.label == "local"}
    assert local == {4}, "a period is the method's own, whatever the budget"


def test_the_runs_of_budget_1_are_those_without_a_ladder(tmp_path: Path) -> None:
    plain, climbed = (
        make_plan(load_sweep(write_sweep(tmp_path, text, name)))
        for text, name in ((SWEEP, "plain"), (LADDER, "climbed"))
    )
    assert [run.spec.run_id for run in climbed.whole] == [run.spec.run_id for run in plain.runs]
    assert plain.whole == list(plain.runs)
    assert len(climbed.specs) == 3 * len(plain.specs)


def test_rates_are_tuned_at_budget_1_and_used_on_all_rungs(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, LADDER.replace(", lr: 0.1}", "}")))
    (panel,) = sweep.panels()
    whole = load_sweep(write_sweep(tmp_path, SWEEP.replace(", lr: 0.1}", "}"), "whole"))
    entries = [
        Tuned(
            workload="quadratic",
            sharding="iid",
            world_size=2,
            arm=arm.label,
            lr=rate,
            edge="none",
            tuned_for=tuned_for(whole, panel, whole.arms[arm.label]),
        )
        for arm, rate in zip(sweep.arms.values(), (0.1, 0.3), strict=True)
    ]
    write_rates(sweep, entries)
    found = {(run.arm.label, run.budget): run.spec.lr.peak for run in make_plan(sweep).runs}
    assert found == {
        (arm, b): rate for arm, rate in (("plain", 0.1), ("local", 0.3)) for b in (0.5, 1.0, 1.41)
    }


def test_a_plan_shows_its_rungs(tmp_path: Path) -> None:
    plan, store = make_plan(load_sweep(write_sweep(tmp_path, LADDER))), Store(tmp_path)
    found = summary(plan, store)
    assert (found["runs"], found["ladder"], found["steps"]) == (18, [6, 12, 17], 12)
    assert described(found)[1].startswith("18 runs of 6, 12 and 17 steps (18 missing)")
    assert {row["steps"] for row in run_rows(plan, statuses(plan, store))} == {6, 12, 17}
    alone = summary(make_plan(load_sweep(write_sweep(tmp_path))), store)
    assert described(alone)[1].startswith("6 runs of 12 steps ")
