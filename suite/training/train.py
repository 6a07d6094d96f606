"""Many runs trained at once, from the gradients of all their workers in one batched call, and what is kept of each.

Row r of every tensor belongs to one worker. Rows may belong to different runs and seeds of one workload. A row's result does
not depend on how many rows are computed with it, so a run has the same bits alone, in any group, and on a real process group.
`at_reference_points` gives the gradients at the points where a method wants them besides its parameters, of the same samples.

The runs of a group share workload, world size, sharding, steps and batch size; methods, options, learning rates and seeds may
differ. Each run is a `Member` with its own `SimulatedCluster`, which lives in its rows of two shared buffers, and its own
recorder. A run that diverges or fails ends alone.

On a GPU bits do depend on the group, and differ from one time to the next: its kernels are chosen by the size of a call, and
some add in no fixed order. Models that stack (`Workload.stacks`) compute there in *mixed precision*: compiled, products and
attention in bfloat16, parameters, gradients and losses in float32. Initial parameters, batches and every coin that a method
tosses are those of the same run on a processor. The host waits for losses every `LOSSES_EVERY` steps, so that a run that has
diverged may take so many steps more.

*What is kept*, the same for every backend: curve, divergence, bytes. A run has diverged when a training loss or the final
metric is not finite, or when the training loss, mean over workers, rises above `EXPLOSION` times the greater of 1 and its first
value. The driver's ledger keeps a row a step; `LedgerSums` empties it step by step into sums, which a checkpoint can carry.
Numbers are added in the order of steps however often a run is interrupted, so that the sums are the same floats.
"""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.core.compute import paths
from reference_impls.frontends.simulated import side_by_side
from suite.runs.files import finite
from suite.runs.plan import evaluation_steps, group_key
from suite.runs.spec import RunSpec, learning_rate, provenance, source_of, sources, task_of
from suite.runs.store import EXPECTED_FAULTS, Outcome, Status, blank_result, fault_status
from suite.training.checkpoint import Action, Checkpoint, Hooks, Interrupted, Start
from suite.workloads import DataWorkload, Task, Workload
from suite.workloads.base import BatchedGradients

if TYPE_CHECKING:
    from reference_impls.core.collectives import Ledgers

_KEYS: Final = ("rank", "kind", "stage", "collective", "group")


class LedgerSums:
    """Rows of `Ledgers.totals`, one a rank, kind, stage, collective and group. rows: those of an earlier attempt."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._rows = {tuple(row[key] for key in _KEYS): dict(row) for row in rows}

    def take(self, ledger: Ledgers) -> None:
        """Add what the ledger holds and empty it; once a step."""
        for row in ledger.totals():
            key = tuple(row[key] for key in _KEYS)
            total = self._rows.get(key)
            if total is None:
                self._rows[key] = row
                continue
            for name, value in row.items():
                if name not in _KEYS:
                    total[name] += value
        ledger.clear()

    def wire_bytes(self) -> dict[int, float]:
        """Bytes that each rank has sent so far, added as `bytes_summary` does; a rank that sent nothing is not in it."""
        sent: dict[int, float] = {}
        for row in self._rows.values():
            sent[row["rank"]] = sent.get(row["rank"], 0.0) + row["wire_bytes"]
        return sent

    def rows(self) -> list[dict[str, Any]]:
        """The rows so far, rank by rank, in the order of first use."""
        return sorted((dict(row) for row in self._rows.values()), key=lambda row: int(row["rank"]))


EXPLOSION: Final = 100.0
_NEW: Final = Start()
RAN_ON: Final = ("torch", "cpu", "gpu")
"""What of a machine the bits of a run may depend on."""
THEN: Final = ", then "


class Recorder:
    """Follows one run step by step; `outcome` closes it. `status` is None while all is well. gpu: its name, if on one.

    `bytes`: what the process has sent, or the simulated ranks have.
    """

    def __init__(self, spec: RunSpec, workload: Workload, start: Start = _NEW, gpu: str = "") -> None:
        provenance()  # looked up now: at the end the checkout may hold other code
        self.spec = spec
        self._gpu = gpu
        self.status: Status | None = None
        self._workload = workload
        self._attempt = start.attempt
        self._earlier_s = start.checkpoint.train_s if start.checkpoint else 0.0
        held = start.checkpoint.recorder if start.checkpoint else {}
        self.bytes = LedgerSums(start.checkpoint.ledger if start.checkpoint else ())
        self.metrics: list[dict[str, Any]] = [dict(line) for line in held.get("metrics", ())]
        self._final: dict[str, float] = {}
        self._kinds: Counter[str] = Counter(held.get("kinds"))
        self._paths: dict[str, set[str]] = {name: set(took) for name, took in held.get("paths", {}).items()}
        self._first_loss: float | None = held.get("first_loss")
        self._last_loss: float | None = held.get("last_loss")
        self._steps: int = held.get("steps", 0)
        self._ran_on: Mapping[str, str] = held.get("ran_on", {})

    def _provenance(self) -> dict[str, Any]:
        """Of this attempt; what earlier ones ran on, where that was something else, stands before it."""
        found = {**provenance(), **({"gpu": self._gpu} if self._gpu else {})}
        for name, before in self._ran_on.items():
            now = found.get(name, "none")
            if before.rpartition(THEN)[2] != now:
                found[name] = f"{before}{THEN}{now}"
            elif now != "none":
                found[name] = before
        return found

    def checkpoint(self, step: int, state: Mapping[str, Any], train_s: float) -> Checkpoint:
        """The run after `step` completed steps, `train_s` seconds into this attempt. state: of its driver."""
        return Checkpoint(
            run_id=self.spec.run_id,
            source=source_of(self.spec),
            step=step,
            train_s=self._earlier_s + train_s,
            recorder={
                "metrics": [dict(line) for line in self.metrics],
                "kinds": dict(self._kinds),
                "paths": {name: sorted(taken) for name, taken in self._paths.items()},
                "first_loss": self._first_loss,
                "last_loss": self._last_loss,
                "steps": self._steps,
                "ran_on": {name: str(self._provenance().get(name, "none")) for name in RAN_ON},
            },
            ledger=self.bytes.rows(),
            state=state,
        )

    def loss(self, value: float, step: int) -> None:
        """Note the mean training loss of a step, the first of which is 1; sets `status` when the run has diverged."""
        if self._first_loss is None:
            self._first_loss = value
        if not math.isfinite(value):
            self.end("diverged", f"training loss is {value} at step {step}")
        elif value > EXPLOSION * max(1.0, self._first_loss):
            self.end(
                "diverged", f"training loss {value:.3g} at step {step}, {self._first_loss:.3g} at the first"
            )
        self._last_loss = value

    def step(self, kind: str, paths: Mapping[str, set[str]]) -> None:
        """Note a completed step: its kind and which path each compiled function took in it."""
        self._steps += 1
        self._kinds[kind] += 1
        self.took(paths)

    def took(self, paths: Mapping[str, set[str]]) -> None:
        """Note which path functions took."""
        for name, taken in paths.items():
            self._paths.setdefault(name, set()).update(taken)

    def evaluation(self, scores: Mapping[str, float], lr: float, wire_bytes: float) -> None:
        """Note a point of the curve, after the last completed step. wire_bytes: sent so far, mean over ranks.

        Raises ValueError for scores without the workload's metric; so does `judged`.
        """
        self._require_metric(scores)
        self.metrics.append(
            {
                "step": self._steps,
                "lr": lr,
                "train_loss": None if self._last_loss is None else finite(self._last_loss),
                "wire_bytes": wire_bytes,
                **{name: finite(value) for name, value in scores.items()},
            }
        )

    def judged(self, scores: Mapping[str, float]) -> None:
        """Note what the whole test part says at the end; what is not finite means divergence."""
        self._require_metric(scores)
        self._final = dict(scores)
        if not all(math.isfinite(value) for value in scores.values()):
            self.end("diverged", "the final metric is not finite")

    def _require_metric(self, scores: Mapping[str, float]) -> None:
        if (metric := self._workload.metric) not in scores:
            raise ValueError(
                f"workload {self._workload.name} is judged by {metric}, and its evaluate or watch answers "
                f"{', '.join(scores) or 'nothing'}: answer {metric} too"
            )

    def fault(self, error: Exception) -> None:
        """Note an exception raised by the method or a collective."""
        status = fault_status(error)
        self.end(status.state, f"step {self._steps + 1}: {status.reason}")

    def end(self, state: str, reason: str) -> None:
        """Set the terminal status; the first one stands."""
        if self.status is None:
            self.status = Status(state, reason)

    def outcome(
        self, ledger: Sequence[Mapping[str, Any]], train_s: float, sources: Mapping[str, Any]
    ) -> Outcome:
        """Close the run: `done` unless something ended it.

        ledger: rows summed over steps, for all ranks. train_s: of this attempt.
        """
        status = self.status or Status("done")
        metric = self._workload.metric
        values = [line[metric] for line in self.metrics if line[metric] is not None]
        final = self._final if status.state == "done" else {}
        blank = blank_result(self.spec, status)
        result = {
            **blank,
            "provenance": self._provenance(),
            "attempt": self._attempt,
            "metric": metric,
            "direction": self._workload.direction,
            "directions": {name: self._workload.direction_of(name) for name in final},
            "final": final,
            "best": (max if self._workload.direction == "higher" else min)(values, default=None),
            "train_loss_last": None if self._last_loss is None else finite(self._last_loss),
            "steps": self._steps,
            "steps_by_kind": dict(sorted(self._kinds.items())),
            "bytes": bytes_summary(ledger, self.spec.world_size),
            "path": {name: "/".join(sorted(taken)) for name, taken in sorted(self._paths.items())},
            "sources": dict(sources),
            "train_s": round(self._earlier_s + train_s, 4),
        }
        return Outcome(self.spec.run_id, status, result, self.metrics)


def bytes_summary(ledger: Sequence[Mapping[str, Any]], world_size: int) -> dict[str, Any]:
    """Mean and maximum over ranks of all bytes of the run, and the rows they are summed from."""
    summary: dict[str, Any] = {}
    for name in ("payload", "wire"):
        per_rank = [0.0] * world_size
        for row in ledger:
            per_rank[row["rank"]] += row[f"{name}_bytes"]
        summary[f"{name}_per_rank_mean"] = math.fsum(per_rank) / world_size
        summary[f"{name}_per_rank_max"] = max(per_rank)
    return {**summary, "by": [dict(row) for row in ledger]}


# ---- a group of runs -------------------------------------------------------------------------------------------------------

Shapes = Mapping[str, Sequence[int]]


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


AtReferencePoints = dict[str, list[list[Tensor]]]
"""Probe -> [rank][parameter], as `SimulatedCluster.step` takes it."""


def at_reference_points(
    clusters: Sequence[SimulatedCluster | None],
    gradients: BatchedGradients,
    names: Sequence[str],
    batch: Sequence[Tensor],
) -> list[AtReferencePoints]:
    """For each cluster what its next step wants; nothing for None.

    names: of the parameters, in the clusters' order. batch: tensors with the rows of all clusters one after the other,
    as the gradients of their parameters were computed from.
    """
    found: list[AtReferencePoints] = [{} for _ in clusters]
    wanted = [
        (i, own, reference_point)
        for i, own in enumerate(clusters)
        if own is not None
        for reference_point in own.reference_points
    ]
    if not wanted:
        return found
    n = wanted[0][1].world_size
    points = [
        own.reference_parameters(rank, reference_point)
        for _, own, reference_point in wanted
        for rank in range(n)
    ]
    rows = {name: torch.stack(values) for name, values in zip(names, zip(*points, strict=True), strict=True)}
    samples = [torch.cat([part[i * n : (i + 1) * n] for i, _, _ in wanted]) for part in batch]
    there, _ = gradients(rows, samples)
    for j, (i, _, reference_point) in enumerate(wanted):
        found[i][reference_point] = [[there[name][j * n + rank] for name in names] for rank in range(n)]
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
        look: Callable[[], None],
    ) -> None:
        self.spec = spec
        self._look = look
        gpu = torch.cuda.get_device_name(storage[0].device) if storage[0].is_cuda else ""
        self.recorder = Recorder(spec, task.workload, start, gpu)
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

    def note(self, step: int, loss: float) -> None:
        """Note the mean training loss of a step and tell it the method, unless the run has ended, or ends by it."""
        if self.recorder.status is None:
            self.recorder.loss(loss, step + 1)
        if self.cluster is not None:
            self.cluster.observe(loss=loss)

    def step(self, step: int, reference_points: AtReferencePoints) -> None:
        """Apply the gradients in the rows, and those at the method's reference points, unless the run has ended."""
        if self.recorder.status is not None or self._cluster is None:
            return
        before = paths()
        try:
            self._cluster.step(lr=self._rate(step), reference_points=reference_points)
        except EXPECTED_FAULTS as error:
            self._look()  # it may have diverged before
            self.recorder.fault(error)
            return
        self.recorder.bytes.take(self._cluster.ledger)
        self.recorder.step(self._cluster.kind, taken(before, paths()))

    def evaluate(self, step: int) -> None:
        """Evaluate rank 0's parameters as they are after this step."""
        if self.recorder.status is None:
            params = {name: rows[0] for name, rows in split(self._params, self._shapes).items()}
            sent = math.fsum(self.recorder.bytes.wire_bytes().values()) / self.spec.world_size
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
        self.recorder.bytes.take(self.cluster.ledger)
        return self.recorder.checkpoint(self.cluster.steps, state, train_s)

    def outcome(self, train_s: float) -> Outcome:
        """Close the run, `train_s` seconds into this attempt."""
        return self.recorder.outcome(self.recorder.bytes.rows(), train_s, sources(self.spec))


def taken(
    before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]
) -> dict[str, set[str]]:
    """Which paths each compiled function took between two counts."""
    grown = {
        name: {path for path, calls in counts.items() if calls > before.get(name, {}).get(path, 0)}
        for name, counts in after.items()
    }
    return {name: found for name, found in grown.items() if found}


class Group:
    """Runs that are trained together, on one device: `members`, `batch` of their last step, `elements` of a model.

    Args:
        specs: Of the runs; they share what `group_key` tells.
        starts: Where runs begin that are not new; they are taken out of the mapping.
        device: torch's.
        mixed: See `BatchedGradients`; whether losses are looked at every `LOSSES_EVERY` steps, or every step.
    """

    def __init__(self, specs: Sequence[RunSpec], starts: dict[str, Start], device: str, mixed: bool) -> None:
        self._specs, self._device = specs, device
        self._tasks = {spec.seed: task_of(spec) for spec in specs}
        self._task = self._tasks[specs[0].seed]
        if device != "cpu" and isinstance(workload := self._task.workload, DataWorkload):
            raise ValueError(f"workload {workload.name} is computed on processors alone: leave --gpus out")
        n = specs[0].world_size
        initial = {
            seed: {name: value.to(device) for name, value in task.initial().items()}
            for seed, task in self._tasks.items()
        }
        shapes = shapes_of(initial[specs[0].seed])
        self.elements = flatten(initial[specs[0].seed]).numel()
        params, grads = (torch.zeros(len(specs) * n, self.elements, device=device) for _ in range(2))
        self.members = [
            Member(
                spec,
                self._tasks[spec.seed],
                initial[spec.seed],
                (params[i * n : (i + 1) * n], grads[i * n : (i + 1) * n]),
                starts.pop(spec.run_id, Start()),
                self.look,
            )
            for i, spec in enumerate(specs)
        ]
        self._gradient_rows, self._parameter_rows = split(grads, shapes), split(params, shapes)
        self._gradients = BatchedGradients(self._task, mixed)
        self.batch: tuple[Tensor, ...] = ()
        self._unread: list[tuple[int, Tensor]] = []
        clusters = [member.cluster for member in self.members]
        at_once = any(own is not None and own.method.algorithm.plans_from_data for own in clusters)
        self._looks_every = LOSSES_EVERY if mixed and not at_once else 1

    def compute(self, step: int) -> None:
        """The gradients and losses of all workers at a step; the host does not wait for them."""
        drawn = {seed: task.examples(step) for seed, task in self._tasks.items()}
        every = zip(*(drawn[spec.seed] for spec in self._specs), strict=True)
        self.batch = self._task.gather(*(_sent(torch.cat(part), self._device) for part in every))
        found, losses = self._gradients(self._parameter_rows, self.batch)
        rows = [self._gradient_rows[name] for name in found]
        torch._foreach_copy_(rows, list(found.values()))  # in few launches
        self._unread.append((step, losses.view(len(self._specs), -1).mean(1)))
        if self._gradients.path:
            for member in self.members:
                member.recorder.took({"gradients": {self._gradients.path}})

    def advance(self, step: int, look: bool = False) -> None:
        """That step of every run, with the gradients that were computed; `look` at losses first, if it is not time anyway."""
        clusters = [member.cluster for member in self.members]
        there = at_reference_points(clusters, self._gradients, list(self._parameter_rows), self.batch)
        if look or len(self._unread) >= self._looks_every:
            self.look()
        with side_by_side(own for own in clusters if own is not None):
            for member, reference_points in zip(self.members, there, strict=True):
                member.step(step, reference_points)

    def look(self) -> None:
        """Note the losses of the steps since the last time, for which the host waits; runs that have diverged end."""
        if not self._unread:
            return
        numbers = torch.stack([means for _, means in self._unread]).tolist()
        for (step, _), means in zip(self._unread, numbers, strict=True):
            for member, loss in zip(self.members, means, strict=True):
                member.note(step, loss)
        self._unread.clear()

    def save(self, train_s: float, keep: Callable[[Checkpoint], None]) -> None:
        """Keep a checkpoint of each run that is under way, `train_s` seconds into this attempt."""
        self.look()
        for member in self.members:
            checkpoint = member.checkpoint(train_s)
            if checkpoint is not None:
                keep(checkpoint)


LOSSES_EVERY: Final = 16
"""Steps after which the host waits for losses in mixed precision, unless a method of the group plans by what it is told."""


def _sent(part: Tensor, device: str) -> Tensor:
    """A tensor of the host's on a device, without waiting for the copy."""
    return part.pin_memory().to(device, non_blocking=True) if device == "cuda" else part.to(device)


def train_group(
    specs: Sequence[RunSpec],
    starts: dict[str, Start] | None = None,
    hooks: Hooks | None = None,
    *,
    keep: Callable[[Checkpoint], None] = lambda checkpoint: None,
    device: str = "cpu",
    mixed: bool | None = None,
) -> Iterator[Outcome]:
    """Train the runs to the end and yield their outcomes.

    starts: where runs begin that are not new, all at the same step; they are taken out of the mapping. keep: given a
    checkpoint of each run that is under way when `hooks` say so. device: torch's, where all of it is computed. mixed: whether
    as a GPU does it, see `Group`; so it is on one unless said otherwise.

    Raises ValueError when the runs cannot share a group or read files of the user's on a GPU, RuntimeError where there is none,
    `Interrupted` when the hooks say stop, after the outcomes of runs that had ended alone and the checkpoints of the others.
    Needs about `suite.runs.plan.COPIES` floats a parameter, worker and run.
    """
    starts = {} if starts is None else starts
    begun = {starts[spec.run_id].step if spec.run_id in starts else 0 for spec in specs}
    if len({group_key(spec) for spec in specs}) > 1 or len(begun) > 1:
        raise ValueError("these runs cannot be trained together: cut them with groups(), and by their steps")
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(no_gpu())
    hooks = hooks or Hooks()
    started = time.perf_counter()
    group = Group(specs, starts, device, device != "cpu" if mixed is None else mixed)
    members = group.members
    evaluate_at = evaluation_steps(specs[0].steps)
    first, action = begun.pop(), Action.GO
    for step in range(first, specs[0].steps):
        if action := hooks.action():
            if step > first:  # else there is nothing new
                group.save((time.perf_counter() - started) / len(specs), keep)
            hooks.written()
            if action is Action.STOP:
                break
        group.compute(step)
        group.advance(step, look=step + 1 in evaluate_at)
        if step + 1 in evaluate_at:
            for number, member in enumerate(members):
                if number:
                    hooks.show(step + 1, evaluated=False)  # many take long
                member.evaluate(step)
        hooks.show(step + 1, step + 1 in evaluate_at)
        if all(member.recorder.status for member in members):
            break
    train_s = (time.perf_counter() - started) / len(specs)
    if action is Action.STOP:
        yield from (member.outcome(train_s) for member in members if member.recorder.status)
        raise Interrupted(hooks.reason, [m.spec.run_id for m in members if not m.recorder.status])
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
