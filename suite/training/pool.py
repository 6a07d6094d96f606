"""Many runs on this machine: a pool of worker processes, one thread and one slot each, that take groups of runs.

Safe to interrupt: what has ended is kept, the rest is done by the next call. One interrupt lets the groups under way
finish, a second one (or a SIGTERM) stops them between two steps, with checkpoints, a third one at once. A worker that
dies marks the runs that it owned `error`; the others go on.

A worker takes groups of run ids from a pipe, trains them and reports on the same pipe: ("step", completed steps of the
group), ("run", run id, state, reason), ("over",) when a group is done with, ("stopped",) when it was interrupted, and
("full", text) when results cannot be kept any more. From the pool come lists of run ids, None at the end, and, at any time,
the reason to stop as a text. Only run ids cross the border: specs are read from the store. A worker whose pool has gone stops
too.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Final

from suite.runs.files import Owner, StoreError, lease_holder, release_lease
from suite.runs.plan import GPU_GROUP_BYTES, GROUP_BYTES, groups
from suite.runs.provenance import THREAD_VARIABLES
from suite.runs.spec import RunSpec
from suite.runs.store import Status, Store, failed
from suite.training.checkpoint import CHECKPOINT_S, Interrupted, PipeStop
from suite.training.processes import exit_text

GPU_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"


class SlotError(ValueError):
    """The slots that were asked for cannot be had here; the message says what to change."""


@dataclass(frozen=True)
class Slot:
    """What one worker and its children may use. gpu: the one that it sees, None: as its parent. cores: none given: as
    its parent."""

    gpu: str | None = None
    cores: tuple[int, ...] = ()

    @property
    def device(self) -> str:
        """Where its runs are computed, as torch calls it."""
        return "cpu" if self.gpu is None else "cuda"

    def enter(self) -> None:
        """Confine this process. Before torch is imported: it looks for GPUs once."""
        if self.gpu is not None:
            os.environ[GPU_VARIABLE] = self.gpu
        if self.cores:
            os.sched_setaffinity(0, self.cores)


def slots(jobs: int | None = None, gpus: Sequence[str] = (), cores: int = 0) -> tuple[Slot, ...]:
    """A slot for each worker.

    jobs: how many, by default one a GPU where some are named, else as many as there are cores for. gpus: dealt to the
    workers in turn, as CUDA names them. cores: of each worker, its own alone; 0: no worker is bound.

    Raises `SlotError` where there are fewer cores, or more GPUs than workers.
    """
    here = sorted(os.sched_getaffinity(0))
    wanted = jobs or len(gpus) or len(here) // max(1, cores)
    if cores and (wanted < 1 or wanted * cores > len(here)):
        raise SlotError(
            f"{max(1, wanted)} workers of {cores} cores need {max(1, wanted) * cores}, and this process may use "
            f"{len(here)}: ask for fewer workers (--jobs) or cores (--cores)"
        )
    if len(set(gpus)) != len(gpus):
        raise SlotError(f"GPUs {','.join(gpus)}: name each once; more workers (--jobs) share them in turn")
    if len(gpus) > wanted:
        raise SlotError(
            f"{wanted} workers for {len(gpus)} GPUs: a worker sees one, so leave --jobs out or name fewer GPUs"
        )
    return tuple(
        Slot(gpus[k % len(gpus)] if gpus else None, tuple(here[k * cores : (k + 1) * cores]))
        for k in range(wanted)
    )


OVER: Final = ("over",)


def serve(pipe: Connection, root: str, checkpoint_s: float, slot: Slot) -> None:
    """Work until the pipe closes or None arrives. Signals to stop are the pool's affair, not ours."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))  # before torch is imported: it reads them once
    slot.enter()
    import torch

    torch.set_num_threads(1)
    store, interruption = Store(root), PipeStop(pipe)
    try:
        while isinstance(run_ids := pipe.recv(), list):
            word = _train(run_ids, store, pipe, interruption, checkpoint_s, slot.device)
            pipe.send(word)
            if word != OVER:
                return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # nobody is left to tell


def _train(
    run_ids: list[str],
    store: Store,
    pipe: Connection,
    interruption: PipeStop,
    checkpoint_s: float,
    device: str,
) -> tuple[str, ...]:
    """Train a group; returns the last word about it."""
    from suite.training.execute import execute

    specs = [store.spec(run_id) for run_id in run_ids]
    try:
        for outcome in execute(
            specs,
            store,
            lambda step: pipe.send(("step", step)),
            interruption=interruption,
            checkpoint_s=checkpoint_s,
            device=device,
        ):
            pipe.send(("run", outcome.run_id, outcome.status.state, outcome.status.reason))
    except StoreError as error:
        return ("full", str(error))
    except Interrupted:
        return ("stopped",)
    return OVER


STOP_S: Final = 25.0
"""How long workers have for their checkpoints; less than Slurm leaves between its SIGTERM and its SIGKILL."""


@dataclass
class Tally:
    """How far a sweep has come. `run_steps` counts the steps of single runs, of `run_steps_total`; `share`: of the work, by
    what a run is expected to cost, without the steps that checkpoints have.
    """

    runs_total: int
    run_steps_total: int
    share: float = 0.0
    runs: int = 0
    run_steps: int = 0
    states: dict[str, int] = field(default_factory=dict)
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    interrupted: bool = False
    note: str = ""


def run_local(
    specs: Sequence[RunSpec],
    store: Store,
    jobs: int | Sequence[Slot] | None = None,
    report: Callable[[Tally], None] = lambda tally: None,
    *,
    checkpoint_s: float = CHECKPOINT_S,
    cost: Callable[[RunSpec], float] = lambda spec: spec.steps,
) -> Tally:
    """Carry the runs out; `report` is called whenever something has moved. Returns the final tally.

    Runs that another process owns are passed over, and counted as how they stand. checkpoint_s: seconds between
    the checkpoints of a run. jobs: how many workers, or a slot for each; by default as `slots` has it. cost: of a run, in any
    unit, for the share of the work.

    Raises `StoreError` when results cannot be kept; what was finished is kept.
    """
    places = (slots(jobs) if jobs is None or isinstance(jobs, int) else tuple(jobs))[: max(1, len(specs))]
    gpus = {place.gpu for place in places} - {None}
    waiting = deque(groups(specs, len(places), GPU_GROUP_BYTES if gpus else GROUP_BYTES))
    tally = Tally(len(specs), sum(spec.steps for spec in specs))
    kept = {spec.run_id: _kept(store, spec) for spec in specs}
    of_step = {spec.run_id: cost(spec) / spec.steps for spec in specs}
    whole = sum(of_step[spec.run_id] * (spec.steps - kept[spec.run_id]) for spec in specs)
    work = {run_id: (kept[run_id], cost_of_step / whole) for run_id, cost_of_step in of_step.items()}
    deadline = math.inf
    with _interrupts(tally, report) as received:
        pool = [_Worker(store, checkpoint_s, place, work) for place in places[: len(waiting)]]
        try:
            while any(worker.alive for worker in pool):
                _assign(pool, waiting, tally)
                for worker in _ready(pool):
                    worker.receive(tally)
                    if worker.dead and waiting and not tally.interrupted:
                        pool[pool.index(worker)] = _Worker(store, checkpoint_s, worker.slot, work)
                report(tally)
                reason = _reason_to_stop(received)
                if reason and deadline == math.inf:
                    deadline = time.monotonic() + STOP_S
                    for worker in pool:
                        worker.ask_to_stop(reason)
                if len(received) > 2 or time.monotonic() > deadline:
                    break
        finally:
            for worker in pool:
                worker.end()
    full = next((worker.full for worker in pool if worker.full), None)
    if full:
        raise StoreError(full)
    return tally


def _kept(store: Store, spec: RunSpec) -> int:
    """Steps that the checkpoint of a run has, 0 where there is none to go on from; one step at least is left."""
    note = store.note(spec.run_id)
    return min(note.step, spec.steps - 1) if note and note.state in {"running", "interrupted"} else 0


class _Worker:
    """A worker process, what it owns, and what it said. work: of each run the steps that a checkpoint has, and the share of the
    sweep's work that every further step is.
    """

    def __init__(
        self, store: Store, checkpoint_s: float, slot: Slot, work: Mapping[str, tuple[int, float]]
    ) -> None:
        self.slot = slot
        self._work = work
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(theirs, str(store.root), checkpoint_s, slot), daemon=False
        )
        self._process.start()
        theirs.close()
        self._store = store
        self._owned: dict[str, RunSpec] = {}
        self._counted = 0
        self._busy = False
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
        return self.alive and not self._busy

    def give(self, specs: Sequence[RunSpec]) -> None:
        """Hand it a group."""
        self._owned = {spec.run_id: spec for spec in specs}
        self._counted = 0
        self._busy = True
        for spec in specs:
            self._store.put_spec(spec)
        self._pipe.send(list(self._owned))

    def receive(self, tally: Tally) -> None:
        """Take one message; the end of the pipe means that the process has died."""
        try:
            message = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._mark_dead(tally)
            return
        if message[0] == "step":
            step = max(
                message[1], self._counted
            )  # a part of the group may stand further back than the one before
            for run_id in self._owned:
                self._advance(tally, run_id, step)
            self._counted = step
        elif message[0] == "run":
            _, run_id, state, reason = message
            self._ended(tally, run_id, state)
            if state != "done":
                tally.failures.append((run_id, state, reason))
        elif message[0] == "over":
            self._busy = False
            for run_id in list(self._owned):  # somebody else's
                self._ended(tally, run_id, self._store.status(run_id).state)
        elif message[0] == "stopped":
            tally.interrupted = True
            self._close()
        else:
            self.full = message[1]
            tally.interrupted = True
            self._close()

    def dismiss(self) -> None:
        """Let it go when there is nothing left to do."""
        with suppress(OSError):  # it has gone already
            self._pipe.send(None)
        self._close()

    def ask_to_stop(self, reason: str) -> None:
        """Have it stop between two steps, with checkpoints."""
        if self.alive:
            with suppress(OSError):
                self._pipe.send(reason)

    def end(self) -> None:
        """Stop it, whatever it does."""
        if self.alive:
            self._process.kill()
            self._close()
            for run_id in filter(self._has, self._owned):
                self._store.abandon(run_id)
                release_lease(self._store.folder(run_id), self._owner)

    def _advance(self, tally: Tally, run_id: str, step: int) -> None:
        kept, of_step = self._work[run_id]
        tally.run_steps += step - self._counted
        tally.share += max(0, step - max(kept, self._counted)) * of_step

    def _ended(self, tally: Tally, run_id: str, state: str) -> None:
        spec = self._owned.pop(run_id)
        tally.runs += 1
        self._advance(tally, run_id, spec.steps)
        tally.states[state] = tally.states.get(state, 0) + 1

    def _mark_dead(self, tally: Tally) -> None:
        self._close()
        self.dead = True
        status = Status("error", f"the worker process died: {exit_text(self._process.exitcode)}")
        for spec in list(self._owned.values()):
            if not self._has(spec.run_id):
                self._ended(tally, spec.run_id, self._store.status(spec.run_id).state)
                continue
            failed(spec, status).save(self._store)
            release_lease(self._store.folder(spec.run_id), self._owner)
            self._ended(tally, spec.run_id, status.state)
            tally.failures.append((spec.run_id, status.state, status.reason))

    @property
    def _owner(self) -> Owner:
        return Owner.here(self._process.pid)

    def _has(self, run_id: str) -> bool:
        """Whether a run is this worker's to end, and not another process's that it passed over."""
        mine = lease_holder(self._store.folder(run_id)) in {None, self._owner.name}
        return mine and not self._store.status(run_id).settled

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


def _reason_to_stop(received: Sequence[int]) -> str | None:
    """Why groups under way are not left to finish: SIGTERM, or SIGINT twice."""
    if signal.SIGTERM in received:
        return "stopped by SIGTERM"
    return "stopped by a second SIGINT" if len(received) > 1 else None


@contextmanager
def _interrupts(tally: Tally, report: Callable[[Tally], None]) -> Iterator[list[int]]:
    """Signals to stop only leave a note; yields those received so far. After the first, no new groups are begun."""
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        received.append(number)
        tally.interrupted = True
        if _reason_to_stop(received):
            tally.note = "interrupted: writing checkpoints; once more stops at once"
        else:
            tally.note = "interrupted: finishing what is under way; once more stops it at a checkpoint"
        report(tally)

    old = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
