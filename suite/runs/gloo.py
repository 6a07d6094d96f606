"""One rank of a run on a real gloo process group. The arithmetic of a worker is that of the simulated run.

The gradient comes from the same batched function, with one row, and is handed to the parameters through
`torch.autograd.backward`, so that the optimizer's hooks launch communication as in any training. Losses, parameters
and ledgers are gathered beside the method's own collectives and are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer
from reference_impls.compilation import paths
from suite.runs.gradients import BatchedGradients, first_difference, flatten, shapes_of
from suite.runs.record import EXPECTED_FAULTS, Outcome, Recorder, evaluation_steps
from suite.runs.spec import RunSpec
from suite.runs.train import learning_rate, sources, taken, task_of


def train_rank(spec: RunSpec, attempt: int, progress: Callable[[int], None]) -> Outcome:
    """Train as one rank of the initialised default process group. The outcome of rank 0 is the run's.

    A fault of this rank ends up in its outcome; ranks that lose a peer fault in turn. `progress` is told by every rank.
    """
    started = time.perf_counter()
    rank = dist.get_rank()
    task = task_of(spec)
    recorder = Recorder(spec, task.workload, attempt)
    params = {name: nn.Parameter(value) for name, value in task.initial().items()}
    ledger: list[dict[str, Any]] = []
    try:
        optimizer = DataParallelOptimizer(
            params.items(),
            spec.algorithm.name,
            lr=spec.lr.peak,
            seed=spec.seed,
            bucket_bytes=spec.bucket_bytes,
            **spec.algorithm.options,
        )
        gradients, rate = BatchedGradients(task), learning_rate(spec)
        evaluate_at = evaluation_steps(spec.steps)
        for step in range(spec.steps):
            own = [part[rank : rank + 1] for part in task.batch(step)]
            found, losses = gradients(_rows(params), own)
            loss = _gathered(losses).mean().item()
            recorder.loss(loss)
            if recorder.status is not None:
                break
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            before = paths()
            optimizer.observe(loss=loss)
            if optimizer.method.algorithm.probes:
                optimizer.step(lambda own=own: _backward(params, gradients, own))
            else:
                torch.autograd.backward(list(params.values()), [found[name][0] for name in params])
                optimizer.step()
            optimizer.zero_grad()
            recorder.step(optimizer.kind, taken(before, paths()))
            if step + 1 in evaluate_at:
                _evaluate(recorder, task, params, rate(step))
                progress(step + 1)
        ledger = _all_ledgers(optimizer)
        _compare_replicas(recorder, params)
    except EXPECTED_FAULTS as error:
        recorder.fault(error)
    return recorder.outcome(ledger, time.perf_counter() - started, sources(spec))


def _rows(params: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: param.detach().unsqueeze(0) for name, param in params.items()}


def _backward(
    params: Mapping[str, nn.Parameter], gradients: BatchedGradients, batch: Sequence[Tensor]
) -> None:
    """The gradients of a batch where the parameters stand now, through the optimizer's hooks."""
    found, _ = gradients(_rows(params), batch)
    for param in params.values():
        param.grad = None
    torch.autograd.backward(list(params.values()), [found[name][0] for name in params])


def _evaluate(recorder: Recorder, task: Any, params: Mapping[str, Tensor], lr: float) -> None:
    if dist.get_rank() == 0:
        recorder.evaluation(task.evaluate({name: param.detach() for name, param in params.items()}), lr)


def _compare_replicas(recorder: Recorder, params: Mapping[str, Tensor]) -> None:
    """All ranks take part, also when only rank 0 knows that its run has diverged at the last evaluation."""
    values = {name: param.detach() for name, param in params.items()}
    difference = first_difference(_gathered(flatten(values)), shapes_of(values))
    if difference and recorder.status is None:
        recorder.end("invalid", difference)


def _gathered(row: Tensor) -> Tensor:
    """[k] of every rank -> [ranks, k]."""
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row.contiguous())
    return torch.stack(rows)


def _all_ledgers(optimizer: DataParallelOptimizer) -> list[dict[str, Any]]:
    """The totals of all ranks, in the order of ranks."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, optimizer.ledger.totals())
    return [row for rows in found for row in rows]
