"""A subject: one case on one rank, with a module and an optimizer of its own, and blocks of timed steps of it.

Values do not matter here, seconds do: the batches are a fixed few, the learning rate is tiny and constant, and
blocks without communication leave replicas apart. A block is steps without any pause in between; its clock reads once
a step.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer
from reference_impls.drivers.engine import Trace
from reference_impls.registry import Method
from suite.timing.case import AVERAGE, PLACES, ROUND, SENT, Case, Mode
from suite.timing.references import Reference

LEARNING_RATE: Final = 1e-6

Batch = Sequence[Tensor]


class NoSuchStepError(ValueError):
    """A case took no step of its kind, or too few; all ranks find the same."""


@dataclass(frozen=True)
class Block:
    """What a block took on this rank.

    unit_seconds: of each unit. step_seconds: of each step in the units. phases: mean seconds a step in the units by
    phase, which add up to the step; None outside of serial blocks. wire_bytes, received_bytes: a unit, as the ledger
    counts them. cpu_s: CPU seconds of the whole process in the block. kinds: all steps taken, passed-by ones included.
    stages: the same bytes, calls and payload by stage, collective and group; none of DDP, whose ledger nobody keeps.
    """

    unit_seconds: tuple[float, ...]
    step_seconds: tuple[float, ...]
    phases: Mapping[str, float] | None
    wire_bytes: float
    received_bytes: float
    cpu_s: float
    kinds: Mapping[str, int]
    stages: tuple[Mapping[str, Any], ...] = ()


class Stepping(Protocol):
    """Takes steps in one mode."""

    @property
    def kind(self) -> str:
        """Kind of the step taken last."""

    def step(self, batch: Batch) -> None:
        """Forward, backward, update."""

    def phases(self) -> Mapping[str, float] | None:
        """Seconds so far by phase, without the rest; None where they are not told apart."""


class Subject(ABC):
    """A case that can be stepped; see `MethodSubject` and `ReferenceSubject`."""

    def __init__(self, case: Case) -> None:
        self.case = case

    @abstractmethod
    def stepping(self, mode: Mode) -> AbstractContextManager[Stepping]:
        """Steps of one mode, for the length of a block."""

    @abstractmethod
    def traffic(self, mode: Mode, kinds: Mapping[str, int]) -> tuple[float, float]:
        """Bytes sent and received a unit in the block that was last stepped."""

    def stages(self, kinds: Mapping[str, int]) -> tuple[Mapping[str, Any], ...]:
        """The same by stage, collective and group, where they are told apart."""
        return ()

    @abstractmethod
    def release(self) -> None:
        """Let go of what was built; the subject is finished."""

    def block(
        self, mode: Mode, units: int, batches: Sequence[Batch], start: Callable[[], Any] = lambda: None
    ) -> Block:
        """Take steps until so many units of the case's kind are complete.

        Args:
            mode: With communication, without, or serial.
            units: How many units count.
            batches: Which the steps go round in.
            start: Called just before the clock starts; a barrier.

        Returns:
            What the block took on this rank.

        Raises:
            NoSuchStepError: The units were not complete after 8 times as many steps and 8 units more.
        """
        size = self.case.unit_steps
        is_round = self.case.kind.startswith(ROUND)
        end = AVERAGE if is_round else self.case.kind
        shortest = int(self.case.kind.removeprefix(ROUND)) if is_round else 1
        limit = (8 * units + 8) * size
        on_gpu = any(part.is_cuda for part in batches[0])
        marks, kinds, ends = [0.0] * (limit + 1), [""] * limit, [0] * units
        with self.stepping(mode) as stepping:
            cuts: list[Mapping[str, float] | None] = [None] * (limit + 1)
            taken = complete = length = whole = 0
            cuts[0] = stepping.phases()
            with no_collector():
                start()
                cpu = time.process_time()
                marks[0] = time.perf_counter()
                while complete < units and taken < limit:
                    stepping.step(batches[taken % len(batches)])
                    if on_gpu:
                        torch.cuda.synchronize()
                    kinds[taken] = stepping.kind
                    taken += 1
                    length += 1
                    if stepping.kind == end:
                        # a round that was cut short begins no unit
                        whole = whole + length if length >= shortest else 0
                        length = 0
                        if whole >= size:
                            ends[complete] = taken
                            complete += 1
                            whole = 0
                    cuts[taken] = stepping.phases()
                    marks[taken] = time.perf_counter()
                cpu = time.process_time() - cpu
        counts = Counter(kinds[:taken])
        if complete < units:
            seen = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
            raise NoSuchStepError(
                f"case {self.case.label!r} took {complete} of {units} units of {self.case.kind!r} ({size} steps each) within "
                f"{limit} steps (took: {seen}): give it a configuration that takes such steps at once and often"
            )
        steps = [step for last in ends for step in range(last - size, last)]
        sent, received = self.traffic(mode, counts)
        return Block(
            unit_seconds=tuple(marks[last] - marks[last - size] for last in ends),
            step_seconds=tuple(marks[step + 1] - marks[step] for step in steps),
            phases=_phases(cuts, marks, steps),
            wire_bytes=sent,
            received_bytes=received,
            cpu_s=cpu,
            kinds=dict(sorted(counts.items())),
            stages=self.stages(counts),
        )


class MethodSubject(Subject):
    """A method of ours on a process group, as in training but for the check of the first steps' agreement.

    module: forward(*batch) is the loss; it must be this subject's own. method: configured so that it takes steps of the
    case's kind at once and often.
    """

    def __init__(
        self, case: Case, module: nn.Module, method: Method, *, seed: int, bucket_bytes: int
    ) -> None:
        super().__init__(case)
        self.module = module
        self.optimizer = DataParallelOptimizer(
            module.named_parameters(), method, lr=LEARNING_RATE, seed=seed, bucket_bytes=bucket_bytes
        )

    @contextmanager
    def stepping(self, mode: Mode) -> Iterator[Stepping]:
        self.optimizer.ledger.clear()
        if mode == "run":
            yield _MethodSteps(self.module, self.optimizer)
        elif mode == "null":
            with self.optimizer.without_communication():
                yield _MethodSteps(self.module, self.optimizer)
        else:
            with self.optimizer.traced() as trace:
                yield _TracedSteps(self.module, self.optimizer, trace)

    def traffic(self, mode: Mode, kinds: Mapping[str, int]) -> tuple[float, float]:
        stages = self.stages(kinds)
        return sum(row["wire_bytes"] for row in stages), sum(row["received_bytes"] for row in stages)

    def stages(self, kinds: Mapping[str, int]) -> tuple[Mapping[str, Any], ...]:
        """From the ledger. What `plan` sends is spread over all steps; a round has its steps of both kinds."""
        is_round, taken = self.case.kind.startswith(ROUND), sum(kinds.values())
        totals: dict[tuple[str, ...], Counter[str]] = {}
        for row in self.optimizer.ledger.totals():
            if is_round or row["kind"] == "plan":
                share = self.case.unit_steps / taken
            else:
                share = 1 / kinds[row["kind"]] if row["kind"] == self.case.kind else 0.0
            if share:
                sums = totals.setdefault(tuple(row[name] for name in PLACES), Counter())
                sums.update({name: share * row[name] for name in SENT})
        return tuple(
            {**dict(zip(PLACES, place, strict=True)), **sums} for place, sums in sorted(totals.items())
        )

    def release(self) -> None:
        self.optimizer.release()


class _MethodSteps:
    def __init__(self, module: nn.Module, optimizer: DataParallelOptimizer) -> None:
        self._module = module
        self._optimizer = optimizer

    @property
    def kind(self) -> str:
        return self._optimizer.kind

    def step(self, batch: Batch) -> None:
        if self._optimizer.method.algorithm.probes:  # the gradients there are part of the step
            self._optimizer.step(lambda: self._backward(batch))
        else:
            self._backward(batch)
            self._optimizer.step()
        self._optimizer.zero_grad()

    def _backward(self, batch: Batch) -> None:
        self._module(*batch).backward()

    def phases(self) -> Mapping[str, float] | None:
        return None


class _TracedSteps(_MethodSteps):
    """Serial steps. What backward's hooks did for the method is told by the trace; the rest of it is backward's own."""

    def __init__(self, module: nn.Module, optimizer: DataParallelOptimizer, trace: Trace) -> None:
        super().__init__(module, optimizer)
        self._trace = trace
        self._own = 0.0

    def _backward(self, batch: Batch) -> None:
        traced, started = self._trace.total, time.perf_counter()
        super()._backward(batch)
        self._own += time.perf_counter() - started - (self._trace.total - traced)

    def phases(self) -> Mapping[str, float]:
        return {"forward_backward": self._own, **self._trace.seconds}


class ReferenceSubject(Subject):
    """A DDP reference. Its null and serial blocks are of its null twin, made when first asked for.

    DDP's own collectives cannot be made serial from outside: a serial block has the clock between the twin's forward and
    backward and its update; casts and compression in DDP's hooks count as forward and backward. module: makes a module
    with the values of the start. solo: the group of this process alone.
    """

    def __init__(self, case: Case, module: Callable[[], nn.Module], solo: dist.ProcessGroup) -> None:
        super().__init__(case)
        self._module = module
        self._solo = solo
        self._real = self._build(None)
        self._twin: Reference | None = None

    @contextmanager
    def stepping(self, mode: Mode) -> Iterator[Stepping]:
        if mode == "run":
            yield _ReferenceSteps(self._real)
            return
        if self._twin is None:
            self._twin = self._build(self._solo)
        yield (_ReferenceSteps if mode == "null" else _ReferencePhases)(self._twin)

    def traffic(self, mode: Mode, kinds: Mapping[str, int]) -> tuple[float, float]:
        sent = self._real.wire_bytes() * self.case.unit_steps if mode == "run" else 0.0
        return sent, sent

    def release(self) -> None:
        del self._real, self._twin

    def _build(self, group: dist.ProcessGroup | None) -> Reference:
        return Reference(self._module(), self.case.algorithm, self.case.options, LEARNING_RATE, group)


class _ReferenceSteps:
    kind = Reference.kind

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def step(self, batch: Batch) -> None:
        self._reference.forward_backward(batch)
        self._reference.update()

    def phases(self) -> Mapping[str, float] | None:
        return None


class _ReferencePhases(_ReferenceSteps):
    def __init__(self, reference: Reference) -> None:
        super().__init__(reference)
        self._seconds = {"forward_backward": 0.0, "update": 0.0}

    def step(self, batch: Batch) -> None:
        started = time.perf_counter()
        self._reference.forward_backward(batch)
        between = time.perf_counter()
        self._reference.update()
        self._seconds["forward_backward"] += between - started
        self._seconds["update"] += time.perf_counter() - between

    def phases(self) -> Mapping[str, float] | None:
        return dict(self._seconds)


@contextmanager
def no_collector() -> Iterator[None]:
    """Python's garbage collector off, after a run of it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _phases(
    cuts: Sequence[Mapping[str, float] | None], marks: Sequence[float], steps: Sequence[int]
) -> dict[str, float] | None:
    """Mean seconds of these steps by phase; `other` is what belongs to none."""
    if cuts[0] is None:
        return None
    sums: defaultdict[str, float] = defaultdict(float)
    for step in steps:
        before, after = cuts[step] or {}, cuts[step + 1] or {}
        by_phase = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
        for name, seconds in by_phase.items():
            sums[name] += seconds
        sums["other"] += marks[step + 1] - marks[step] - sum(by_phase.values())
    return {name: seconds / len(steps) for name, seconds in sums.items()}
