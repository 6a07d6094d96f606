"""Trains many runs at once in one process: one gradient call a step for all workers of all runs.

The runs of a group share workload, world size, sharding, steps and batch size; methods, options, learning rates and
seeds may differ. Each run has its own `SimulatedCluster`, which lives in its rows of two shared buffers. A run that
diverges or fails ends alone.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from reference_impls import SimulatedCluster, info
from reference_impls.compilation import paths
from reference_impls.schedules import LearningRate
from suite.runs.canonical import canonical_json
from suite.runs.gradients import COPIES, BatchedGradients, first_difference, flatten, shapes_of, split
from suite.runs.probes import AtProbes, at_probes
from suite.runs.record import EXPECTED_FAULTS, Outcome, Recorder, evaluation_steps
from suite.runs.spec import RunSpec
from suite.workloads import Task, get

GROUP_BYTES: Final = 256 << 20
"""Memory a group may take; beyond it the rows fall out of the processor's caches and nothing is gained."""


def group_key(spec: RunSpec) -> str:
    """Equal for runs that can be trained in one group."""
    workload = canonical_json(spec.workload.as_dict())
    return f"{spec.backend} {workload} {spec.sharding} n={spec.world_size} T={spec.steps} B={spec.batch_size}"


def groups(specs: Iterable[RunSpec], slots: int = 1, group_bytes: int = GROUP_BYTES) -> list[list[RunSpec]]:
    """Cut runs into groups: within memory, at least three a slot where there is enough work, order kept.

    Runs on real process groups stand alone.
    """
    by_key: dict[str, list[RunSpec]] = {}
    for spec in specs:
        by_key.setdefault(group_key(spec), []).append(spec)
    found: list[list[RunSpec]] = []
    for members in by_key.values():
        size = min(_most_runs(members[0], group_bytes), -(-len(members) // (3 * slots)))
        found.extend(members[i : i + size] for i in range(0, len(members), size))
    return found


def train_group(
    specs: Sequence[RunSpec],
    attempts: Mapping[str, int] | None = None,
    progress: Callable[[int], None] = lambda step: None,
) -> Iterator[Outcome]:
    """Train the runs to the end and yield their outcomes. `progress` is called with the completed steps.

    Raises ValueError when the runs cannot share a group. Needs about `COPIES` floats a parameter, worker and run.
    """
    if len({group_key(spec) for spec in specs}) > 1:
        raise ValueError("these runs cannot be trained together: cut them with groups()")
    started = time.perf_counter()
    tasks = {spec.seed: task_of(spec) for spec in specs}
    n = specs[0].world_size
    initial = {seed: task.initial() for seed, task in tasks.items()}
    shapes = shapes_of(initial[specs[0].seed])
    size = flatten(initial[specs[0].seed]).numel()
    params, grads = torch.empty(len(specs) * n, size), torch.zeros(len(specs) * n, size)
    members = [
        _Member(
            spec,
            tasks[spec.seed],
            initial[spec.seed],
            (params[i * n : (i + 1) * n], grads[i * n : (i + 1) * n]),
            (attempts or {}).get(spec.run_id, 1),
        )
        for i, spec in enumerate(specs)
    ]
    gradient_rows, parameter_rows = split(grads, shapes), split(params, shapes)
    gradients = BatchedGradients(tasks[specs[0].seed])
    evaluate_at = evaluation_steps(specs[0].steps)
    for step in range(specs[0].steps):
        batches = {seed: task.batch(step) for seed, task in tasks.items()}
        rows = [torch.cat(part) for part in zip(*(batches[spec.seed] for spec in specs), strict=True)]
        found, losses = gradients(parameter_rows, rows)
        for name, gradient in found.items():
            gradient_rows[name].copy_(gradient)
        there = at_probes([member.cluster for member in members], gradients, list(shapes), rows)
        means = losses.view(len(specs), n).mean(1).tolist()
        for member, loss, probes in zip(members, means, there, strict=True):
            member.step(step, loss, probes)
        if step + 1 in evaluate_at:
            for member in members:
                member.evaluate(step)
            progress(step + 1)
        if all(member.recorder.status for member in members):
            break
    for member in members:
        member.compare_replicas()
    train_s = (time.perf_counter() - started) / len(specs)
    for member in members:
        yield member.outcome(train_s)
    members.clear()
    gc.collect()  # a cluster is a cycle of objects: its buffers would wait for the collector, group after group


class _Member:
    """One run of the group: its cluster in its rows, its recorder."""

    def __init__(
        self,
        spec: RunSpec,
        task: Task,
        initial: Mapping[str, Tensor],
        storage: tuple[Tensor, Tensor],
        attempt: int,
    ) -> None:
        self.spec = spec
        self.recorder = Recorder(spec, task.workload, attempt)
        self._task = task
        self._rate = learning_rate(spec)
        self._params = storage[0]
        self._shapes = shapes_of(initial)
        self._cluster: SimulatedCluster | None = None
        storage[0].copy_(flatten(initial))
        try:
            self._cluster = SimulatedCluster(
                spec.algorithm.name,
                list(initial.values()),
                world_size=spec.world_size,
                lr=spec.lr.peak,
                seed=spec.seed,
                names=list(initial),
                bucket_bytes=spec.bucket_bytes,
                storage=storage,
                **spec.algorithm.options,
            )
        except EXPECTED_FAULTS as error:
            self.recorder.fault(error)

    @property
    def cluster(self) -> SimulatedCluster | None:
        """The cluster; None when the run has ended."""
        return self._cluster if self.recorder.status is None else None

    def step(self, step: int, loss: float, probes: AtProbes) -> None:
        """Apply the gradients in the rows, and those at the method's probes, unless the run has ended."""
        if self.recorder.status is None:
            self.recorder.loss(loss)
        if self.recorder.status is not None or self._cluster is None:
            return
        before = paths()
        self._cluster.observe(loss=loss)
        try:
            self._cluster.step(lr=self._rate(step), probes=probes)
        except EXPECTED_FAULTS as error:
            self.recorder.fault(error)
            return
        self.recorder.step(self._cluster.kind, taken(before, paths()))

    def evaluate(self, step: int) -> None:
        """Evaluate rank 0's parameters as they are after this step."""
        if self.recorder.status is None:
            scores = self._task.evaluate(
                {name: rows[0] for name, rows in split(self._params, self._shapes).items()}
            )
            self.recorder.evaluation(scores, self._rate(step))

    def compare_replicas(self) -> None:
        """At the end all ranks must hold the same bits: what was evaluated would else be one rank's own model."""
        if self.recorder.status is not None:
            return
        difference = first_difference(self._params, self._shapes)
        if difference:
            self.recorder.end("invalid", difference)

    def outcome(self, train_s: float) -> Outcome:
        """Close the run."""
        ledger = [] if self._cluster is None else self._cluster.ledger.totals()
        return self.recorder.outcome(ledger, train_s, sources(self.spec))


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
    return {"algorithm": info(spec.algorithm.name).source_hash}


def taken(
    before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]
) -> dict[str, set[str]]:
    """Which paths each compiled function took between two counts."""
    grown = {
        name: {path for path, calls in counts.items() if calls > before.get(name, {}).get(path, 0)}
        for name, counts in after.items()
    }
    return {name: found for name, found in grown.items() if found}


def _most_runs(spec: RunSpec, group_bytes: int) -> int:
    if spec.backend != "simulated":
        return 1
    elements = flatten(task_of(spec).initial()).numel()
    return max(1, group_bytes // (elements * 4 * COPIES * spec.world_size))
