"""Made-up tables of a study that is judged over rho: what each training is worth, and what it costs, is known.

The reference ends at `loss(budget)` bits a byte; an arm that is worth the budget b ends at loss(b).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from suite.analysis.collect import collect, write
from suite.analysis.study import Arm, Entry, Study, Yardstick
from suite.runs.spec import Part, Rate, RunSpec
from suite.runs.store import Status, Store
from suite.runs.sweep import PLAIN
from tests.suite.analysis import made_up_study as made

NAME: Final = "over-rho"
BUDGETS: Final = (1 / 8, 1 / 4, 1 / 2, 0.71, 1.0, 1.41)
STEPS: Final = 1444
WORLD: Final = 4
BF16: Final = 2 * 147_776 * 2 * 3 / 4
"""Bytes a step of plain training."""


@dataclass(frozen=True)
class Made:
    """An arm, what it is worth, and its steps, batch and bytes over those of plain training."""

    arm: Arm
    worth: float = 1.0
    steps: float = 1.0
    batch: int = 1
    nbytes: float = 1.0


def method(name: str, algorithm: str, family: str, worth: float, nbytes: float) -> Made:
    return Made(Arm(name, algorithm, family, PLAIN), worth, nbytes=nbytes)


MADE: Final = (
    Made(Arm(PLAIN, PLAIN, "baseline")),
    Made(Arm("plain-fp32", "allreduce-adamw", "baseline", PLAIN), nbytes=2.0),
    Made(Arm("allreduce-lion", "allreduce-lion", "baseline"), 0.8),
    Made(Arm("one-worker", PLAIN, "baseline", PLAIN, alternative=True, apart=True), 0.3, nbytes=0.0),
    Made(Arm("accumulate-2", PLAIN, "baseline", PLAIN, alternative=True, apart=True), 0.92, 0.5, 2),
    method("diloco", "diloco", "synchronisation", 0.9, 1 / 32),
    method("local-adamw-32", "local-adamw", "synchronisation", 0.6, 1 / 32),
    method("qsr-adamw", "qsr-adamw", "synchronisation", 0.8, 1 / 8),
    method("snoo", "snoo", "synchronisation", 1.1, 1.0),
    method("global-qsgd", "global-qsgd", "quantiser", 0.97, 0.5),
    method("lion-cub", "lion-cub-1bit", "sign", 0.15, 1 / 16),
    Made(Arm("control-no-communication", "control-no-communication", "control", PLAIN, control=True), 0.13, nbytes=0.01),
)  # fmt: skip


def loss(budget: float) -> float:
    """Bits a byte of the reference."""
    return 1.5 + 0.3 * budget**-0.4


def entry(one: Made, seed: int, budget: float, workload: str, steps: int) -> Entry:
    """A run of an arm."""
    name, _, size = workload.removesuffix(")").partition("(size=")
    spec = RunSpec(
        algorithm=Part(one.arm.algorithm, 1, {"label": one.arm.name}),
        workload=Part(name, 1, {"size": size}),
        sharding="iid",
        world_size=WORLD if one.nbytes else 1,
        backend="simulated",
        steps=round(steps * one.steps * budget),
        batch_size=2 * one.batch,
        lr=Rate("cosine", 0.008, 0.05, 10),
        bucket_bytes=4 << 20,
        seed=seed,
    )
    return Entry(one.arm.name, workload, spec, budget, WORLD)


def study_of(
    name: str = NAME, workload: str = "python-gpt(size=0.15m)", steps: int = STEPS, seeds: int = 6
) -> Study:
    """The study as the planner would give it: the reference at every budget, all others at 1."""
    entries = [
        entry(one, seed, budget, workload, steps)
        for one in MADE
        for budget in (BUDGETS if one.arm.name == PLAIN else (1.0,))
        for seed in range(seeds)
    ]
    return Study(
        name,
        tuple(one.arm for one in MADE),
        tuple(entries),
        {workload: Yardstick("bits_per_byte", "bits/byte", "lower", 0.02)},
        references=(PLAIN,),
        by_rho=True,
        command=f"bandwise sweep {name}",
        about="A made-up study over rho.",
    )


def result_of(one: Made, entry: Entry, worths: Mapping[str, float], noise: float) -> dict[str, Any]:
    """What a finished run leaves."""
    spec = entry.spec
    own = np.random.default_rng([8, spec.seed, int(spec.run_id[:6], 16)]).normal(0, noise)
    split = np.random.default_rng([9, spec.seed]).normal(0, 0.02)
    worth = entry.budget if one.arm.name == PLAIN else worths.get(one.arm.name, one.worth)
    value, wire = loss(worth) + split + own, BF16 * one.nbytes * spec.steps
    sent = {"payload_per_rank_mean": wire, "payload_per_rank_max": wire}
    sent |= {"wire_per_rank_mean": wire, "wire_per_rank_max": wire}
    return {
        "schema_version": 2,
        "run_id": spec.run_id,
        "spec": spec.as_dict(),
        "attempt": 1,
        "metric": "bits_per_byte",
        "direction": "lower",
        "directions": {"bits_per_byte": "lower", "nll": "lower"},
        "final": {"bits_per_byte": value, "nll": value},
        "best": value,
        "train_loss_last": 1.0,
        "steps": spec.steps,
        "bytes": {**sent, "by": []},
        "steps_by_kind": {"step": spec.steps},
        "path": {},
        "sources": {"algorithm": made.SOURCE},
        "train_s": 1.0,
        "provenance": made.PROVENANCE,
    }


def save(root: Path, study: Study | None = None, noise: float = 0.002, **worths: float) -> Study:
    """Run folders and tables; returns the study. worths: of arms, `-` written as `_`, that are worth something else. Windows of
    verdicts end at sixteenths between values of the grid, which takes a fifth of the time.
    """
    found = study or study_of()
    store, by_name = Store(root), {one.arm.name: one for one in MADE}
    changed = {name.replace("_", "-"): worth for name, worth in worths.items()}
    for run in found.entries:
        result = result_of(by_name[run.arm], run, changed, noise)
        made.finish(store, run.spec, Status("done"), result)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("suite.analysis.rho.HALVINGS", 4)
        write(root, collect(root, found))
    return found
