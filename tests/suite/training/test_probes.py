"""Runs of a method that wants a second gradient: alone, in company and on real processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from suite.runs.spec import RunSpec, learning_rate, task_of
from suite.runs.store import Outcome, Store
from suite.training.execute import execute
from suite.training.train import BatchedGradients, split, train_group
from tests.suite.runs.project import one_spec

OPTIONS = {"burn_in": 3, "weight_decay": 0.01}


def root(workload: str = "digits-mlp", seed: int = 0, backend: str = "simulated", steps: int = 6) -> RunSpec:
    return one_spec("root-sgd", OPTIONS, workload, steps=steps, peak=0.1, seed=seed, backend=backend)


def numbers(outcome: Outcome) -> list[dict[str, float | None]]:
    assert outcome.status.state == "done", outcome.status.reason
    return list(outcome.metrics)


@pytest.mark.parametrize("workload", [pytest.param("digits-mlp", marks=pytest.mark.full), "quadratic"])
def test_a_run_has_the_same_bits_alone_and_among_others(workload: str) -> None:
    """Two seeds of it and, in between, a run that wants no second gradient."""
    others = [root(workload), one_spec(workload=workload, peak=0.1), root(workload, seed=1)]
    together = list(train_group(others))
    for spec, outcome in zip(others, together, strict=True):
        (alone,) = train_group([spec])
        assert numbers(alone) == numbers(outcome)
    assert numbers(together[0]) != numbers(together[2])
    assert together[0].result["steps_by_kind"] == {"burn-in": 3, "step": 3}


def test_it_is_the_recursion_on_the_runs_own_batches() -> None:
    """ROOT-SGD written down anew, with the samples of each step used at both points."""
    spec = root("quadratic", steps=8)
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


@pytest.mark.gloo
@pytest.mark.full
def test_real_processes_give_the_bits_and_bytes_of_the_simulation(tmp_path: Path) -> None:
    """A sum over two ranks has one order only, so nothing may differ."""
    spec = root(backend="gloo", steps=5)
    (real,) = execute([spec], Store(tmp_path))
    (simulated,) = train_group([replace(spec, backend="simulated")])
    assert numbers(real) == numbers(simulated)
    for key in ("bytes", "final", "steps_by_kind"):
        assert real.result[key] == simulated.result[key]
