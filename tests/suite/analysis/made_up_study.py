"""A made-up study with run folders on disk: what a sweep leaves, without training anything.

The effects are chosen, so that tests know what the tables must say: each arm has a mean loss in points and a
spread per sharding, and seeds share a split effect that pairing has to take out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from suite.analysis.study import Arm, Entry, Study, Yardstick
from suite.runs.files import dump
from suite.runs.spec import Part, Rate, RunSpec
from suite.runs.store import Status, Store
from suite.runs.sweep import ONE_WORKER

RING_BYTES = 2 * 3 / 4 * 4 * 301_066
STEPS = 200
SOURCE = "a1b2c3d4"
PROVENANCE: dict[str, Any] = {
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "dirty": False,
    "environment_hash": "feedfacecafebeef",
    "torch": "2.13.0",
    "python": "3.11.2",
    "system": "Linux x86_64",
    "cpu": "Some Processor",
    "cores": 2,
    "threads": 1,
    "host_hash": "00000000000000aa",
    "variables": {},
}
DIGITS = Yardstick("accuracy", "points", "higher", 0.4)


@dataclass(frozen=True)
class Made:
    """One arm: what it is, its loss in points (i.i.d., by class), its spread and how many fewer bytes it
    sends.
    """

    arm: Arm
    losses: tuple[float, float]
    spread: float
    ratio: float
    rate: float = 0.01


def arm(name: str, family: str, baseline: str | None, control: bool = False) -> Arm:
    """An arm whose algorithm is the first word of its label."""
    algorithm = name.partition(" ")[0]
    return Arm(name, algorithm, family, baseline, control, alternative=algorithm == ONE_WORKER)


MADE = (
    Made(arm("allreduce-sgd", "baseline", None), (0.0, 0.0), 0.0, 1.0, 0.1),
    Made(arm("allreduce-adamw", "baseline", None), (0.1, 0.1), 0.1, 1.0, 0.003),
    Made(arm("allreduce-lion", "baseline", None), (0.0, 0.2), 0.1, 1.0, 0.0003),
    Made(arm("lion-cub-1bit never", "sign", "allreduce-lion"), (0.05, 36.0), 0.2, 31.9),
    Made(arm("lion-cub-1bit K=100", "sign", "allreduce-lion"), (0.0, 6.0), 0.2, 24.5),
    Made(arm("lion-cub-1bit K=10", "sign", "allreduce-lion"), (-0.02, 0.1), 0.15, 7.7),
    Made(arm("lion-cub-pbit p=8 L1", "sign", "allreduce-lion"), (0.0, 3.1), 0.2, 4.0),
    Made(arm("global-qsgd standard", "quantiser", "allreduce-sgd"), (0.02, 0.05), 0.12, 4.0),
    Made(arm("global-qsgd exponential", "quantiser", "allreduce-sgd"), (0.3, 0.5), 0.2, 3.9),
    Made(arm("apmsqueeze", "adam", "allreduce-adamw"), (0.2, 1.2), 0.3, 5.6),
    Made(arm("local-sgd H=4", "synchronisation", "allreduce-sgd"), (0.0, 0.6), 0.15, 4.0),
    Made(arm("local-sgd H=16", "synchronisation", "allreduce-sgd"), (-0.25, 4.5), 0.2, 15.4),
    Made(arm("local-adamw H=4", "synchronisation", "allreduce-adamw"), (0.0, 0.9), 0.2, 4.0),
    Made(arm("qsr-sgd", "synchronisation", "allreduce-sgd"), (-0.1, 2.0), 0.2, 6.4),
    Made(
        arm("control-no-communication", "control", "allreduce-sgd", True), (0.9, 25.0), 0.2, 100.0
    ),
    Made(
        arm("control-one-worker", "control", "allreduce-sgd", True), (2.1, 60.0), 0.4, float("inf")
    ),
    Made(arm("control-random-k", "control", "allreduce-sgd", True), (3.0, 8.0), 0.4, 98.0),
    Made(
        arm("control-one-rank-sign", "control", "allreduce-sgd", True), (1.4, 40.0), 0.3, 31.0
    ),
)  # fmt: skip

FEW = tuple(m for m in MADE if m.arm.baseline in {None, "allreduce-sgd"} and "exponential" not in m.arm.name)
"""The arms around one optimizer, for tests that need no more."""


def spec_of(made: Made, sharding: str, seed: int) -> RunSpec:
    """The spec of one made-up run; the label goes into the options, so that arms have ids of their own."""
    return RunSpec(
        algorithm=Part(made.arm.algorithm, 1, {"label": made.arm.name}),
        workload=Part("digits-mlp", 1, {}),
        sharding=sharding,
        world_size=4,
        backend="simulated",
        steps=STEPS,
        batch_size=32,
        lr=Rate("cosine", made.rate, 0.0, 10),
        bucket_bytes=4 << 20,
        seed=seed,
    )


def result_of(made: Made, spec: RunSpec) -> dict[str, Any]:
    """What a finished run leaves in result.json."""
    loss = made.losses[spec.sharding == "by-class"]
    split = np.random.default_rng([9, spec.seed]).normal(0, 0.6)
    draw = np.random.default_rng([9, spec.seed, int(spec.run_id[:6], 16)]).normal(0, made.spread)
    right = round((97.0 - loss + split + draw) * 5.4)
    wire = RING_BYTES / made.ratio * spec.steps
    return {
        "schema_version": 2,
        "run_id": spec.run_id,
        "spec": spec.as_dict(),
        "status": "done",
        "reason": "",
        "attempt": 1,
        "metric": "accuracy",
        "direction": "higher",
        "directions": {"accuracy": "higher", "nll": "lower"},
        "final": {"accuracy": right / 5.4, "nll": 0.1 + 0.035 * loss + 0.01 * split},
        "best": right / 5.4,
        "train_loss_last": 0.01,
        "steps": spec.steps,
        "bytes": {
            "payload_per_rank_mean": wire / 1.5,
            "payload_per_rank_max": wire / 1.5,
            "wire_per_rank_mean": wire,
            "wire_per_rank_max": wire,
            "by": [],
        },
        "steps_by_kind": {"step": spec.steps - 20, "sync": 20},
        "path": {},
        "sources": {"algorithm": SOURCE},
        "train_s": 1.0,
        "provenance": PROVENANCE,
    }


def finish(store: Store, spec: RunSpec, status: Status, result: dict[str, Any]) -> None:
    """Write the run's folder as a sweep would, with a fixed time, so that two studies have the same bytes."""
    folder = store.folder(spec.run_id)
    folder.mkdir(parents=True, exist_ok=True)
    noted = {
        "state": status.state,
        "reason": status.reason,
        "attempt": 1,
        "updated_s": 1_800_000_000.0 + spec.seed,
    }
    (folder / "spec.json").write_text(spec.to_json())
    (folder / "status.json").write_text(dump(noted))
    (folder / "result.json").write_text(dump({**result, "status": status.state, "reason": status.reason}))


def study_of(
    seeds: int = 6, ranks: bool = False, made: tuple[Made, ...] = MADE, name: str = "made-up", **yard: float
) -> Study:
    """The study as the planner would give it."""
    entries = [
        Entry(m.arm.name, "digits-mlp", spec_of(m, sharding, seed))
        for m in made
        for sharding in ("iid", "by-class")
        for seed in range(seeds)
    ]
    yardstick = Yardstick("accuracy", "points", "higher", yard.get("margin", DIGITS.margin))
    return Study(
        name,
        tuple(m.arm for m in made),
        tuple(entries),
        {"digits-mlp": yardstick},
        ranks,
        command=f"bandwise sweep {name}",
        about="A made-up study.",
    )


def run_all(root: Path, study: Study, made: tuple[Made, ...] = MADE) -> Store:
    """Give every planned run a folder with a finished result."""
    store = Store(root)
    by_name = {m.arm.name: m for m in made}
    for entry in study.entries:
        finish(store, entry.spec, Status("done"), result_of(by_name[entry.arm], entry.spec))
    return store


def fail(store: Store, study: Study, arm_name: str, sharding: str, seed: int, status: Status) -> RunSpec:
    """Turn one finished run into a failure; the numbers it had so far stay in the file, as they would."""
    spec = next(
        e.spec
        for e in study.entries
        if (e.arm, e.spec.sharding, e.spec.seed) == (arm_name, sharding, seed)
    )  # fmt: skip
    result = store.result(spec.run_id) or {}
    finish(store, spec, status, {**result, "steps": 57})
    return spec
