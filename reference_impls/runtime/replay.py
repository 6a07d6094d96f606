"""Steps that are carried out again from a recording, as a GPU replays a CUDA graph, for simulated workers.

All that comes after `plan` is recorded once and repeated in later steps: the same launches on the same memory. So the host may
give a step nothing that changes, but for two things. Numbers for arithmetic and keys of random streams (learning rates,
`TrainState.number`, `key`) lie in one buffer on the device, which is filled before each step. By what decides about launches
(`TrainState.choice`) recordings are told apart, as by the kind of the step and by what is pending.

The first step of a kind is carried out as ever: it makes what later ones find. The next one is a *rehearsal*: a step too, in
which whoever asks the host for anything else is noticed, for a value of a tensor, the step, a counter, what was told; and so is
state that moves to other memory, and an exchange that goes on over steps. Where nothing was noticed the next step is recorded;
else those that are decided in this way stay as ever, and `Replays.asking` says why.
"""

from __future__ import annotations

import struct
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from reference_impls.core.algorithm import TrainState
from reference_impls.core.collectives import Ledger
from reference_impls.core.compute import Key, sent
from reference_impls.core.optimizers import Lion
from reference_impls.runtime.engine import Engine, one_lane
from reference_impls.runtime.worker import Worker

T = TypeVar("T")
Work = Callable[[], None]
MOST: Final = 8
"""Recordings of steps of one kind; what is decided in more ways is not recorded."""
_JOINT: Final = (torch.optim.SGD, torch.optim.AdamW, Lion)
_HOST: Final = frozenset({"step", "lr", "counters", "observed"})
_WORDS: Final = 4
"""Of 4 bytes, that a value takes: kernels are compiled for addresses that 16 bytes divide."""


class CudaGraphs:
    """Records CUDA graphs of one training, on a stream of its own, so that small kernels of several trainings overlap."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._lanes: list[torch.cuda.Stream] = []
        self.joins = True
        """Whether what comes after a step that is repeated waits for it; else only for `join`."""

    @contextmanager
    def beside(self, repeats: bool = False) -> Iterator[None]:
        """Where steps are carried out. repeats: from a recording."""
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield
        if self.joins or not repeats:  # others may use what other steps have made: constants, say
            self.join()

    def join(self) -> None:
        """What comes now waits for what was done here."""
        torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)

    def rehearse(self, work: Work) -> str:
        """Carry out `work`; answers why it cannot be recorded, as far as the device noticed, or nothing."""
        before = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                work()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        waits = any("synchronizing CUDA operation" in str(one.message) for one in found)
        return "the host waits for the GPU" if waits else ""

    def record(self, work: Work) -> Work:
        """Carry out `work` and answer what does so again."""
        graph = torch.cuda.CUDAGraph()
        torch._C._cuda_clearCublasWorkspaces()  # else graphs of several trainings would share that of a stream
        # other threads may allocate meanwhile
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            work()
        torch._C._cuda_clearCublasWorkspaces()
        graph.replay()
        return graph.replay

    @contextmanager
    def lanes(self, ranks: int) -> Iterator[Sequence[AbstractContextManager[Any]]]:
        """`Lanes`, branches of the graph: what is allocated in one is used again there alone, or after all have ended."""
        while len(self._lanes) < ranks:
            self._lanes.append(torch.cuda.Stream(self._stream.device))  # type: ignore[no-untyped-call]
        for lane in self._lanes[:ranks]:
            lane.wait_stream(self._stream)
        try:
            yield [torch.cuda.stream(lane) for lane in self._lanes[:ranks]]
        finally:
            for lane in self._lanes[:ranks]:
                self._stream.wait_stream(lane)


Values = Sequence[tuple[str, Callable[[], Sequence[float]]]]
"""Who answers words of 4 bytes, and their format, a letter of `struct` a word."""


@dataclass
class Recording:
    """A step of one kind, decided in one way: rehearsed, then recorded.

    pending: names of what was pending before it, bucket by bucket. asking: what the host was asked for, so that it cannot be
    recorded. choices: who decided, and how. values: what is sent before each step, in the order in which it is asked for.
    buffer: where that lies. ledgers: what is sent in the step. again: carries it out.
    """

    device: torch.device
    pending: Sequence[Sequence[str]]
    asking: str = ""
    choices: list[tuple[Callable[[], Any], Any]] = field(default_factory=list)
    values: list[tuple[str, Callable[[], Sequence[float]]]] = field(default_factory=list)
    buffer: Tensor | None = None
    ledgers: Sequence[Ledger] = ()
    again: Work | None = None
    _taken: int = 0

    def fits(self, pending: Sequence[Sequence[str]]) -> bool:
        """Whether the step to come is decided in this way."""
        return self.pending == pending and all(of() == value for of, value in self.choices)

    def choice(self, of: Callable[[], Any]) -> Any:
        """What `of` answers."""
        value = of()
        if self.buffer is None:
            self.choices.append((of, value))
        return value

    def value(self, form: str, of: Callable[[], Sequence[float]]) -> Tensor:
        """The words that `of` answers, on the device: int32 or float32 [words], of each step anew."""
        if self.buffer is None:
            self.values.append((form, of))
            words = sent(_packed([(form, of)]), self.device)
        else:
            words = self.buffer[self._taken : self._taken + _WORDS]
            self._taken += _WORDS
        return words[: len(form)].view(torch.float32 if form[0] == "f" else torch.int32)

    def fill(self) -> None:
        """Send the values of the step to come."""
        host = _packed(self.values)
        if self.buffer is None:
            self.buffer = torch.empty_like(host, device=self.device)
        self.buffer.copy_(host.pin_memory() if self.buffer.is_cuda else host, non_blocking=True)


def _packed(values: Values) -> Tensor:
    """int32 [words], each value filled up with zeros."""
    form = "".join(form + "i" * (_WORDS - len(form)) for form, _ in values)
    words = [word for form, of in values for word in (*of(), *(0,) * (_WORDS - len(form)))]
    return torch.frombuffer(bytearray(struct.pack(f"={form}", *words)), dtype=torch.int32)


class Watched(TrainState):
    """Time as a method sees it in a step that is rehearsed or recorded."""

    def __init__(self, real: TrainState, recording: Recording) -> None:
        super().__init__(*(getattr(real, own.name) for own in fields(real)))
        self._real, self._recording = real, recording

    def __getattribute__(self, name: str) -> Any:
        if name in _HOST:
            self._recording.asking = f"the method asks for the {name} in a step"
        return super().__getattribute__(name)

    def number(self, of: Callable[[TrainState], float]) -> Tensor:
        return self._recording.value("f", lambda: (of(self._real),))[0]

    def choice(self, of: Callable[[TrainState], T]) -> T:
        answer: T = self._recording.choice(lambda: of(self._real))
        return answer

    def key(self, stage: str, rank: int | None = None, name: str | None = None, start: int = 0) -> Key:
        real = self._real
        of = partial(Key.numbers, seed=real.seed, stage=stage, rank=rank, name=name, start=start)
        return Key(self._recording.value("iii", lambda: of(step=real.step)))


class NotRecordedError(Exception):
    """The device could not record a step, of which nothing has been carried out; nobody will try again."""


class Replays:
    """Carries out the steps of `workers`, from recordings where it can."""

    def __init__(self, workers: Sequence[Worker], engine: Engine, recorder: CudaGraphs) -> None:
        self._workers, self._engine, self._recorder = workers, engine, recorder
        self._buckets = [bucket for worker in workers for bucket in worker.buckets]
        self._known: dict[str, list[Recording]] = {}
        self._home: list[int] = []
        self._moves = 0

    @property
    def asking(self) -> dict[str, list[str]]:
        """Kind of step -> why some of them are carried out as ever."""
        found = {kind: [own.asking for own in known if own.asking] for kind, known in self._known.items()}
        return {kind: why for kind, why in found.items() if why}

    @property
    def recorded(self) -> dict[str, int]:
        """Kind of step -> recordings of it."""
        return {kind: sum(own.again is not None for own in known) for kind, known in self._known.items()}

    def forget(self) -> None:
        """What was recorded looks for the state where it is no longer."""
        self._known.clear()

    def take(self, work: Work) -> None:
        """Carry out what comes after `plan`."""
        kind, pending = self._workers[0].train_state.kind, self._pending()
        is_first, known = kind not in self._known, self._known.setdefault(kind, [])
        found = next((own for own in known if own.fits(pending)), None)
        as_ever = (
            is_first or self._unsettled() or (len(known) == MOST if found is None else bool(found.asking))
        )
        with self._recorder.beside(repeats=not as_ever and found is not None and found.again is not None):
            if as_ever:
                self._as_ever(work)
            elif found is None:
                self._rehearse(kind, Recording(self._workers[0].train_state.device, pending), work)
            else:
                self._repeat(found, work)

    def step_optimizers(self) -> None:
        """Step the inner optimizers of all workers, by one call where they are torch's or this project's."""
        workers = [worker for worker in self._workers if worker.algorithm.has_inner_optimizer]
        with ExitStack() as gradients:
            for worker in workers:
                gradients.enter_context(worker.flat_gradients())
            if workers and type(workers[0].optimizer) in _JOINT:
                _joint([worker.optimizer for worker in workers]).step()
                return
            for worker in workers:
                worker.optimizer.step()

    def _unsettled(self) -> bool:
        """Whether steps as a whole are not to be recorded now."""
        unknown = any(worker.given is not None and worker.unused != () for worker in self._workers)
        return unknown or self._engine.under_way or self._moves > MOST

    def _as_ever(self, work: Work) -> None:
        work()
        if any(self._known.values()):
            self._look()

    def _look(self) -> None:
        """Forget what was recorded if state has moved."""
        home, before = self._places(), self._home
        self._home = home
        if before not in ([], home):
            self._moves += 1
            self.forget()

    def _repeat(self, recording: Recording, work: Work) -> None:
        recording.fill()
        if recording.again is None:
            self._engine.lanes = self._recorder.lanes
            try:
                with self._watched(recording):
                    recording.again = self._recorder.record(work)
            except RuntimeError as error:
                recording.asking = f"{type(error).__name__}: {error}"
                raise NotRecordedError from error
            finally:
                self._engine.lanes = one_lane
        else:
            recording.again()
        self._count(recording)

    def _count(self, recording: Recording) -> None:
        for ledger, own in zip(self._engine.ledgers, recording.ledgers, strict=True):
            ledger.add(own)

    def _rehearse(self, kind: str, recording: Recording, work: Work) -> None:
        self._look()
        under_way = [dict(bucket.pending) for bucket in self._buckets]
        with self._watched(recording):
            asking = self._recorder.rehearse(work)
        self._count(recording)
        if self._engine.under_way or under_way != [bucket.pending for bucket in self._buckets]:
            asking = "an exchange goes on over steps"
        if self._home != self._places():
            asking = "the state moves to other memory"
        recording.asking = recording.asking or asking
        self._known.setdefault(kind, []).append(recording)

    @contextmanager
    def _watched(self, recording: Recording) -> Iterator[None]:
        """Whatever a method reads is noted in `recording` or comes from there."""
        engine, ledgers = self._engine, self._engine.ledgers
        groups = [worker.optimizer.param_groups for worker in self._workers]
        held = [[group["lr"] for group in own] for own in groups]
        rates = [recording.value("f", partial(_rate, own))[0] for own in groups[0]]
        engine.ledgers = recording.ledgers = [
            Ledger(own.rank, step=own.step, kind=own.kind) for own in ledgers
        ]
        for bucket in self._buckets:
            bucket.train_state = Watched(bucket.train_state, recording)
        try:
            for own in groups:
                for group, rate in zip(own, rates, strict=True):
                    group["lr"] = rate
            yield
        finally:
            engine.ledgers = ledgers
            for worker, before in zip(self._workers, held, strict=True):
                for bucket in worker.buckets:
                    bucket.train_state = worker.train_state
                for group, rate in zip(worker.optimizer.param_groups, before, strict=True):
                    group["lr"] = rate

    def _pending(self) -> Sequence[Sequence[str]]:
        return [sorted(bucket.pending) for bucket in self._buckets]

    def _places(self) -> list[int]:
        """Where parameters, gradients and all state lie."""
        held: list[Any] = [(b.params, b.grads, b.state, b.gradients) for b in self._buckets]
        held += [worker.optimizer.state for worker in self._workers]
        return [tensor.data_ptr() for tensor in _tensors(held)]


def _rate(group: Mapping[str, Any]) -> tuple[float]:
    return (float(group["lr"]),)


def _joint(optimizers: Sequence[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    """One optimizer of the parameters of all, which works on their states, in kernels that take tensors for numbers."""
    joint = copy(optimizers[0])
    joint._warned_capturable_if_run_uncaptured = True
    joint.state = defaultdict(dict)
    for own in optimizers:
        for param in (param for group in own.param_groups for param in group["params"]):
            state = joint.state[param] = own.state[param]
            if "step" in state:
                state["step"] = state["step"].to(param.device)
    joint.param_groups = [
        {
            **same[0],
            **{key: True for key in ("fused", "capturable") if key in same[0]},
            "params": [param for group in same for param in group["params"]],
        }
        for same in zip(*(own.param_groups for own in optimizers), strict=True)
    ]
    return joint


def _tensors(held: Any) -> Iterator[Tensor]:
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, Mapping | list | tuple):
        for own in held.values() if isinstance(held, Mapping) else held:
            yield from _tensors(own)
