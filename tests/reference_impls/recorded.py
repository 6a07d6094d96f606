"""Recorders for tests: what a CUDA graph does, on a CPU."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from reference_impls import SimulatedCluster
from reference_impls.runtime.engine import SimulatedBackend
from reference_impls.runtime.replay import Recording, Replays, Work

_ASKING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def place() -> str:
    """The line of the package that is being carried out."""
    frames = [own for own in traceback.extract_stack() if "/reference_impls/" in own.filename]
    own = [frame for frame in frames if "/tests/" not in frame.filename][-1]
    return f"{Path(own.filename).name}: {own.line}"


class Log(TorchDispatchMode):
    """Every operation with its arguments, which `again` carries out on the same memory. asks: where a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.asks: set[str] = set()
        self.lane: int | None = None
        self.touched: dict[int, tuple[set[int], set[int]]] = {}
        """Lane -> addresses of 4 bytes that were read or written there, and those written."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = function(*args, **kwargs)
        if _ASKING & set(function.tags) and not (
            function is torch.ops.aten.index.Tensor and _by_places(args[1])
        ):
            self.note(function)
        if not _is_view(function):
            self.calls.append((function, args, kwargs, found))
            if self.lane is not None:
                self.touch(function, args, kwargs)
        return found

    def touch(self, function: Any, args: Any, kwargs: Any) -> None:
        """Keep which memory an operation works on."""
        seen, written = self.touched.setdefault(self.lane or 0, (set(), set()))
        for place, argument in enumerate(function._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            writes = argument.alias_info is not None and argument.alias_info.is_write
            for own in tree_leaves(value):
                if isinstance(own, Tensor) and own.numel():
                    extent = (
                        sum((size - 1) * stride for size, stride in zip(own.shape, own.stride(), strict=True))
                        + 1
                    )
                    addresses = range(
                        own.data_ptr() // 4, (own.data_ptr() + extent * own.itemsize - 1) // 4 + 1
                    )
                    seen.update(addresses)
                    written.update(addresses if writes else ())

    def note(self, function: Any) -> None:
        self.asks.add(f"{place()} ({function})")

    def again(self) -> None:
        """What is answered is written to where it was when the log was made."""
        for function, args, kwargs, found in self.calls:
            for before, now in zip(tree_leaves(found), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(before, Tensor) and before.data_ptr() != now.data_ptr():
                    before.copy_(now)


def _by_places(indices: Any) -> bool:
    """Whether how many there are does not depend on values."""
    return all(own is None or own.dtype not in (torch.bool, torch.uint8) for own in indices)


def _is_view(function: Any) -> bool:
    """Whether it writes nothing."""
    answers = function._schema.returns
    return bool(answers) and all(
        one.alias_info is not None and not one.alias_info.is_write for one in answers
    )


class Reading(TorchFunctionMode):
    """Notes where the host reads the memory of a tensor past torch."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (Tensor.numpy, Tensor.tolist, Tensor.__array__):
            self.log.note(function)
        return function(*args, **(kwargs or {}))


@contextmanager
def logged() -> Iterator[Log]:
    """The log of what is done within; what the host decides by itself is not in it."""
    choice = Recording.choice

    def aside(recording: Recording, of: Callable[[], Any]) -> Any:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return choice(recording, of)

    with Log() as log, Reading(log), patch.object(Recording, "choice", aside):
        yield log


class Logged:
    """In the place of `CudaGraphs`: repeats what was logged. launches: operations of each recording."""

    def __init__(self) -> None:
        self.launches: list[int] = []

    @contextmanager
    def beside(self, repeats: bool = False) -> Iterator[None]:
        yield

    def rehearse(self, work: Work) -> str:
        with logged() as log:
            work()
        return ", ".join(sorted(log.asks))

    @contextmanager
    def lanes(self, ranks: int) -> Iterator[Sequence[AbstractContextManager[None]]]:
        """Where no collective is carried out, and nobody touches what another rank writes."""
        with patch.object(SimulatedBackend, "launch", side_effect=AssertionError("lanes have not ended")):
            yield [self._lane(rank) for rank in range(ranks)]
        for rank, (seen, _) in self._log.touched.items():
            assert not any(
                seen & written for other, (_, written) in self._log.touched.items() if other != rank
            )
        self._log.touched.clear()

    @contextmanager
    def _lane(self, rank: int) -> Iterator[None]:
        self._log.lane = rank
        try:
            yield
        finally:
            self._log.lane = None

    def record(self, work: Work) -> Work:
        with logged() as self._log:
            work()
        log = self._log
        assert not log.asks
        self.launches.append(len(log.calls))
        return log.again


class Rehearsed(Replays):
    """Carries out each step itself, with the same numbers as tensors, where others repeat it."""

    def _repeat(self, recording: Recording, work: Work) -> None:
        anew = Recording(recording.device, recording.pending)
        with self._watched(anew):
            work()
        self._count(anew)


def replayed(cluster: SimulatedCluster, replays: type[Replays] = Replays) -> Replays:
    """Let `cluster` record its steps."""
    workers = cluster._local_workers
    recorder: Any = Logged()
    workers.replays = replays(workers.workers, workers.engine, recorder)
    return workers.replays
