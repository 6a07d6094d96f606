"""Names and a few options -> a whole spec: looks methods and workloads up, checks values, fills in defaults.

Everything that can be wrong with a run is found here, before anything runs: unknown names and options (with the
nearest match), values of a wrong type, a world size or bit width that a method cannot serve.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from reference_impls import create, info
from reference_impls.catalogue import BUILT_IN
from reference_impls.errors import UnknownOptionError, nearest
from reference_impls.registry import registry
from reference_impls.schedules import LearningRate
from suite.runs.answers import answered
from suite.runs.spec import Part, Rate, RunSpec, SpecError


def resolve_algorithm(
    name: str, options: Mapping[str, Any], world_size: int, steps: int, lr_warmup: int = 0
) -> Part:
    """The method with all its options and those of its optimizer.

    A method that must know the course of the training is told: `total_steps` and `lr_warmup_steps` are those of the
    run unless given.

    Raises ValueError (unknown names, impossible values) with what to do.
    """

    def work_out() -> dict[str, Any]:
        return _resolve_algorithm(name, options, world_size, steps, lr_warmup).as_dict()

    if name not in BUILT_IN:
        return Part(**work_out())
    question = ["algorithm", name, dict(options), world_size, steps, lr_warmup]
    return Part(**answered(question, work_out))


def source_hash(name: str) -> str:
    """The hash of a method's source, see `reference_impls.info`."""

    def work_out() -> str:
        return info(name).source_hash

    return str(answered(["source", name], work_out)) if name in BUILT_IN else work_out()


def _resolve_algorithm(
    name: str, options: Mapping[str, Any], world_size: int, steps: int, lr_warmup: int
) -> Part:
    from reference_impls.collectives import Group  # here, since it needs torch

    about = info(name)
    if "lr" in options:
        raise UnknownOptionError(
            f"{name}: lr is no option of the method; say it with the run's learning rate"
        )
    given = dict(options)
    for key, value in {"total_steps": steps, "lr_warmup_steps": lr_warmup}.items():
        if key in about.options:
            given.setdefault(key, value)
    method = create(name, **given)
    method.algorithm.check(Group("world", 0, world_size))
    fixed = registry.entry(name).preset
    own = {
        f.name: getattr(method.algorithm, f.name)
        for f in dataclasses.fields(method.algorithm)
        if f.name not in fixed
    }
    hyper = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in method.hyperparameters.items()
    }
    return Part(name, about.version, {**own, **hyper})


def resolve_workload(name: str, options: Mapping[str, Any], sharding: str) -> Part:
    """The workload with all its options. Raises ValueError for unknown names, and a sharding that it does not have."""

    def work_out() -> dict[str, Any]:
        return _resolve_workload(name, options, sharding).as_dict()

    return Part(**answered(["workload", name, dict(options), sharding], work_out))


def _resolve_workload(name: str, options: Mapping[str, Any], sharding: str) -> Part:
    from suite.workloads import get  # here, since it needs torch

    workload = get(name, **options)
    if sharding not in workload.shardings:
        raise SpecError(
            f"workload {name} has no sharding {sharding!r}{nearest(sharding, workload.shardings)}"
        )
    return Part(name, workload.version, workload.options)


def make_spec(
    *,
    algorithm: Part,
    workload: Part,
    sharding: str,
    world_size: int,
    steps: int,
    batch_size: int,
    lr: Rate,
    seed: int,
    backend: str,
    bucket_bytes: int,
) -> RunSpec:
    """The spec of resolved parts. Raises ValueError for an impossible learning-rate schedule or number."""
    LearningRate(schedule=lr.schedule, peak=lr.peak, min=lr.min, warmup=lr.warmup, total=steps)
    return RunSpec(
        algorithm=algorithm,
        workload=workload,
        sharding=sharding,
        world_size=world_size,
        backend=backend,
        steps=steps,
        batch_size=batch_size,
        lr=lr,
        bucket_bytes=bucket_bytes,
        seed=seed,
    )
