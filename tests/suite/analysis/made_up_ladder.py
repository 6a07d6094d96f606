"""A made-up study with a budget ladder whose answers are known: accuracy rises by two points with each doubling of the steps.

An arm that loses L points is where its baseline ends at 2^(L / 2) times the steps; what it saves in bytes a step is the
`ratio` of the made-up study.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from suite.analysis.study import Entry, Study
from suite.runs.spec import RunSpec
from suite.runs.store import Status, Store
from tests.suite.analysis import made_up_study as made
from tests.suite.analysis.made_up_study import Made, arm

BUDGETS = (0.5, 0.71, 1.0, 1.41)
POINTS_A_DOUBLING = 2.0

MADE = (
    Made(arm("allreduce-sgd", "baseline", None), (0.0, 0.0), 0.0, 1.0, 0.1),
    Made(arm("allreduce-lion", "baseline", None), (0.3, 0.5), 0.0, 1.0, 0.0003),
    Made(arm("global-qsgd standard", "quantiser", "allreduce-sgd"), (0.4, 0.6), 0.0, 4.0),
    Made(arm("local-sgd H=4", "synchronisation", "allreduce-sgd"), (-0.5, 3.0), 0.0, 4.0),
    Made(arm("qsr-sgd", "synchronisation", "allreduce-sgd"), (-3.0, 0.2), 0.0, 6.0),
    Made(arm("lion-cub-1bit never", "sign", "allreduce-lion"), (0.9, 30.0), 0.0, 32.0),
    Made(arm("control-no-communication", "control", "allreduce-sgd", True), (4.0, 25.0), 0.0, 100.0),
    Made(arm("control-one-worker", "control", "allreduce-sgd", True), (6.0, 40.0), 0.0, math.inf),
)  # fmt: skip
NOISE = 0.05
"""Standard deviation of what a run draws for itself, in points."""


def steps_at(budget: float) -> int:
    """Of a rung."""
    return round(made.STEPS * budget)


def result_of(made_: Made, spec: RunSpec, noise: float = NOISE) -> dict[str, Any]:
    """What a finished run of a rung leaves."""
    loss = made_.losses[spec.sharding == "by-class"]
    split = np.random.default_rng([9, spec.seed]).normal(0, 0.6)
    own = np.random.default_rng([8, spec.seed, int(spec.run_id[:6], 16)]).normal(0, noise)
    accuracy = 90.0 - loss + split + own + POINTS_A_DOUBLING * math.log2(spec.steps / made.STEPS)
    found = made.result_of(made_, spec)
    return {**found, "final": {**found["final"], "accuracy": accuracy}}


def study_of(seeds: int = 6, name: str = "climbed") -> Study:
    """The study as the planner would give it: every rung of every arm."""
    plain = made.study_of(seeds, made=MADE, name=name, margin=0.5)
    entries = [
        Entry(e.arm, e.workload, replace(e.spec, steps=steps_at(budget)), budget)
        for budget in BUDGETS
        for e in plain.entries
    ]
    return replace(plain, entries=tuple(entries))


def run_all(root: Path, study: Study, noise: float = NOISE) -> Store:
    """Give every planned run a folder with a finished result."""
    store, by_name = Store(root), {m.arm.name: m for m in MADE}
    for entry in study.entries:
        made.finish(store, entry.spec, Status("done"), result_of(by_name[entry.arm], entry.spec, noise))
    return store
