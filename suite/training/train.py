"""Trains many runs at once in one process: one gradient call a step for all workers of all runs.

The runs of a group share workload, world size, sharding, steps and batch size; methods, options, learning rates and
seeds may differ. Each run has its own `SimulatedCluster`, which lives in its rows of two shared buffers. A run that
diverges or fails ends alone.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence

import torch

from suite.runs.checkpoint import Checkpoint, Start
from suite.runs.from_spec import task_of
from suite.runs.grouping import group_key
from suite.runs.spec import RunSpec
from suite.training.gradients import BatchedGradients, flatten, shapes_of, split
from suite.training.interruption import Interrupted
from suite.training.member import Member
from suite.training.probes import at_probes
from suite.training.record import Outcome, evaluation_steps
from suite.training.watch import Order, Watch


def train_group(
    specs: Sequence[RunSpec],
    starts: dict[str, Start] | None = None,
    progress: Callable[[int], None] = lambda step: None,
    *,
    watch: Watch | None = None,
    keep: Callable[[Checkpoint], None] = lambda checkpoint: None,
) -> Iterator[Outcome]:
    """Train the runs to the end and yield their outcomes. `progress` is called with the completed steps.

    starts: where runs begin that are not new, all at the same step; they are taken out of the mapping. keep: given a
    checkpoint of each run that is under way when `watch` says so. Raises ValueError when the runs cannot share a
    group, `Interrupted` when the watch says stop, after the outcomes of runs that had ended alone and the checkpoints
    of the others. Needs about `grouping.COPIES` floats a parameter, worker and run.
    """
    starts = {} if starts is None else starts
    begun = {starts[spec.run_id].step if spec.run_id in starts else 0 for spec in specs}
    if len({group_key(spec) for spec in specs}) > 1 or len(begun) > 1:
        raise ValueError("these runs cannot be trained together: cut them with groups(), and by their steps")
    watch = watch or Watch()
    started = time.perf_counter()
    tasks = {spec.seed: task_of(spec) for spec in specs}
    n = specs[0].world_size
    initial = {seed: task.initial() for seed, task in tasks.items()}
    shapes = shapes_of(initial[specs[0].seed])
    size = flatten(initial[specs[0].seed]).numel()
    params, grads = torch.empty(len(specs) * n, size), torch.zeros(len(specs) * n, size)
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
    first, order = begun.pop(), Order.GO
    for step in range(first, specs[0].steps):
        if order := watch.order():
            if step > first:  # else there is nothing new
                _save(members, (time.perf_counter() - started) / len(specs), keep)
            watch.saved()
            if order is Order.STOP:
                break
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
        elif watch.silent():
            progress(step + 1)
        if all(member.recorder.status for member in members):
            break
    train_s = (time.perf_counter() - started) / len(specs)
    if order is Order.STOP:
        yield from (member.outcome(train_s) for member in members if member.recorder.status)
        raise Interrupted(watch.reason, [m.spec.run_id for m in members if not m.recorder.status])
    for member in members:
        member.compare_replicas()
    for member in members:
        yield member.outcome(train_s)
    members.clear()
    gc.collect()  # a cluster is a cycle of objects: its buffers would wait for the collector, group after group


def _save(members: Sequence[Member], train_s: float, keep: Callable[[Checkpoint], None]) -> None:
    for member in members:
        checkpoint = member.checkpoint(train_s)
        if checkpoint is not None:
            keep(checkpoint)
