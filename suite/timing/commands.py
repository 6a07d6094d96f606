"""What a rank process can be told to do, a training from end to end among it. All ranks get the same commands in order.

A command takes and answers plain values. It raises `RefusedError` for what cannot be done and has not begun to communicate:
all ranks find the same, and the group is whole. Any other exception means that it may be broken.

A *direct run* is one training on the real link, by which composed times are checked. It has the options, the batches and the
learning rates of its spec. The clock runs from a barrier before the first step to one after the last; batches are drawn
before it and the result is evaluated after it. Settings are not compared between ranks (`check="off"`), since over a slow link
that would cost time which no later step takes.
"""

from __future__ import annotations

import dataclasses
import gc
import inspect
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer
from reference_impls.compilation import paths
from reference_impls.registry import Method
from suite.links.cluster import CONGESTION_CONTROL
from suite.links.probe import COLLECTIVES, bandwidth, probe
from suite.runs.files import finite
from suite.runs.spec import RunSpec, learning_rate, task_of
from suite.timing.case import Case, Mode
from suite.timing.cases import method_of
from suite.timing.load import Meter
from suite.timing.subject import (
    Batch,
    Block,
    MethodSubject,
    NoSuchStepError,
    ReferenceSubject,
    Subject,
    no_collector,
)
from suite.training.train import taken
from suite.workloads import get


def direct_run(spec: RunSpec, device: str = "cpu") -> dict[str, Any]:
    """Train as one rank of the default group, whose size is the spec's.

    Args:
        spec: The run.
        device: Where the model is trained.

    Returns:
        seconds of this rank; steps; steps_by_kind; final: on rank 0 the final scores (null where not finite), else None.
    """
    rank, task, rate = dist.get_rank(), task_of(spec), learning_rate(spec)
    module = task.workload.module(spec.seed).to(device)
    batches = [[part[rank].clone().to(device) for part in task.batch(step)] for step in range(spec.steps)]
    optimizer = DataParallelOptimizer(
        module.named_parameters(),
        spec.algorithm.name,
        lr=spec.lr.peak,
        seed=spec.seed,
        bucket_bytes=spec.bucket_bytes,
        check="off",
        **spec.algorithm.options,
    )
    kinds: Counter[str] = Counter()
    with no_collector():
        dist.barrier()
        started = time.perf_counter()
        for step, batch in enumerate(batches):
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
            if optimizer.method.algorithm.probes:
                optimizer.step(partial(_backward, module, batch))
            else:
                module(*batch).backward()
                optimizer.step()
            optimizer.zero_grad()
            kinds[optimizer.kind] += 1
        if device != "cpu":
            torch.cuda.synchronize()
        dist.barrier()
        seconds = time.perf_counter() - started
    final = None
    if rank == 0:
        scores = task.evaluate(
            {name: parameter.detach().cpu() for name, parameter in module.named_parameters()}
        )
        final = {name: finite(value) for name, value in scores.items()}
    optimizer.release()
    return {
        "seconds": seconds,
        "steps": spec.steps,
        "steps_by_kind": dict(sorted(kinds.items())),
        "final": final,
    }


def _backward(module: nn.Module, batch: Sequence[Tensor]) -> None:
    module(*batch).backward()


BATCHES: Final = 8
"""Batches that all blocks go round in."""
MODES: Final[tuple[str, ...]] = get_args(Mode)
COMPILING: Final = timedelta(minutes=10)
"""How long ranks wait for one another while codecs are compiled."""


class RefusedError(ValueError):
    """A command that this rank cannot carry out and has not begun."""


class Commands:
    """The commands of one rank of the default group. method_of: how a case becomes a method. device: where ranks compute."""

    def __init__(self, method_of: Callable[[Case], Method] = method_of, device: str = "cpu") -> None:
        self._method_of = method_of
        self._device = device
        self._meter = Meter()
        # On a GPU ranks wait for each other over gloo: what they wait with is not what is timed.
        self._control = None if device == "cpu" else dist.new_group(backend="gloo")
        self._subjects: dict[str, Subject] = {}
        self._batches: list[Batch] = []
        self._solo: dist.ProcessGroup | None = None
        self._known: Mapping[str, Callable[..., dict[str, Any]]] = {
            "build": self.build,
            "warm": self.warm,
            "block": self.block,
            "probe": self.probe,
            "collective": self.collective,
            "direct": self.direct,
            "load": self.load,
        }

    def carry_out(self, request: Any) -> dict[str, Any]:
        """Do what `request` ({"do": name, **arguments}) says."""
        if not isinstance(request, Mapping) or request.get("do") not in self._known:
            raise RefusedError(f"say what to do: one of {', '.join(self._known)}, stop")
        arguments = {key: value for key, value in request.items() if key != "do"}
        command = self._known[request["do"]]
        try:
            inspect.signature(command).bind(**arguments)
        except TypeError as error:
            raise RefusedError(f"{request['do']}: {error}") from error
        return command(**arguments)

    def build(
        self,
        workload: Mapping[str, Any],
        world_size: int,
        batch_size: int,
        bucket_bytes: int,
        sharding: str,
        seed: int,
        cases: list[Mapping[str, Any]],
    ) -> dict[str, Any]:
        """Make the batches and a subject of every case, in place of earlier ones. Answers the number of parameters, and
        TCP's congestion control here.
        """
        if world_size != dist.get_world_size():
            raise RefusedError(
                f"the cases are for {world_size} ranks, but this group has {dist.get_world_size()}"
            )
        self._release()
        try:
            model = get(workload["name"], **workload.get("options", {}))
            task = model.task(seed, world_size, sharding, batch_size)
            for data in cases:
                case = Case.from_dict(data)
                self._subjects[case.case_id] = self._subject(
                    case, lambda: model.module(seed).to(self._device), seed, bucket_bytes
                )
        except (ValueError, KeyError, TypeError) as error:
            self._release()
            raise RefusedError(f"{type(error).__name__}: {error}") from error
        rank = dist.get_rank()
        self._batches = [
            tuple(part[rank].clone().to(self._device) for part in task.batch(step)) for step in range(BATCHES)
        ]
        gc.collect()
        gc.freeze()  # what lives on is not looked at again before every block
        return {
            "parameters": sum(p.numel() for p in model.module(seed).parameters() if p.requires_grad),
            "congestion_control": CONGESTION_CONTROL.read_text(encoding="utf-8").strip(),
        }

    def warm(self, case: str, units: int, modes: list[str]) -> dict[str, Any]:
        """Steps that do not count; codecs are compiled. Without messages first, so that no rank waits for a compiler."""
        subject = self._subject_of(case, units, modes)
        started = time.perf_counter()
        for mode in sorted(modes, key=lambda mode: mode != "null"):
            _taken(subject, mode, units, self._batches)
            dist.monitored_barrier(self._control, timeout=COMPILING)
        gc.freeze()  # the compiler's own objects are many: every block would look through them
        return {"seconds": time.perf_counter() - started}

    def block(self, case: str, mode: str, units: int) -> dict[str, Any]:
        """A timed block, begun together with all ranks. Answers `Block`, and the path that each codec took."""
        subject = self._subject_of(case, units, [mode])
        before = paths()
        block = _taken(subject, mode, units, self._batches, partial(dist.barrier, self._control))
        took = taken(before, paths())
        return {
            **dataclasses.asdict(block),
            "path": {name: "/".join(sorted(ways)) for name, ways in sorted(took.items())},
        }

    def probe(self, rate_bps: float) -> dict[str, Any]:
        """Round trips and bandwidths of the link, by the collectives that methods use."""
        return {
            "measurements": [
                dataclasses.asdict(measured) for measured in probe(rate_bps, device=self._device)
            ]
        }

    def collective(self, what: str, nbytes: float, repeats: int) -> dict[str, Any]:
        """One collective of `suite.links.probe.COLLECTIVES`, with buffers of about so many bytes."""
        if what not in COLLECTIVES or not nbytes > 0 or repeats < 1:
            raise RefusedError(f"no exchange {what!r} of {nbytes} bytes, {repeats} times")
        return {"measurement": dataclasses.asdict(bandwidth(what, nbytes, repeats, self._device))}

    def direct(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """A whole training; see `suite.timing.commands`."""
        try:
            run = RunSpec.from_dict(spec)
        except ValueError as error:
            raise RefusedError(f"{type(error).__name__}: {error}") from error
        if run.world_size != dist.get_world_size():
            raise RefusedError(
                f"the run is for {run.world_size} ranks, but this group has {dist.get_world_size()}"
            )
        return direct_run(run, self._device)

    def load(self, *, find: bool) -> dict[str, Any]:
        """What this rank's machine has done so far (`suite.timing.load.ClusterMeter`). find: look for our processes first."""
        if find:
            self._meter.find()
        return self._meter.as_dict()

    def _release(self) -> None:
        gc.unfreeze()
        for subject in self._subjects.values():
            subject.release()
        self._subjects = {}

    def _subject(self, case: Case, module: Callable[[], Any], seed: int, bucket_bytes: int) -> Subject:
        if case.role == "ddp":
            if self._solo is None:
                self._solo = dist.new_group([dist.get_rank()], use_local_synchronization=True)
            return ReferenceSubject(case, module, self._solo)
        return MethodSubject(case, module(), self._method_of(case), seed=seed, bucket_bytes=bucket_bytes)

    def _subject_of(self, case: str, units: int, modes: list[str]) -> Subject:
        if case not in self._subjects:
            raise RefusedError(f"no case {case!r} has been built")
        if unknown := set(modes) - set(MODES):
            raise RefusedError(f"no mode {', '.join(map(repr, unknown))}: use {', '.join(MODES)}")
        if type(units) is not int or units < 1:
            raise RefusedError(f"units is {units!r}: it must be a whole number, at least 1")
        return self._subjects[case]


def _taken(
    subject: Subject,
    mode: str,
    units: int,
    batches: Sequence[Batch],
    start: Callable[[], Any] = lambda: None,
) -> Block:
    """The block; a case without such steps is refused, since all ranks find so."""
    try:
        return subject.block(cast("Mode", mode), units, batches, start)
    except NoSuchStepError as error:
        raise RefusedError(str(error)) from error
