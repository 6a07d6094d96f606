"""A small project of its own for a test: a sweep file with pinned learning rates, and specs of single runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from reference_impls.core.algorithm import Algorithm
from reference_impls.core.registry import Entry, registry
from suite.runs.plan import groups, make_plan
from suite.runs.spec import Rate, RunSpec, resolve_algorithm, resolve_workload
from suite.runs.store import Outcome, Store
from suite.runs.sweep import Sweep, Trial, Tuned, load_sweep, tuned_for, write_rates
from suite.training.checkpoint import Interruption
from suite.training.execute import execute
from suite.training.train import Recorder
from suite.workloads import get

SWEEP = """\
title: a small study
workloads: [quadratic]
shardings: [iid]
world_size: 2
steps: 12
batch_size: 2
seeds: 3
lr: {schedule: cosine, warmup: 2, min_ratio: 0.1}
arms:
  plain: {algorithm: allreduce-sgd, lr: 0.1}
  local: {algorithm: local-sgd, options: {period: 4}, baseline: plain, lr: 0.1}
"""
TUNABLE = SWEEP.replace(", lr: 0.1}", "}")


def write_sweep(folder: Path, text: str = SWEEP, name: str = "small") -> str:
    """Write a sweep file; returns its path, as commands take it."""
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def with_rates(
    sweep: str, losses: Callable[[str], Mapping[float, Sequence[float]]], lr: float, edge: str = "none"
) -> Sweep:
    """The sweep with a file of tuned rates. losses: of an arm, by rate and tuning seed; lr: what is chosen."""
    loaded, entries = load_sweep(sweep), []
    panel = next(loaded.panels())
    place = {"workload": panel.workload.label, "sharding": panel.sharding, "world_size": panel.world_size}
    for arm in loaded.arms_of(panel):
        trials = [
            Trial(
                lr=rate, value=sum(values) / len(values), values=tuple(values), status="done",
                runs=tuple(f"{seed:016x}" for seed in range(len(values))),
            )
            for rate, values in losses(arm.label).items()
        ]  # fmt: skip
        of = tuned_for(loaded, panel, arm)
        entries.append(Tuned(**place, arm=arm.label, lr=lr, edge=edge, tuned_for=of, trials=tuple(trials)))
    write_rates(loaded, entries)
    return load_sweep(sweep)


def train_here(sweep: str, results: Path, only: str | None = None) -> None:
    """Train the runs of a sweep in this process: what `bandwise sweep` makes, without a worker and its import of torch."""
    store = Store(results)
    for group in groups(make_plan(load_sweep(sweep), only).specs):
        for spec in group:
            store.put_spec(spec)
        assert {outcome.status.state for outcome in execute(group, store)} == {"done"}


def one_spec(
    algorithm: str = "allreduce-sgd",
    options: dict[str, Any] | None = None,
    workload: str = "quadratic",
    *,
    sharding: str = "iid",
    world_size: int = 2,
    steps: int = 6,
    batch_size: int = 4,
    peak: float = 0.05,
    seed: int = 0,
    backend: str = "simulated",
    workload_options: dict[str, Any] | None = None,
) -> RunSpec:
    """A spec by names."""
    return RunSpec.of(
        algorithm=resolve_algorithm(algorithm, options or {}, world_size, steps),
        workload=resolve_workload(workload, workload_options or {}, sharding),
        sharding=sharding,
        world_size=world_size,
        steps=steps,
        batch_size=batch_size,
        lr=Rate("constant", peak, 0.0, 0),
        seed=seed,
        backend=backend,
        bucket_bytes=1 << 20,
    )


def ended(spec: RunSpec, state: str = "done", reason: str = "") -> Outcome:
    """An outcome as a real run leaves it, without training."""
    recorder = Recorder(spec, get(spec.workload.name, **spec.workload.options))
    metric = get(spec.workload.name, **spec.workload.options).metric
    for step in range(spec.steps):
        recorder.loss(1.0, step + 1)
        recorder.step("step", {})
    if state == "done":
        recorder.evaluation({metric: 0.5 + spec.seed}, 0.1, 0.0)
        recorder.judged({metric: 0.5 + spec.seed})
    else:
        recorder.end(state, reason)
    return recorder.outcome([], 1.5, {"algorithm": "0123456789abcdef"})


def register(monkeypatch: pytest.MonkeyPatch, method: type[Algorithm]) -> str:
    """Make a method known to one test; returns its name."""
    name = f"test-{method.__name__.lower()}"
    entry = Entry(f"{method.__module__}:{method.__name__}", "plugin", "", "a test")
    monkeypatch.setitem(registry._entries, name, entry)
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda asked: method if asked == name else load(asked))
    return name


MOVING = frozenset({"attempt", "provenance", "train_s"})
"""What of a result tells when and where it was computed, and nothing of what."""


def lasting(outcome: Outcome) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Result and curve of an outcome, without what may differ between two trainings of one run."""
    result = {key: value for key, value in outcome.result.items() if key not in MOVING}
    return result, [dict(line) for line in outcome.metrics]


def kept(store: Store, run_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The same of what a store holds."""
    result = store.result(run_id)
    assert result is not None, store.status(run_id)
    return {key: value for key, value in result.items() if key not in MOVING}, store.metrics(run_id)


class After(Interruption):
    """Asks for a stop after so many steps, by counting how often it is looked at."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._left = steps

    @property
    def requested(self) -> str | None:
        """Why to stop."""
        self._left -= 1
        return "a test" if self._left < 0 else None


def beats(store: Store, spec: RunSpec) -> bool:
    """Whether a run has shown life since it began."""
    note = store.note(spec.run_id)
    path = store.folder(spec.run_id) / "status.json"
    return note is not None and path.stat().st_mtime > note.updated_s + 0.5
