"""Tuning: one rule for all, seeds that are never scored, edges that extend an arm's grid, vertices between its rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from suite.analysis.study import study_of, tuning_rows
from suite.runs.files import YamlError
from suite.runs.plan import make_plan
from suite.runs.spec import RunSpec
from suite.runs.store import Status, Store, failed
from suite.runs.sweep import TUNING_SEED, Sweep, Trial, Tuned, load_rates, load_sweep, tuned_for, write_rates
from suite.runs.tuning import Note, TuningFailedError, best_trial, candidates, tune, vertex_of
from suite.training.execute import execute
from suite.workloads import get
from tests.suite.runs.project import SWEEP, TUNABLE, write_sweep

BUDGET = (
    "tuning: {{points: 3, factor: 2, extensions: {extensions}, seeds: 2, centres: {{plain: {centre}}}}}\n"
)


def trial(lr: float, value: float | None, nll: float | None = None) -> Trial:
    status = "done" if value is not None else "diverged"
    return Trial(lr=lr, value=value, nll=nll, status=status, runs=("0" * 16,))


@pytest.mark.parametrize(
    ("trials", "chosen", "best"),
    [
        ([trial(1, 90.0, 0.3), trial(2, 97.0, 0.2), trial(3, 96.0, 0.1)], 2, 2),
        ([trial(1, 96.8, 0.1), trial(2, 97.0, 0.2), trial(3, 96.5, 0.05)], 1, 2),
        ([trial(1, 97.0, 0.2), trial(2, 97.0, 0.2)], 1, 1),
        ([trial(1, None), trial(2, 50.0, 2.0), trial(3, None)], 2, 2),
    ],
)
def test_within_the_margin_of_the_best_metric_the_lowest_nll_wins(
    trials: list[Trial], chosen: float, best: float
) -> None:
    """With the vertex the metric alone decides."""
    assert get("digits-mlp").margin == 0.3, "the cases above are made for it"
    assert best_trial(trials, get("digits-mlp")).lr == chosen
    assert best_trial(trials, get("digits-mlp"), by_metric=True).lr == best


def tuned_in(
    root: Path, sweep: Sweep, seen: list[RunSpec], note: Note = lambda text: None
) -> tuple[Store, list[Tuned]]:
    """A store and the choices; `seen` gets the runs that were trained for them."""
    store = Store(root)

    def run(specs: Sequence[RunSpec]) -> None:
        missing = [spec for spec in specs if store.result(spec.run_id) is None]
        seen.extend(missing)
        if missing:
            list(execute(missing, store))

    return store, tune(sweep, store, run, note)


def test_every_arm_gets_the_same_grid_on_unscored_seeds(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, TUNABLE + BUDGET.format(extensions=0, centre=0.5)))
    store, found = tuned_in(tmp_path / "results", sweep, seen := [])
    assert {spec.seed for spec in seen} == {TUNING_SEED, TUNING_SEED + 1}
    assert [tuned.arm for tuned in found] == ["plain", "local"]
    for tuned in found:
        assert [t.lr for t in tuned.trials] == [0.25, 0.5, 1.0]
        for t in tuned.trials:
            finals = [store.result(run_id)["final"]["excess_loss"] for run_id in t.runs]
            assert t.value == pytest.approx(sum(finals) / 2, rel=1e-5)
            assert t.values == pytest.approx(tuple(finals), rel=1e-5)
    assert len(seen) == 2 * 3 * 2
    scored = {run_id for tuned in found for t in tuned.trials for run_id in t.runs}
    write_rates(sweep, found)
    assert not scored & {spec.run_id for spec in make_plan(sweep).specs}


def test_an_edge_extends_the_grid_of_its_arm_alone_until_the_limit(tmp_path: Path) -> None:
    centres = BUDGET.format(extensions=2, centre="0.01, local: 2")
    sweep = load_sweep(write_sweep(tmp_path, TUNABLE + centres))
    notes: list[str] = []
    _, (plain, local) = tuned_in(tmp_path / "results", sweep, [], notes.append)
    assert [t.lr for t in plain.trials] == [0.005, 0.01, 0.02, 0.04, 0.08]
    assert (plain.lr, plain.edge) == (0.08, "high")
    assert [t.lr for t in local.trials] == [1.0, 2.0, 4.0]
    assert (local.lr, local.edge) == (2.0, "none")
    assert len(notes) == 3
    assert "on an edge, so their grids grow: plain (high)" in notes[0]
    assert "still on an edge after 2 extensions: plain (high)" in notes[2]


def test_an_arm_that_diverges_everywhere_is_tried_lower_and_then_refused(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, TUNABLE + BUDGET.format(extensions=1, centre=1e9)))
    seen, notes = list[RunSpec](), list[str]()
    with pytest.raises(TuningFailedError) as refused:
        tuned_in(tmp_path / "results", sweep, seen, notes.append)
    assert min(spec.lr.peak for spec in seen) == 2.5e8, "the grid grew towards lower rates once"
    assert "on an edge, so their grids grow: plain (low), local (low)" in notes[0]
    for arm in ("plain", "local"):
        assert f"n=2: {arm}: 4 of 4 learning rates failed (diverged), the first with: training loss" in str(
            refused.value
        )


def test_pinned_arms_are_left_alone_and_a_missing_centre_is_named(tmp_path: Path) -> None:
    text = SWEEP.replace("baseline: plain, lr: 0.1}", "baseline: plain}")
    sweep = load_sweep(write_sweep(tmp_path, text))
    with pytest.raises(
        YamlError, match=r"small.yaml:11: key 'arms.local.baseline': tuning.centres lacks 'plain'"
    ):
        tune(sweep, Store(tmp_path), lambda specs: None)
    sweep = load_sweep(write_sweep(tmp_path, text + BUDGET.format(extensions=0, centre=0.5)))
    _, found = tuned_in(tmp_path / "results", sweep, [])
    assert [tuned.arm for tuned in found] == ["local"]
    sweep = load_sweep(write_sweep(tmp_path))
    write_rates(sweep, tuned_in(tmp_path / "results", sweep, [])[1])
    assert "#     bandwise sweep small.yaml --tune\n" in sweep.rates_path.read_text()
    assert make_plan(sweep).specs, "a file of no rates is read"


FINALS = BUDGET.replace("seeds: 2,", "seeds: 2, finals: {{rates: 2, seeds: 5}},")


def test_of_two_stages_the_choice_is_among_the_rates_that_entered_the_second(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, TUNABLE + FINALS.format(extensions=0, centre=0.5)))
    candidate = next(candidates(sweep, next(sweep.panels())))
    entered = trial(0.5, 2.0).model_copy(update={"runs": ("0" * 16,) * 5})
    candidate.trials = [trial(0.25, 1.0), entered, trial(1.0, 1.5)]
    assert candidate.choose().lr == 0.5


MOMENTA = FINALS.replace("points: 3,", "points: 3, options: {{plain: {{momentum: [0, 0.5]}}}},")


def test_options_are_tuned_beside_the_rate(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, TUNABLE + MOMENTA.format(extensions=0, centre=0.5)))
    _, found = tuned_in(tmp_path / "results", sweep, seen := [])
    assert len(seen) == 2 * (3 * 2 * 2 + 2 * 3)
    for tuned in found:
        assert [(t.lr, t.options["momentum"]) for t in tuned.trials] == [
            (lr, momentum) for lr in (0.25, 0.5, 1.0) for momentum in (0, 0.5)
        ]
        for t in tuned.trials:
            specs = [spec for spec in seen if spec.run_id in t.runs]
            assert {spec.algorithm.options["momentum"] for spec in specs} == {t.options["momentum"]}
            assert {spec.lr.peak for spec in specs} == {t.lr}
        entered = [t for t in tuned.trials if len(t.runs) == 5]
        assert len(entered) == 2
        (best,) = [t for t in entered if tuned.is_of(t)]
        assert best.value == min(t.value for t in entered)

    write_rates(sweep, found)
    assert load_rates(sweep.rates_path).entries == tuple(found)
    scored = make_plan(sweep).runs
    for tuned in found:
        methods = {run.spec.algorithm.options["momentum"] for run in scored if run.arm.label == tuned.arm}
        assert methods == {tuned.options["momentum"]}
    _, again = tuned_in(tmp_path / "nothing", sweep, seen := [])
    assert (again, seen) == (found, [])

    wider = TUNABLE + MOMENTA.replace("0.5]", "0.5, 0.9]").format(extensions=0, centre=0.5)
    with pytest.raises(YamlError, match="was tuned for other settings"):
        make_plan(load_sweep(write_sweep(tmp_path, wider)))


def test_rates_are_of_a_version_of_what_comes_from_outside(tmp_path: Path, monkeypatch: Any) -> None:
    """And a label that wants quotes can be read again."""
    text = TUNABLE.replace("  plain:", "  'say \"hi\"':").replace("baseline: plain", "baseline: 'say \"hi\"'")
    sweep = load_sweep(write_sweep(tmp_path, text))
    panel, arm = next(sweep.panels()), sweep.arms['say "hi"']
    monkeypatch.setattr("suite.runs.sweep.BUILT_IN", ())
    version = SimpleNamespace(version=1)
    monkeypatch.setattr("suite.runs.sweep.info", lambda name: version)
    of = tuned_for(sweep, panel, arm)
    place = {"workload": panel.workload.label, "sharding": panel.sharding, "world_size": panel.world_size}
    write_rates(sweep, [Tuned(**place, arm=arm.label, lr=0.5, edge="none", tuned_for=of, trials=())])
    rates = load_rates(sweep.rates_path)
    assert rates.lr(sweep, panel, arm) == (0.5, {})
    version.version = 2
    with pytest.raises(YamlError, match="was tuned for other settings"):
        rates.lr(sweep, panel, arm)


VERTEX = MOMENTA.replace("finals: {{rates: 2, seeds: 5}}", "vertex: true")


def test_the_vertex_at_the_chosen_options_is_scored_and_the_grid_is_on_record(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, TUNABLE + "margin: 1\n" + VERTEX.format(extensions=0, centre=2)))
    _, found = tuned_in(tmp_path / "results", sweep, [])
    write_rates(sweep, found)
    assert load_rates(sweep.rates_path).entries == tuple(found)
    for tuned in found:
        assert (tuned.lr, tuned.options, tuned.edge) == (2.0, {"momentum": 0.5}, "none")
        values = [t.value for t in tuned.trials if t.options == tuned.options]
        steep, slope, _ = np.polyfit(np.log([1.0, 2.0, 4.0]), values, 2)
        assert tuned.vertex == pytest.approx(math.exp(-slope / steep / 2), rel=0.005)
        assert 1.4 < tuned.vertex < 2.0
        rates = {run.spec.lr.peak for run in make_plan(sweep).runs if run.arm.label == tuned.arm}
        assert rates == {tuned.vertex}
    (*_, plain), (*_, local) = study_of(make_plan(sweep)).trials.items()
    assert plain.rates == local.rates == [1.0, 2.0, 4.0]
    assert plain.chosen == 3, "the second rate, with the second of two momenta"
    assert [(row["lr"], row["vertex"]) for row in tuning_rows(sweep) if row["chosen"]] == [
        (tuned.lr, tuned.vertex) for tuned in found
    ]
    assert tuned_in(tmp_path / "nothing", sweep, [])[1] == found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((3.0, 1.0, 3.0), 2.0),
        ((2.0, 1.0, 1.0), 2.83),  # as good as a neighbour: half a step from it
        ((1.0, 1.0, 1.0), None),  # flat
        ((1.0, 2.0, 3.0), None),  # on an edge
        ((2.0, 1.0, None), None),  # a neighbour diverged
        ((2.0, 1.0, 3.5), None),  # or collapsed
    ],
)
def test_a_vertex_needs_two_neighbours_that_are_worse(
    values: tuple[float | None, ...], expected: float | None
) -> None:
    at = min(range(3), key=lambda i: math.inf if values[i] is None else values[i])
    for sign in (1.0, -1.0):
        trials = [
            trial(rate, None if value is None else sign * value)
            for rate, value in zip((1.0, 2.0, 4.0), values, strict=True)
        ]
        assert vertex_of(trials, trials[at], sign, margin=0.11) == expected


def test_a_first_stage_on_record_is_not_trained_again(tmp_path: Path) -> None:
    rows = {"extensions": 0, "centre": 0.5}
    sweep = load_sweep(write_sweep(tmp_path, TUNABLE + BUDGET.format(**rows)))
    write_rates(sweep, tuned_in(tmp_path / "once", sweep, [])[1])
    further = load_sweep(write_sweep(tmp_path, TUNABLE + FINALS.format(**rows)))
    _, found = tuned_in(tmp_path / "again", further, seen := [])
    assert {spec.seed for spec in seen} == {TUNING_SEED + 2, TUNING_SEED + 3, TUNING_SEED + 4}

    further.rates_path.rename(tmp_path / "small.before")
    _, anew = tuned_in(tmp_path / "apart", further, [])
    for one, other in zip(found, anew, strict=True):
        assert [(t.lr, t.runs, t.values) for t in one.trials] == [
            (t.lr, t.runs, t.values) for t in other.trials
        ]
        assert [t.value for t in one.trials] == pytest.approx([t.value for t in other.trials], rel=1e-5)
        assert one.lr == other.lr
    write_rates(further, found)
    _, again = tuned_in(tmp_path / "nothing", further, seen := [])
    assert (again, seen) == (found, [])
    finer = FINALS.format(**rows).replace("factor: 2", "factor: 1.5")
    tuned_in(tmp_path / "finer", load_sweep(write_sweep(tmp_path, TUNABLE + finer)), seen := [])
    assert {spec.lr.peak for spec in seen} == {0.333, 0.5, 0.75}, "over another grid, all of it again"

    text = further.rates_path.read_text()
    further.rates_path.write_text(text.replace(found[1].source, "f" * len(found[1].source)))
    tuned_in(tmp_path / "nothing", further, seen := [])
    assert len(seen) == 2 * (3 * 2 + 2 * 3), "by another source, all of it again"


def test_a_final_that_fails_takes_its_rate_out(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, TUNABLE + FINALS.format(extensions=0, centre=0.5)))
    store = Store(tmp_path / "results")

    def run(specs: Sequence[RunSpec]) -> None:
        lucky = [s for s in specs if s.seed < TUNING_SEED + 2 or s.lr.peak != 0.5]
        list(execute(lucky, store))
        for spec in specs:
            if spec not in lucky:
                failed(spec, Status("diverged", "for the test")).save(store)

    for tuned in tune(sweep, store, run):
        (lost,) = [t for t in tuned.trials if t.status == "diverged"]
        assert (lost.lr, lost.value, lost.values, len(lost.runs)) == (0.5, None, (), 5)
        assert [len(t.runs) for t in tuned.trials if t.lr == tuned.lr] == [5]
