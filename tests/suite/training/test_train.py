"""Training in groups: the same bits alone or together, ends that stay with their run, exact bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from reference_impls.core.algorithm import Algorithm, Bucket
from suite.runs.plan import groups
from suite.runs.spec import Part, RunSpec, learning_rate, task_of
from suite.runs.store import Outcome, Store
from suite.training.execute import execute
from suite.training.train import Recorder, split, train_group
from suite.workloads import DataError, get
from suite.workloads.base import BatchedGradients
from tests.suite.runs.project import lasting, one_spec, register


@dataclass(frozen=True)
class Silent(Algorithm):
    """Every rank goes its own way and says nothing: replicas differ at the end."""

    def update(self, bucket: Bucket, reduced: object) -> None:
        bucket.params.sub_(bucket.grads, alpha=bucket.train_state.lr)


def train(specs: Sequence[RunSpec]) -> dict[str, Outcome]:
    return {outcome.run_id: outcome for outcome in train_group(specs)}


def test_a_run_has_the_same_bits_alone_and_in_any_group() -> None:
    methods = (
        ("local-adamw", {"period": 3}),
        ("qsr-sgd", {"alpha": 0.1, "h_base": 2}),
        ("root-sgd", {"burn_in": 3}),
    )
    specs = [
        one_spec(name, options, steps=4, peak=0.01, seed=seed) for seed in (0, 1) for name, options in methods
    ]
    together = train(specs)
    for spec in specs:
        alone = train([spec])[spec.run_id]
        assert lasting(alone) == lasting(together[spec.run_id])
    assert len({str(outcome.metrics) for outcome in together.values()}) == len(specs), (
        "seeds and methods differ"
    )


def test_a_diverging_run_ends_alone_with_its_reason() -> None:
    good, bad = one_spec(peak=0.05, steps=60), one_spec(peak=1e4, steps=60)
    found = train([bad, good])
    assert found[bad.run_id].status.state == "diverged"
    assert "training loss" in found[bad.run_id].status.reason
    assert found[bad.run_id].result["steps"] < 60
    assert found[bad.run_id].result["final"] == {}
    assert lasting(found[good.run_id]) == lasting(train([good])[good.run_id])
    assert found[good.run_id].status.state == "done"


def test_replicas_that_differ_at_the_end_make_a_run_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = one_spec(register(monkeypatch, Silent), workload="digits-mlp", steps=2)
    outcome = train([spec])[spec.run_id]
    assert outcome.status.state == "invalid"
    assert "ranks 0 and 1 hold different parameters, first in '0.weight'" in outcome.status.reason
    assert outcome.result["final"] == {}


def test_a_method_that_refuses_ends_its_run_alone() -> None:
    good = one_spec()
    part = good.algorithm
    bad = one_spec(seed=1)
    bad = RunSpec.from_dict(
        {**bad.as_dict(), "algorithm": Part(part.name, 1, {**part.options, "mumentum": 1}).as_dict()}
    )
    found = train([bad, good])
    assert found[bad.run_id].status.state == "error"
    assert "did you mean 'momentum'" in found[bad.run_id].status.reason
    assert found[good.run_id].status.state == "done"


def test_groups_share_a_shape_fit_into_memory_and_keep_slots_busy() -> None:
    specs = [one_spec(seed=seed) for seed in range(12)] + [one_spec(seed=seed, steps=9) for seed in range(2)]
    assert [len(group) for group in groups(specs, slots=1)] == [4, 4, 4, 1, 1]
    assert [len(group) for group in groups(specs, slots=2)] == [2] * 6 + [1, 1]
    assert [len(group) for group in groups(specs[:12], slots=1, group_bytes=1)] == [1] * 12
    assert [spec for group in groups(specs, slots=2) for spec in group] == specs


def test_how_often_a_run_is_evaluated_changes_no_bit_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor its identity: only `best` is over more or fewer of them."""
    spec = one_spec("local-adamw", {"period": 2}, steps=8, peak=0.01)
    curves = {}
    for often in (8, 2, 1):
        monkeypatch.setattr("suite.runs.plan.EVALUATIONS", often)
        outcome = train([spec])[spec.run_id]
        curves[often] = {line["step"]: line for line in outcome.metrics}, lasting(outcome)[0] | {"best": None}
    assert [len(curve) for curve, _ in curves.values()] == [8, 2, 1]
    every, result = curves[8]
    for curve, ended in curves.values():
        assert ended == result
        assert curve.items() <= every.items()


@pytest.fixture
def recorder() -> Recorder:
    """A recorder of a run of one step."""
    return Recorder(one_spec(steps=1), get("quadratic"))


@pytest.mark.parametrize(
    ("losses", "state"),
    [
        ([2.0, 201.0], "diverged"),
        ([0.01, 99.0], None),
        ([0.01, 101.0], "diverged"),
        ([2.0, float("inf")], "diverged"),
    ],
)
def test_what_counts_as_divergence(recorder: Recorder, losses: list[float], state: str | None) -> None:
    for step, loss in enumerate(losses, 1):
        recorder.loss(loss, step)
    assert (recorder.status and recorder.status.state) == state


def test_a_final_metric_that_is_not_finite_is_divergence(recorder: Recorder) -> None:
    recorder.loss(1.0, 1)
    recorder.step("step", {})
    recorder.evaluation({"excess_loss": float("nan")}, 0.1, 0.0)
    recorder.judged({"excess_loss": float("nan")})
    outcome = recorder.outcome([], 0.0, {})
    assert (outcome.status.state, outcome.result["final"]) == ("diverged", {})
    assert outcome.metrics[0]["excess_loss"] is None


def test_an_interrupted_group_counts_as_missing_again(tmp_path: Path) -> None:
    specs, store = [one_spec(seed=seed) for seed in range(2)], Store(tmp_path)

    def interrupt(step: int) -> None:
        assert store.status(specs[0].run_id).state == "running"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(execute(specs, store, interrupt))
    assert {store.status(spec.run_id).state for spec in specs} == {"missing"}
    assert {outcome.status.state for outcome in execute(specs, store)} == {"done"}


def test_what_stops_a_whole_group_is_the_reason_of_all_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(spec: RunSpec) -> None:
        raise DataError("the data of quadratic is missing: install scikit-learn")

    monkeypatch.setattr("suite.training.train.task_of", missing)
    specs, store = [one_spec(seed=seed) for seed in range(2)], Store(tmp_path)
    assert len(list(execute(specs, store))) == 2
    for spec in specs:
        assert store.status(spec.run_id).state == "error"
        assert (
            store.status(spec.run_id).reason
            == "DataError: the data of quadratic is missing: install scikit-learn"
        )


def test_a_second_gradient_is_of_the_runs_own_batches() -> None:
    """ROOT-SGD written down anew, with the samples of each step used at both points."""
    spec = one_spec("root-sgd", {"burn_in": 3, "weight_decay": 0.01}, "quadratic", steps=8, peak=0.1)
    task, rate = task_of(spec), learning_rate(spec)
    gradients, (name, theta) = BatchedGradients(task), next(iter(task.initial().items()))
    shapes = {name: tuple(theta.shape)}
    before, v = theta, torch.zeros_like(theta)
    for step in range(spec.steps):
        here, there = (
            gradients(split(x.expand(2, -1), shapes), task.batch(step))[0][name].mean(0) + 0.01 * x
            for x in (theta, before)
        )
        v = here + step / (step + 1) * (v - there)
        before, theta = theta, theta - (rate(step) if step + 1 >= 3 else 0.0) * v
    (outcome,) = train_group([spec])
    loss = task.evaluate({name: theta})["excess_loss"]
    assert outcome.result["final"]["excess_loss"] == pytest.approx(loss, rel=1e-4)
