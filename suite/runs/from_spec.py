"""What a spec stands for, worked out: its task, its learning rate, the hash of its method's source. Needs torch."""

from __future__ import annotations

from typing import Any

from reference_impls.schedules import LearningRate
from suite.runs.resolve import source_hash
from suite.runs.spec import RunSpec
from suite.workloads import Task, get


def task_of(spec: RunSpec) -> Task:
    """The task that a run trains on."""
    workload = get(spec.workload.name, **spec.workload.options)
    return workload.task(spec.seed, spec.world_size, spec.sharding, spec.batch_size)


def learning_rate(spec: RunSpec) -> LearningRate:
    """The learning rate of a run as a function of the completed steps."""
    return LearningRate(
        schedule=spec.lr.schedule, peak=spec.lr.peak, min=spec.lr.min, warmup=spec.lr.warmup, total=spec.steps
    )


def sources(spec: RunSpec) -> dict[str, Any]:
    """Hash of the method's source, by which a result is found to be older than its code."""
    return {"algorithm": source_hash(spec.algorithm.name)}
