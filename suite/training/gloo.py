"""One rank of a run on a real gloo process group. The arithmetic of a worker is that of the simulated run.

The gradient comes from the same batched function, with one row, and is handed to the parameters through
`torch.autograd.backward`, so that the optimizer's hooks launch communication as in any training. Losses, parameters
and ledgers are gathered beside the method's own collectives and are not counted. What each rank wants at the next
boundary between steps travels beside its loss, so that all save, or stop, after the same step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer
from reference_impls.core.compute import paths
from suite.runs.files import StoreError
from suite.runs.plan import evaluation_steps
from suite.runs.spec import RunSpec, learning_rate, source_of, sources, task_of
from suite.runs.store import EXPECTED_FAULTS, Outcome, Status, failed
from suite.training.checkpoint import (
    Action,
    CheckpointError,
    Hooks,
    Interrupted,
    Start,
    publish,
    rank_path,
    read,
    write,
)
from suite.training.train import Recorder, first_difference, taken
from suite.workloads import RankedTask, Task
from suite.workloads.base import BatchedGradients

COMPARED: Final = 1 << 20
"""Elements of which all ranks' replicas are compared at a time."""


TIMEOUT_S: Final = 120.0
"""How long a collective may take before its ranks give up."""
EVALUATION: Final = timedelta(hours=6)
"""How long the other ranks wait for rank 0, which evaluates alone."""


def train_rank(spec: RunSpec, rank: int, store: Any, start: Start, folder: Path, hooks: Hooks) -> Outcome:
    """Be one rank of a run: form the process group over `store`, train, part. The outcome of rank 0 is the run's.

    folder: of the run, where ranks keep their checkpoints. hooks: of rank 0 decide when to save, any may ask for a stop;
    every rank tells its own. A fault of this rank ends up in its outcome; ranks that lose a peer fault in turn. Raises
    `Interrupted` on all ranks alike.
    """
    torch.set_num_threads(1)
    limit = timedelta(seconds=TIMEOUT_S)
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=spec.world_size, timeout=limit)
    except RuntimeError as error:
        first = (str(error).splitlines() or [""])[0]
        reason = f"rank {rank} could not reach the others ({first}): check GLOO_SOCKET_IFNAME"
        return failed(spec, Status("error", reason))
    try:
        return _trained(spec, start, folder, hooks if rank == 0 else replace(hooks, checkpoint_s=math.inf))
    finally:
        dist.destroy_process_group()


def _trained(spec: RunSpec, start: Start, folder: Path, hooks: Hooks) -> Outcome:
    started = time.perf_counter()
    task = task_of(spec)
    recorder = Recorder(spec, task.workload, start)
    rows: list[dict[str, Any]] = []
    try:
        start = _resumed(spec, start, folder, hooks.saved)
        recorder = Recorder(spec, task.workload, start)
        rank = _Rank(task, recorder, start)
        rank.train(folder, hooks)
        rows = _all_rows(recorder)
        _compare_replicas(recorder, rank.params)
    except EXPECTED_FAULTS as error:
        recorder.fault(error)
    return recorder.outcome(rows, time.perf_counter() - started, sources(spec))


class _Rank:
    """This rank's replica, its optimizer and what is recorded of the run."""

    def __init__(self, task: Task, recorder: Recorder, start: Start) -> None:
        spec = recorder.spec
        self.spec = spec
        self.task = task
        self.recorder = recorder
        self.params = {name: nn.Parameter(value) for name, value in self.task.initial().items()}
        self._first = self._stands = start.step
        self._started = time.perf_counter()
        self._optimizer = DataParallelOptimizer(
            self.params.items(),
            spec.algorithm.name,
            lr=spec.lr.peak,
            seed=spec.seed,
            bucket_bytes=spec.bucket_bytes,
            **spec.algorithm.options,
        )
        if start.checkpoint is not None:
            self._optimizer.load_state_dict(dict(start.checkpoint.state))
        self._gradients, self._rate = BatchedGradients(self.task), learning_rate(spec)

    def train(self, folder: Path, hooks: Hooks) -> None:
        """Step by step to the end, or to what ends the run."""
        evaluate_at = evaluation_steps(self.spec.steps)
        for step in range(self._first, self.spec.steps):
            action = self._step(step, hooks.action())
            if self.recorder.status is not None:
                break
            if step + 1 in evaluate_at:
                self._evaluate(step)
            hooks.show(step + 1, step + 1 in evaluate_at)
            if action and step + 1 < self.spec.steps:
                hooks.saved(*self._save(folder, step + 1))
                hooks.written()
                if action is Action.STOP:
                    raise Interrupted(hooks.reason, [self.spec.run_id])

    def _step(self, step: int, wanted: Action) -> Action:
        """One step of training; returns what all ranks do after it."""
        own = _own_batch(self.task, step, dist.get_rank())
        found, losses = self._gradients(_rows(self.params), own)
        gathered = _gathered(torch.cat([losses, torch.full_like(losses, float(wanted))]))
        loss = gathered[:, :1].contiguous().mean().item()
        self.recorder.loss(loss, step + 1)
        if self.recorder.status is None:
            for group in self._optimizer.param_groups:
                group["lr"] = self._rate(step)
            before = paths()
            self._optimizer.observe(loss=loss)
            if self._optimizer.method.algorithm.reference_points:
                self._optimizer.step(lambda: self._backward(own))
            else:
                torch.autograd.backward(list(self.params.values()), [found[name][0] for name in self.params])
                found.clear()  # the optimizer has its own copy
                self._optimizer.step()
            self._optimizer.zero_grad()
            self.recorder.bytes.take(self._optimizer.ledger)
            self.recorder.step(self._optimizer.kind, taken(before, paths()))
        return Action(int(gathered[:, 1].max().item()))

    def _backward(self, batch: Sequence[Tensor]) -> None:
        """The gradients of a batch where the parameters stand now, through the optimizer's hooks."""
        found, _ = self._gradients(_rows(self.params), batch)
        for param in self.params.values():
            param.grad = None
        torch.autograd.backward(list(self.params.values()), [found[name][0] for name in self.params])

    def _evaluate(self, step: int) -> None:
        """Rank 0 evaluates, while the others wait; what every rank has sent so far is gathered for it."""
        own = torch.tensor([self.recorder.bytes.wire_bytes().get(dist.get_rank(), 0.0)], dtype=torch.float64)
        sent = math.fsum(_gathered(own).flatten().tolist()) / self.spec.world_size
        if dist.get_rank() == 0:
            values = {name: param.detach() for name, param in self.params.items()}
            self.recorder.evaluation(self.task.watch(values), self._rate(step), sent)
            if step + 1 == self.spec.steps:
                self.recorder.judged(self.task.evaluate(values))
        dist.monitored_barrier(timeout=EVALUATION)

    def _save(self, folder: Path, step: int) -> tuple[int, str]:
        """Write this rank's checkpoint; rank 0 publishes it once all have. Returns the step that stands, what failed."""
        rank, problem = dist.get_rank(), ""
        path = rank_path(folder, step, rank)
        state = self._optimizer.state_dict()
        self.recorder.bytes.take(self._optimizer.ledger)
        checkpoint = self.recorder.checkpoint(step, state, time.perf_counter() - self._started)
        try:
            write(path, checkpoint)
        except StoreError as error:
            problem = f"no new checkpoint: {error}"
        if _all(not problem):
            try:
                if rank == 0:
                    publish(folder, self.spec, checkpoint.source, step)
                self._stands = step
            except StoreError as error:
                problem = f"no new checkpoint: {error}"
        else:
            path.unlink(missing_ok=True)
            problem = problem or "no new checkpoint: another rank could not write its own"
        return self._stands, problem


def _resumed(spec: RunSpec, start: Start, folder: Path, saved: Callable[[int, str], None]) -> Start:
    """With this rank's checkpoint, if every rank can read its own; else from the first step."""
    if not start.step:
        return start
    found, problem = None, "it has gone"
    try:
        path = rank_path(folder, start.step, dist.get_rank())
        found = read(path, spec, source_of(spec))
    except CheckpointError as error:
        problem = str(error)
    if _all(found is not None):
        return replace(start, checkpoint=found)
    saved(0, f"the checkpoint at step {start.step} is not gone on from: {problem}")
    return replace(start, step=0)


def _own_batch(task: Task, step: int, rank: int) -> list[Tensor]:
    """This rank's row of the batch; where a task can tell it alone, nothing of the others' is read."""
    if isinstance(task, RankedTask):
        return [part.unsqueeze(0) for part in task.own_batch(step, rank)]
    return [part[rank : rank + 1] for part in task.batch(step)]


def _rows(params: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: param.detach().unsqueeze(0) for name, param in params.items()}


def _compare_replicas(recorder: Recorder, params: Mapping[str, Tensor]) -> None:
    """All ranks take part, also when only rank 0 knows that its run has diverged at the last evaluation.

    Piece by piece: of a large model the replicas of all ranks do not fit beside each other.
    """
    for name, param in params.items():
        for piece in torch.split(param.detach().flatten(), COMPARED):
            difference = first_difference(_gathered(piece), {name: tuple(piece.shape)})
            if difference and recorder.status is None:
                recorder.end("invalid", difference)


def _gathered(row: Tensor) -> Tensor:
    """[k] of every rank -> [ranks, k]."""
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, row.contiguous())
    return torch.stack(rows)


def _all(mine: bool) -> bool:
    """Whether it is so on all ranks."""
    return bool(_gathered(torch.tensor([mine], dtype=torch.uint8)).all())


def _all_rows(recorder: Recorder) -> list[dict[str, Any]]:
    """The bytes of all ranks, in the order of ranks."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, recorder.bytes.rows())
    return [row for rows in found for row in rows]
