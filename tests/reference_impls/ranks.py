"""Gloo processes that stay: a task is done by all of them in a group that exists already, and answers a value a rank.

Starting processes costs seconds and a task some tenths of one, so tests of many rows share one set a world size. A task
that fails or hangs ends the set; the next one gets a fresh set, so that failures are those of one row alone.
"""

from __future__ import annotations

import gc
import io
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from tests.reference_impls.gloo import host, join, processes_that_have_torch


def outcome(action: Callable[[], Any]) -> tuple[str, str]:
    """The type and the words, notes included, of the error that `action` raises."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - the test asserts on it
        return type(error).__name__, " ".join([str(error), *getattr(error, "__notes__", ())])
    return "no error", ""


def told(action: Callable[[], Any]) -> str:
    """`outcome` in one string."""
    return ": ".join(outcome(action)).removesuffix(": ")


GRACE_S = 5.0  # for the others to notice that one rank has failed


class Ranks:
    """`size` processes of one group. `submit` begins a task, `results` waits for it; `close` ends them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._store: Any = None

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Begin ``function(rank, size, *arguments)`` on every process; meanwhile the caller may do other things."""
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((function, arguments))

    def results(self, timeout_s: float = 60.0) -> list[Any]:
        """One value a rank: what the function returned, ("error", type, message, trace), or None if it is silent."""
        found: dict[int, Any] = {}
        deadline = time.monotonic() + timeout_s
        while len(found) < self.size:
            waiting = [pipe for rank, pipe in enumerate(self._pipes) if rank not in found]
            ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank = self._pipes.index(pipe)  # type: ignore[arg-type]
                found[rank] = _received(self._pipes[rank])
                if _failed(found[rank]):
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        answers = [found.get(rank) for rank in range(self.size)]
        if any(answer is None or _failed(answer) for answer in answers):
            self.close()
        return answers

    def run(self, function: Callable[..., Any], *arguments: Any, timeout_s: float = 60.0) -> list[Any]:
        """`submit`, then `results`."""
        self.submit(function, *arguments)
        return self.results(timeout_s)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes, self._store = [], [], None

    def _start(self) -> None:
        self._store = host()
        context = processes_that_have_torch()
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, self.size, self._store.port, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)


def _failed(answer: Any) -> bool:
    return isinstance(answer, tuple) and bool(answer) and answer[0] == "error"


def _received(pipe: Connection) -> Any:
    try:
        return torch.load(io.BytesIO(pipe.recv_bytes()), weights_only=False)
    except EOFError:
        return ("error", "EOFError", "the process ended", "")


def _serve(rank: int, size: int, port: int, pipe: Connection) -> None:
    gc.freeze()  # see `tests.reference_impls.gloo`
    join(rank, size, port)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            result = function(rank, size, *arguments)
        except Exception as error:  # noqa: BLE001 - the test asserts on it
            result = ("error", type(error).__name__, str(error), traceback.format_exc())
        file = io.BytesIO()
        torch.save(result, file)
        pipe.send_bytes(file.getvalue())
