"""Many runs on this machine: a pool of worker processes, one thread each, that take groups of runs.

Safe to interrupt: what has ended is kept, the rest is done by the next call. One interrupt lets the groups under way
finish, a second one stops them. A worker that dies marks the runs that it had in hand `error`; the others go on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from suite.runs.launch import exit_text
from suite.runs.record import failed
from suite.runs.spec import RunSpec
from suite.runs.status import Status
from suite.runs.store import Store, StoreError
from suite.runs.worker import serve


@dataclass
class Tally:
    """How far a sweep has come. `run_steps` counts the steps of single runs, of `run_steps_total`."""

    runs_total: int
    run_steps_total: int
    runs: int = 0
    run_steps: int = 0
    states: dict[str, int] = field(default_factory=dict)
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    interrupted: bool = False
    note: str = ""


def default_jobs() -> int:
    """A worker for each core that this process may use."""
    return len(os.sched_getaffinity(0))


def run_local(
    specs: Sequence[RunSpec],
    store: Store,
    jobs: int | None = None,
    report: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Carry the runs out; `report` is called whenever something has moved. Returns the final tally.

    Raises `StoreError` when results cannot be kept; what was finished is kept.
    """
    from suite.runs.train import groups

    jobs = min(jobs or default_jobs(), max(1, len(specs)))
    waiting = deque(groups(specs, jobs))
    tally = Tally(len(specs), sum(spec.steps for spec in specs))
    with _interrupts(tally, report) as stop_now:
        pool = [_Worker(store) for _ in range(min(jobs, len(waiting)))]
        try:
            while any(worker.alive for worker in pool):
                _assign(pool, waiting, tally)
                for worker in _ready(pool):
                    worker.hear(tally)
                    if worker.dead and waiting and not tally.interrupted:
                        pool[pool.index(worker)] = _Worker(store)
                report(tally)
                if stop_now():
                    break
        finally:
            for worker in pool:
                worker.end()
    full = next((worker.full for worker in pool if worker.full), None)
    if full:
        raise StoreError(full)
    return tally


class _Worker:
    """A worker process, what it has in hand, and what it said."""

    def __init__(self, store: Store) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, str(store.root)), daemon=False)
        self._process.start()
        theirs.close()
        self._store = store
        self._hand: dict[str, RunSpec] = {}
        self._counted = 0
        self.alive = True
        self.dead = False
        self.full: str | None = None

    @property
    def pipe(self) -> Connection:
        """What to wait on."""
        return self._pipe

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return self.alive and not self._hand

    def give(self, specs: Sequence[RunSpec]) -> None:
        """Hand it a group."""
        self._hand = {spec.run_id: spec for spec in specs}
        self._counted = 0
        for spec in specs:
            self._store.put_spec(spec)
        self._pipe.send(list(self._hand))

    def hear(self, tally: Tally) -> None:
        """Take one message; the end of the pipe means that the process has died."""
        try:
            message = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._bury(tally)
            return
        if message[0] == "step":
            tally.run_steps += (message[1] - self._counted) * len(self._hand)
            self._counted = message[1]
        elif message[0] == "run":
            self._ended(tally, *message[1:])
        else:
            self.full = message[1]
            tally.interrupted = True
            self._close()

    def dismiss(self) -> None:
        """Let it go when there is nothing left to do."""
        self._pipe.send(None)
        self._close()

    def end(self) -> None:
        """Stop it, whatever it does."""
        if self.alive:
            self._process.kill()
            self._close()
            for run_id in self._hand:
                self._store.abandon(run_id)

    def _ended(self, tally: Tally, run_id: str, state: str, reason: str) -> None:
        spec = self._hand.pop(run_id)
        tally.runs += 1
        tally.run_steps += spec.steps - self._counted
        tally.states[state] = tally.states.get(state, 0) + 1
        if state != "done":
            tally.failures.append((run_id, state, reason))

    def _bury(self, tally: Tally) -> None:
        self._close()
        self.dead = True
        status = Status("error", f"the worker process died: {exit_text(self._process.exitcode)}")
        for spec in list(self._hand.values()):
            failed(spec, status).save(self._store)
            self._ended(tally, spec.run_id, status.state, status.reason)

    def _close(self) -> None:
        self.alive = False
        self._process.join()
        self._pipe.close()


def _assign(pool: Sequence[_Worker], waiting: deque[list[RunSpec]], tally: Tally) -> None:
    for worker in pool:
        if worker.idle and waiting and not tally.interrupted:
            worker.give(waiting.popleft())
        elif worker.idle:
            worker.dismiss()


def _ready(pool: Sequence[_Worker]) -> Iterator[_Worker]:
    by_pipe = {worker.pipe: worker for worker in pool if worker.alive}
    if by_pipe:
        for pipe in wait(list(by_pipe), timeout=1.0):
            yield by_pipe[pipe]  # type: ignore[index]


@contextmanager
def _interrupts(tally: Tally, report: Callable[[Tally], None]) -> Iterator[Callable[[], bool]]:
    """First SIGINT: no new groups. Second SIGINT, or SIGTERM: stop now. Yields the question whether to stop now."""
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        received.append(number)
        tally.interrupted = True
        tally.note = "interrupted: finishing what is under way; once more stops at once"
        report(tally)

    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: signal.SIGTERM in received or len(received) > 1
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
