"""Many runs trained at once, from the gradients of all their workers in one batched call.

Row r of every tensor belongs to one worker. Rows may belong to different runs and seeds of one workload. A row's result does
not depend on how many rows are computed with it, so a run has the same bits alone, in any group, and on a real process group.
`at_probes` gives the gradients at the points where a method wants them besides its parameters, of the same samples.

The runs of a group share workload, world size, sharding, steps and batch size; methods, options, learning rates and
seeds may differ. Each run is a `Member` with its own `SimulatedCluster`, which lives in its rows of two shared
buffers, and its own recorder. A run that diverges or fails ends alone.

On a GPU bits do depend on the group, and differ from one time to the next: its kernels are chosen by the size of a call, and some
add in no fixed order. Initial parameters, batches and every coin that a method tosses are those of the same run on a processor.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from reference_impls import SimulatedCluster
from reference_impls.compilation import paths
from suite.runs.plan import evaluation_steps, group_key
from suite.runs.spec import RunSpec, learning_rate, source_of, sources, task_of
from suite.runs.store import Outcome
from suite.training.checkpoint import Action, Checkpoint, CheckpointPolicy, Interrupted, Start
from suite.training.record import EXPECTED_FAULTS, LedgerSums, Recorder
from suite.workloads import DataWorkload, Task

Shapes = Mapping[str, Sequence[int]]


class BatchedGradients:
    """The gradient function of a workload over rows of workers."""

    def __init__(self, task: Task) -> None:
        self._function = vmap(grad_and_value(task.loss))

    def __call__(
        self, params: Mapping[str, Tensor], batch: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients name -> [rows, *shape] and losses [rows] for parameters name -> [rows, *shape].

        batch: tensors [rows, batch, ...].
        """
        gradients, losses = self._function(dict(params), *batch)
        return gradients, losses.detach()


def shapes_of(values: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Name -> shape, in order."""
    return {name: tuple(value.shape) for name, value in values.items()}


def split(rows: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Views name -> [rows, *shape] of flat rows [rows, elements], in the order of `shapes`."""
    found, start = {}, 0
    for name, shape in shapes.items():
        size = torch.Size(shape).numel()
        found[name] = rows[:, start : start + size].view(-1, *shape)
        start += size
    return found


def flatten(values: Mapping[str, Tensor]) -> Tensor:
    """The parameters as one flat tensor [elements]."""
    return torch.cat([value.reshape(-1) for value in values.values()])


def first_difference(rows: Tensor, shapes: Shapes) -> str | None:
    """Where the flat parameter rows [ranks, elements] are not all the same bits, in words; None when they are."""
    for name, values in split(rows, shapes).items():
        bits = values.reshape(len(rows), -1).view(torch.int32)
        differing = (bits != bits[0]).any(1).nonzero().flatten().tolist()
        if differing:
            return (
                f"at the end ranks 0 and {differing[0]} hold different parameters, first in {name!r}: "
                "the method did not synchronise"
            )
    return None


AtProbes = dict[str, list[list[Tensor]]]
"""Probe -> [rank][parameter], as `SimulatedCluster.step` takes it."""


def at_probes(
    clusters: Sequence[SimulatedCluster | None],
    gradients: BatchedGradients,
    names: Sequence[str],
    batch: Sequence[Tensor],
) -> list[AtProbes]:
    """For each cluster what its next step wants; nothing for None.

    names: of the parameters, in the clusters' order. batch: tensors with the rows of all clusters one after the other,
    as the gradients of their parameters were computed from.
    """
    found: list[AtProbes] = [{} for _ in clusters]
    wanted = [(i, own, probe) for i, own in enumerate(clusters) if own is not None for probe in own.probes]
    if not wanted:
        return found
    n = wanted[0][1].world_size
    points = [own.probe_parameters(rank, probe) for _, own, probe in wanted for rank in range(n)]
    rows = {name: torch.stack(values) for name, values in zip(names, zip(*points, strict=True), strict=True)}
    samples = [torch.cat([part[i * n : (i + 1) * n] for i, _, _ in wanted]) for part in batch]
    there, _ = gradients(rows, samples)
    for j, (i, _, probe) in enumerate(wanted):
        found[i][probe] = [[there[name][j * n + rank] for name in names] for rank in range(n)]
    return found


class Member:
    """One run of the group, from its start or from a checkpoint."""

    def __init__(
        self,
        spec: RunSpec,
        task: Task,
        initial: Mapping[str, Tensor],
        storage: tuple[Tensor, Tensor],
        start: Start,
    ) -> None:
        self.spec = spec
        gpu = torch.cuda.get_device_name(storage[0].device) if storage[0].is_cuda else ""
        self.recorder = Recorder(spec, task.workload, start, gpu)
        self._bytes = LedgerSums(start.checkpoint.ledger if start.checkpoint else ())
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
            if start.checkpoint is not None:
                self._cluster.load_state_dict(dict(start.checkpoint.state))
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
        self._bytes.take(self._cluster.ledger)
        self.recorder.step(self._cluster.kind, taken(before, paths()))

    def evaluate(self, step: int) -> None:
        """Evaluate rank 0's parameters as they are after this step."""
        if self.recorder.status is None:
            params = {name: rows[0] for name, rows in split(self._params, self._shapes).items()}
            sent = math.fsum(self._bytes.wire_bytes().values()) / self.spec.world_size
            self.recorder.evaluation(self._task.watch(params), self._rate(step), sent)
            if step + 1 == self.spec.steps:
                self.recorder.judged(self._task.evaluate(params))

    def compare_replicas(self) -> None:
        """At the end all ranks must hold the same bits: what was evaluated would else be one rank's own model."""
        if self.recorder.status is not None:
            return
        difference = first_difference(self._params, self._shapes)
        if difference:
            self.recorder.end("invalid", difference)

    def checkpoint(self, train_s: float) -> Checkpoint | None:
        """All that the run needs to go on, `train_s` seconds into this attempt; None when it has ended, or ends now."""
        if self.cluster is None:
            return None
        try:
            state = self.cluster.state_dict()
        except EXPECTED_FAULTS as error:
            self.recorder.fault(error)
            return None
        self._bytes.take(self.cluster.ledger)
        return Checkpoint(
            run_id=self.spec.run_id,
            source=source_of(self.spec),
            step=self.cluster.steps,
            train_s=self.recorder.trained_s(train_s),
            recorder=self.recorder.state(),
            ledger=self._bytes.rows(),
            state=state,
        )

    def outcome(self, train_s: float) -> Outcome:
        """Close the run, `train_s` seconds into this attempt."""
        return self.recorder.outcome(self._bytes.rows(), train_s, sources(self.spec))


def taken(
    before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]
) -> dict[str, set[str]]:
    """Which paths each compiled function took between two counts."""
    grown = {
        name: {path for path, calls in counts.items() if calls > before.get(name, {}).get(path, 0)}
        for name, counts in after.items()
    }
    return {name: found for name, found in grown.items() if found}


def train_group(
    specs: Sequence[RunSpec],
    starts: dict[str, Start] | None = None,
    progress: Callable[[int], None] = lambda step: None,
    *,
    policy: CheckpointPolicy | None = None,
    keep: Callable[[Checkpoint], None] = lambda checkpoint: None,
    device: str = "cpu",
) -> Iterator[Outcome]:
    """Train the runs to the end and yield their outcomes. `progress` is called with the completed steps.

    starts: where runs begin that are not new, all at the same step; they are taken out of the mapping. keep: given a
    checkpoint of each run that is under way when `policy` says so. device: torch's, where all of it is computed.

    Raises ValueError when the runs cannot share a group or read files of the user's on a GPU, RuntimeError where there is none,
    `Interrupted` when the policy says stop, after the outcomes of runs that had ended alone and the checkpoints of the others.
    Needs about `suite.runs.plan.COPIES` floats a parameter, worker and run.
    """
    starts = {} if starts is None else starts
    begun = {starts[spec.run_id].step if spec.run_id in starts else 0 for spec in specs}
    if len({group_key(spec) for spec in specs}) > 1 or len(begun) > 1:
        raise ValueError("these runs cannot be trained together: cut them with groups(), and by their steps")
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(no_gpu())
    policy = policy or CheckpointPolicy()
    started = time.perf_counter()
    tasks = {spec.seed: task_of(spec) for spec in specs}
    if device != "cpu" and isinstance(workload := tasks[specs[0].seed].workload, DataWorkload):
        raise ValueError(f"workload {workload.name} is computed on processors alone: leave --gpus out")
    n = specs[0].world_size
    initial = {
        seed: {name: value.to(device) for name, value in task.initial().items()}
        for seed, task in tasks.items()
    }
    shapes = shapes_of(initial[specs[0].seed])
    size = flatten(initial[specs[0].seed]).numel()
    params, grads = (torch.zeros(len(specs) * n, size, device=device) for _ in range(2))
    members = [
        Member(
            spec,
            tasks[spec.seed],
            initial[spec.seed],
            (params[i * n : (i + 1) * n], grads[i * n : (i + 1) * n]),
            starts.pop(spec.run_id, Start()),
        )
        for i, spec in enumerate(specs)
    ]
    gradient_rows, parameter_rows = split(grads, shapes), split(params, shapes)
    gradients = BatchedGradients(tasks[specs[0].seed])
    evaluate_at = evaluation_steps(specs[0].steps)
    first, action = begun.pop(), Action.GO
    for step in range(first, specs[0].steps):
        if action := policy.action():
            if step > first:  # else there is nothing new
                _save(members, (time.perf_counter() - started) / len(specs), keep)
            policy.saved()
            if action is Action.STOP:
                break
        batches = {seed: task.batch(step) for seed, task in tasks.items()}
        rows = [
            torch.cat(part).to(device) for part in zip(*(batches[spec.seed] for spec in specs), strict=True)
        ]
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
        elif policy.silent():
            progress(step + 1)
        if all(member.recorder.status for member in members):
            break
    train_s = (time.perf_counter() - started) / len(specs)
    if action is Action.STOP:
        yield from (member.outcome(train_s) for member in members if member.recorder.status)
        raise Interrupted(policy.reason, [m.spec.run_id for m in members if not m.recorder.status])
    for member in members:
        member.compare_replicas()
    for member in members:
        yield member.outcome(train_s)
    members.clear()
    gc.collect()  # a cluster is a cycle of objects: its buffers would wait for the collector, group after group


def no_gpu() -> str:
    """What is wrong, and what to do, where a GPU was asked for and torch finds none."""
    return (
        f"torch {torch.__version__} finds no GPU here: leave --gpus out, or install a build of torch for CUDA and name GPUs that "
        "nvidia-smi lists"
    )


def _save(members: Sequence[Member], train_s: float, keep: Callable[[Checkpoint], None]) -> None:
    for member in members:
        checkpoint = member.checkpoint(train_s)
        if checkpoint is not None:
            keep(checkpoint)
