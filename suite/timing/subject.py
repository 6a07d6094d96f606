"""A subject: one case on one rank, with a module and an optimizer of its own, and blocks of timed steps of it.

Values do not matter here, seconds do: the batches are a fixed few, the learning rate is tiny and constant, and
blocks without communication leave replicas apart. A block is steps without any pause in between; its clock reads once
a step.

What methods are compared with is torch's DistributedDataParallel, measured as it is. `fp32` is DDP without a hook. `bf16` is DDP
with torch's hook, on a CPU `reduce_in_bf16` in its place, since torch's refuses gloo, which sums bf16 itself. `powersgd` is
torch's hook (arXiv 1905.13727), warm start and error feedback on. Every such reference has a *null twin*: the same code over a
group of one process, in which every collective is answered by the process itself. The difference in seconds is the
communication that DDP did not hide.

**Differences** from DDP's defaults: PowerSGD gets one bucket for the whole model, and so overlaps nothing with backward.
Its hook waits for a second collective within the callback of the first; gloo has two threads for both, and with
several buckets all of them wait for ever.
"""

# No `from __future__ import annotations`: DDP compares the hook's annotations with the classes themselves.

import gc
import math
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from reference_impls import DataParallelOptimizer
from reference_impls.core.errors import UnknownOptionError, UnsupportedError, nearest
from reference_impls.core.optimizers import local_optimizer
from reference_impls.core.registry import Method
from suite.timing.spec import DEFAULT_BUCKET_MB
from suite.timing.store import AVERAGE, ROUND, Case, Mode

LEARNING_RATE: Final = 1e-6

Batch = Sequence[Tensor]


class NoSuchStepError(ValueError):
    """A case took no step of its kind, or too few; all ranks find the same."""


@dataclass(frozen=True)
class Block:
    """What a block took on this rank.

    unit_seconds: of each unit. phases: mean seconds a step in the units by phase, which add up to the step; None outside
    of serial blocks. wire_bytes, received_bytes: a unit, as the ledger counts them. cpu_s: CPU seconds of the whole process
    in the block. kinds: all steps taken, passed-by ones included.
    """

    unit_seconds: tuple[float, ...]
    phases: Mapping[str, float] | None
    wire_bytes: float
    received_bytes: float
    cpu_s: float
    kinds: Mapping[str, int]


@dataclass(frozen=True)
class Stepping:
    """Steps of one mode. step: forward, backward, update. kind: of the step taken last. phases: seconds so far by phase,
    without the rest; None where they are not told apart."""

    step: Callable[[Batch], None]
    kind: Callable[[], str]
    phases: Callable[[], Mapping[str, float] | None]


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
                    if on_gpu:  # what the next steps may hide goes on, on streams of its own
                        torch.cuda.current_stream().synchronize()
                    kinds[taken] = stepping.kind()
                    taken += 1
                    length += 1
                    if kinds[taken - 1] == end:
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
            phases=_phases(cuts, marks, steps),
            wire_bytes=sent,
            received_bytes=received,
            cpu_s=cpu,
            kinds=dict(sorted(counts.items())),
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
        """What backward's hooks did for the method is told by the trace of serial steps; the rest of it is backward's own."""
        self.optimizer.ledger.clear()
        own = 0.0
        with ExitStack() as stack:
            if mode == "null":
                stack.enter_context(self.optimizer.without_communication())
            trace = stack.enter_context(self.optimizer.traced()) if mode == "serial" else None

            def backward(batch: Batch) -> None:
                nonlocal own
                traced, started = trace.total if trace else 0.0, time.perf_counter()
                self.module(*batch).backward()
                own += time.perf_counter() - started - ((trace.total if trace else 0.0) - traced)

            yield Stepping(
                lambda batch: take_step(self.optimizer, lambda: backward(batch)),
                lambda: self.optimizer.kind,
                lambda: {"forward_backward": own, **trace.seconds} if trace else None,
            )

    def traffic(self, mode: Mode, kinds: Mapping[str, int]) -> tuple[float, float]:
        """From the ledger. What `plan` sends is spread over all steps; a round has its steps of both kinds."""
        is_round, taken = self.case.kind.startswith(ROUND), sum(kinds.values())
        sent = received = 0.0
        for row in self.optimizer.ledger.totals():
            if is_round or row["kind"] == "plan":
                share = self.case.unit_steps / taken
            else:
                share = 1 / kinds[row["kind"]] if row["kind"] == self.case.kind else 0.0
            sent += share * row["wire_bytes"]
            received += share * row["received_bytes"]
        return sent, received


ALGORITHMS: Final = ("fp32", "bf16", "powersgd")


def reduce_in_bf16(
    state: dist.ProcessGroup,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """DDP hook: the bucket, divided by the number of ranks, summed in bf16."""
    gradient = bucket.buffer()
    half = gradient.to(torch.bfloat16).div_(state.size())
    work = dist.all_reduce(half, group=state, async_op=True)
    summed: torch.futures.Future[torch.Tensor] = work.get_future().then(
        lambda done: gradient.copy_(done.value()[0])
    )
    return summed


class Reference:
    """One DDP training: forward and backward over `module`, which answers its own loss, and a local optimizer.

    algorithm: of `ALGORITHMS`. options: `bucket_cap_mb` in MiB (default 25, which leaves the choice to DDP), for `powersgd` the
    `matrix_approximation_rank`; `optimizer` (default sgd) and its hyper-parameters. group: None is the world. Raises
    `UnsupportedError`, `UnknownOptionError`.
    """

    def __init__(
        self,
        module: nn.Module,
        algorithm: str,
        options: Mapping[str, Any],
        lr: float,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if algorithm not in ALGORITHMS:
            raise UnsupportedError(
                f"DDP is measured with {', '.join(ALGORITHMS)}, not {algorithm!r}{nearest(algorithm, ALGORITHMS)}"
            )
        self.algorithm = algorithm
        self._group = dist.group.WORLD if group is None else group
        self._elements = sum(p.numel() for p in module.parameters() if p.requires_grad)
        given = dict(options)
        cap = given.pop("bucket_cap_mb", DEFAULT_BUCKET_MB)
        local = local_optimizer(given.pop("optimizer", "sgd"))
        rank = given.pop("matrix_approximation_rank", 1) if algorithm == "powersgd" else 0
        if rank:
            cap = max(cap, math.ceil(self._elements * 4 / 2**20) + 1)
        elif cap == DEFAULT_BUCKET_MB:
            cap = None
        for key in given:
            if key not in local.hyperparameters:
                raise UnknownOptionError(f"DDP has no option {key!r}{nearest(key, local.hyperparameters)}")
        self.model = DistributedDataParallel(module, process_group=self._group, bucket_cap_mb=cap)
        self._state: PowerSGDState | None = None
        if algorithm == "bf16":
            on_gpu = next(module.parameters()).is_cuda
            self.model.register_comm_hook(self._group, bf16_compress_hook if on_gpu else reduce_in_bf16)
        elif rank:
            self._state = PowerSGDState(self._group, rank, start_powerSGD_iter=2)
            self.model.register_comm_hook(self._state, powerSGD_hook)
        hyper = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
        self.optimizer = local.build(
            [{"params": list(module.named_parameters()), "lr": lr, **local.hyperparameters, **hyper}]
        )

    def forward_backward(self, batch: Sequence[Tensor]) -> None:
        """The loss of this rank's batch and its averaged gradient."""
        self.model(*batch).backward()

    def update(self) -> None:
        """The optimizer's step."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def wire_bytes(self) -> float:
        """Bytes that this rank sends a step in ring all-reduces; received as many. After the first steps only."""
        elements = float(self._elements)
        if self._state is not None:
            _, before, after = self._state.compression_stats()  # type: ignore[no-untyped-call]
            elements *= after / before if before else 1.0
        ranks = dist.get_world_size(self._group)
        return 2 * (ranks - 1) / ranks * elements * (2 if self.algorithm == "bf16" else 4)


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
        if self._twin is None and mode != "run":
            self._twin = self._build(self._solo)
        reference = self._twin if self._twin is not None and mode != "run" else self._real
        seconds = {"forward_backward": 0.0, "update": 0.0}

        def step(batch: Batch) -> None:
            started = time.perf_counter()
            reference.forward_backward(batch)
            between = time.perf_counter()
            reference.update()
            seconds["forward_backward"] += between - started
            seconds["update"] += time.perf_counter() - between

        yield Stepping(step, lambda: "step", lambda: dict(seconds) if mode == "serial" else None)

    def traffic(self, mode: Mode, kinds: Mapping[str, int]) -> tuple[float, float]:
        sent = self._real.wire_bytes() * self.case.unit_steps if mode == "run" else 0.0
        return sent, sent

    def _build(self, group: dist.ProcessGroup | None) -> Reference:
        return Reference(self._module(), self.case.algorithm, self.case.options, LEARNING_RATE, group)


def take_step(optimizer: DataParallelOptimizer, backward: Callable[[], None]) -> None:
    """A step as users take it. Gradients at a method's reference points are part of its step."""
    if optimizer.method.algorithm.reference_points:
        optimizer.step(backward)
    else:
        backward()
        optimizer.step()
    optimizer.zero_grad()


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
