"""The life of a run in this process: owned, begun or gone on with, trained, kept alive, saved, ended, given back.

`bandwise run`, the local pool and cluster jobs all end in `execute`. Runs that others have settled or work on are passed
over; what an earlier attempt began is gone on with. An interruption stops all runs between two steps, with checkpoints.

    simulated            a group of runs from one batched gradient call (`train`)
    gloo                 a process a rank, started here (`processes`, `gloo`)
    torchrun, Slurm      this process is one rank, and trains run after run with the others

In a launch rank 0 decides which runs are trained, keeps what becomes of them, and tells the others, who only take part. Where
a rank was killed and a scheduler will say why, rank 0 waits for that and leaves the run as if it had been killed too.

One process at a time writes a run's files, and `RunOwnership` is where it does. Whoever finds that its lease was taken over
(it had been silent for too long) trains on to no effect: nothing of that run is written any more.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FrameType
from typing import Any, Final

from suite.runs.files import StoreError
from suite.runs.plan import GPU_GROUP_BYTES, GROUP_BYTES, groups
from suite.runs.spec import RunSpec, SpecError, source_of
from suite.runs.store import (
    EXPECTED_FAULTS,
    STALE_AFTER_S,
    Lease,
    NewerResultError,
    Outcome,
    Status,
    Store,
    failed,
    fault_status,
    lease_holder,
    owner_here,
    release_lease,
    take_lease,
)
from suite.training import checkpoint as files
from suite.training.checkpoint import (
    CHECKPOINT_S,
    Checkpoint,
    CheckpointError,
    Child,
    Hooks,
    Interrupted,
    Interruption,
    PipeStop,
    Start,
    begin_child,
    exit_text,
    handling,
)
from suite.training.processes import (
    FAULTS,
    HOLD_S,
    PeersLostError,
    Place,
    Rendezvous,
    RendezvousError,
    cause,
    join_launch,
    launch,
    place_in_launch,
    send_end,
)

MAX_ATTEMPTS: Final = 5
ALONE_AFTER: Final = 2
"""After so many attempts in vain a run is trained alone, so that it takes no other run down with it."""


def execute(
    specs: Sequence[RunSpec],
    store: Store,
    progress: Callable[[int], None] = lambda step: None,
    *,
    owner: str | None = None,
    interruption: Interruption | None = None,
    checkpoint_s: float = CHECKPOINT_S,
    max_attempts: int = MAX_ATTEMPTS,
    stale_after_s: float = STALE_AFTER_S,
    again: bool = False,
    scheduled: bool = False,
    device: str = "cpu",
) -> Iterator[Outcome]:
    """Train a group of runs (see `suite.runs.plan.groups`), save each outcome, then yield it. `progress`: completed steps.

    Runs on real processes start their ranks here; under torchrun or Slurm this process is one rank, whose own outcome is yielded,
    and only rank 0 saves. Results are defined on one thread: the
    caller has set `torch.set_num_threads(1)`.

    owner: who leases the runs, this process unless given. checkpoint_s: seconds between checkpoints. max_attempts: how
    often in a row a run may begin at the same step and die without a word before it ends as `error`. again: repeat what
    has settled. scheduled: a scheduler has started the ranks and will say why one of them was killed. device: torch's, where
    simulated runs are computed; those on real processes are on a processor.

    Raises `StoreError` when results cannot be kept, `Interrupted` once `interruption` has been heeded, `PeersLostError` where
    `scheduled` and a rank was killed: the run is left as its last sign of life has it.
    """
    hooks = Hooks(progress, interruption=interruption or Interruption(), checkpoint_s=checkpoint_s)
    place = place_in_launch(os.environ) if specs[0].backend == "gloo" else None
    with RunOwnership(store, owner or owner_here(), hooks, max_attempts, stale_after_s, again) as ownership:
        if place is not None:
            yield from _join(specs, ownership, place, scheduled)
            return
        waiting = list(dict.fromkeys(specs))
        while taken := ownership.take(waiting):  # once more at the end: others may have given some back
            waiting = [spec for spec in waiting if spec not in taken]
            starts = ownership.starts(taken)
            for part in ownership.parts(taken, starts):
                own = {spec.run_id: starts.pop(spec.run_id) for spec in part}
                yield from _carry_out(part, own, ownership, device)


def _carry_out(
    part: Sequence[RunSpec], starts: dict[str, Start], ownership: RunOwnership, device: str
) -> Iterator[Outcome]:
    """Begin leased runs that stand at the same step, train them together, and keep how they end."""
    specs = []
    for spec in part:
        begun = ownership.begin(spec, starts.pop(spec.run_id))
        if isinstance(begun, Start):
            starts[spec.run_id] = begun
            specs.append(spec)
        elif ownership.end(begun):
            yield begun
    try:
        for outcome in _outcomes(specs, starts, ownership, device):
            if ownership.end(outcome):
                yield outcome
    except Interrupted as interrupted:
        ownership.interrupt(interrupted.run_ids, interrupted.reason)
        raise


def _outcomes(
    specs: Sequence[RunSpec], starts: dict[str, Start], ownership: RunOwnership, device: str
) -> Iterator[Outcome]:
    """The outcomes as they come. What stops the whole group before its runs can end alone ends them all."""
    left = {spec.run_id: spec for spec in specs}
    try:
        if specs and specs[0].backend == "simulated":
            from suite.training.train import train_group

            hooks = ownership.hooks(specs[0])
            outcomes = train_group(specs, starts, hooks, keep=ownership.keep, device=device)
        else:
            outcomes = (
                launch(spec, starts[spec.run_id], ownership.folder(spec), ownership.hooks(spec))
                for spec in specs
            )
        for outcome in outcomes:
            del left[outcome.run_id]
            yield outcome
    except EXPECTED_FAULTS as error:
        yield from (failed(spec, fault_status(error)) for spec in left.values())


HOLD_POLL_S: Final = 0.5


def _join(
    specs: Sequence[RunSpec], ownership: RunOwnership, place: Place, scheduled: bool
) -> Iterator[Outcome]:
    """Train the runs with the other ranks of a launch; yields this rank's outcomes. scheduled: as in `execute`.

    Raises `SpecError`, `Interrupted`, and where a scheduler will say more, `PeersLostError`.
    """
    # before ranks meet: one that is lost while it imports would be waited for as long as a collective
    from suite.training.gloo import train_rank

    for spec in specs:
        if place.size != spec.world_size:
            raise SpecError(f"launched with {place.size} ranks, but the run has world_size {spec.world_size}")
    try:
        rendezvous = join_launch(place, os.environ)
    except RendezvousError as error:
        yield from _not_joined(specs, ownership, place, str(error))
        return
    joined = _Joined(ownership, place, rendezvous, scheduled, train_rank)
    try:
        for number, spec in enumerate(specs):
            yield from (joined.lead if place.rank == 0 else joined.follow)(f"run/{number}", spec)
    finally:
        rendezvous.leave()


@dataclass(frozen=True)
class _Joined:
    """A rank among those of its launch."""

    ownership: RunOwnership
    place: Place
    rendezvous: Rendezvous
    scheduled: bool
    train_rank: Callable[..., Outcome]

    def lead(self, key: str, spec: RunSpec) -> Iterator[Outcome]:
        """Rank 0's part in a run."""
        begun = None
        for taken in self.ownership.take([spec]):
            begun = self.ownership.begin(taken, self.ownership.starts([taken])[taken.run_id])
        if isinstance(begun, Start):
            self.rendezvous.send(key, {"go": True, "attempt": begun.attempt, "step": begun.step})
            try:
                begun = self._train(key, spec, begun, self.ownership.hooks(spec))
            except Interrupted as interrupted:
                self.ownership.interrupt(interrupted.run_ids, interrupted.reason)
                raise
            if begun.status.state in FAULTS:
                begun = self._explained(key, spec, begun)
        else:
            self.rendezvous.send(key, {"go": False})
        if begun is not None and self.ownership.end(begun):
            yield begun

    def follow(self, key: str, spec: RunSpec) -> Iterator[Outcome]:
        """The part of any other rank."""
        try:
            word = self.rendezvous.recv(key)
        except RendezvousError as error:
            yield failed(spec, Status("error", str(error)))
            return
        if word["go"]:
            yield self._train(key, spec, Start(word["attempt"], step=word["step"]), self.ownership.asked)

    def _explained(self, key: str, spec: RunSpec, own: Outcome) -> Outcome:
        """Rank 0's outcome, or that of the rank whose fault came first."""
        try:
            status = cause(self.rendezvous, key, self.place, own.status)
        except PeersLostError as lost:
            if not self.scheduled:
                return failed(spec, Status("error", str(lost)))
            sys.stderr.write(f"{lost}; waiting for the scheduler's word\n")
            deadline = time.monotonic() + HOLD_S
            while self.ownership.asked.interruption.requested is None and time.monotonic() < deadline:
                self.ownership.alive()
                time.sleep(HOLD_POLL_S)
            self.ownership.leave(spec.run_id)
            raise
        return own if status is own.status else failed(spec, status)

    def _train(self, key: str, spec: RunSpec, start: Start, hooks: Hooks) -> Outcome:
        import torch.distributed as dist

        store: Any = dist.PrefixStore(key, self.rendezvous.store)  # type: ignore[attr-defined]
        try:
            outcome = self.train_rank(spec, self.place.rank, store, start, self.ownership.folder(spec), hooks)
        except EXPECTED_FAULTS as error:
            outcome = failed(spec, fault_status(error))
        if self.place.rank > 0:
            send_end(self.rendezvous, key, self.place, outcome)
        return outcome


def _not_joined(
    specs: Sequence[RunSpec], ownership: RunOwnership, place: Place, reason: str
) -> Iterator[Outcome]:
    """The ranks have not found each other: rank 0 ends the runs as `error`."""
    for spec in specs if place.rank > 0 else ownership.take(specs):
        outcome = failed(spec, Status("error", reason))
        if place.rank == 0:
            ownership.begin(spec, Start())
        if place.rank > 0 or ownership.end(outcome):
            yield outcome


@dataclass
class RunOwnership(AbstractContextManager["RunOwnership"]):
    """A context manager; leaving it gives back what is still owned, as never begun where nothing else was noted.

    asked: what the caller wants to be told of runs. again: also take runs that have settled.
    """

    store: Store
    owner: str
    asked: Hooks
    max_attempts: int
    stale_after_s: float
    again: bool
    _leases: dict[str, Lease] = field(default_factory=dict, init=False)
    _notes: dict[str, str] = field(default_factory=dict, init=False)
    _under_way: set[str] = field(default_factory=set, init=False)

    def __exit__(self, *_: object) -> None:
        for run_id in list(self._leases):
            if run_id in self._under_way and self._leases[run_id].held():  # broken off, or the store is full
                self.store.abandon(run_id)
            self.leave(run_id)

    def folder(self, spec: RunSpec) -> Path:
        """Where a run's files lie."""
        return self.store.folder(spec.run_id)

    def take(self, specs: Iterable[RunSpec]) -> list[RunSpec]:
        """Those of the runs that nobody has settled and nobody else works on; they are leased now."""
        found = []
        for spec in specs:
            if self._settled(spec):
                continue
            lease = take_lease(self.store.folder(spec.run_id), self.owner, self.stale_after_s)
            if lease is None:
                continue
            if self._settled(spec):  # by whoever held the lease until just now
                lease.release()
                continue
            self._leases[spec.run_id] = lease
            found.append(spec)
        return found

    def starts(self, specs: Sequence[RunSpec]) -> dict[str, Start]:
        """Where each of the leased runs goes on from, its checkpoint read in. What is of no use is removed."""
        return {spec.run_id: self._start(spec) for spec in specs}

    def parts(self, specs: Sequence[RunSpec], starts: dict[str, Start]) -> list[list[RunSpec]]:
        """The runs cut by the step they go on from; those that took a process down before come last, alone.

        Runs on real processes always are alone.
        """
        by_step: dict[object, list[RunSpec]] = {}
        alone: list[tuple[int, RunSpec]] = []
        for spec in specs:
            note = self.store.note(spec.run_id)
            if note is not None and note.state == "running" and note.tries >= ALONE_AFTER:
                alone.append((note.tries, spec))
            else:
                step = starts[spec.run_id].step
                by_step.setdefault(step if spec.backend == "simulated" else spec, []).append(spec)
        suspects = [[spec] for _, spec in sorted(alone, key=lambda pair: pair[0])]
        return [*by_step.values(), *suspects]

    def begin(self, spec: RunSpec, start: Start) -> Start | Outcome:
        """Note that the run begins; the outcome instead when it has begun too often."""
        reason = self._notes.pop(spec.run_id, "")
        note = self.store.begin(spec, self.owner, start.step, reason)
        self._under_way.add(spec.run_id)
        files.clean(self.store.folder(spec.run_id), start.step)
        if note.tries > self.max_attempts:
            return failed(
                spec,
                Status(
                    "error",
                    f"crash loop: {note.tries - 1} attempts in a row died without a word after step {start.step}; look "
                    "at the job's log, then run it alone with `bandwise run`",
                ),
            )
        return Start(note.attempt, start.step, start.checkpoint)

    def alive(self) -> None:
        """Show that the owned runs are alive."""
        for run_id, lease in self._leases.items():
            if lease.heartbeat() and run_id in self._under_way:
                self.store.heartbeat(run_id)

    def hooks(self, spec: RunSpec) -> Hooks:
        """The caller's hooks, by which the owned runs are kept alive too and the run's checkpoints are noted."""

        def alive(step: int) -> None:
            self.alive()
            self.asked.progress(step)

        return replace(self.asked, progress=alive, saved=partial(self.saved, spec.run_id))

    def keep(self, checkpoint: Checkpoint) -> None:
        """Write a simulated run's checkpoint. Without space the run goes on without it, which is noted if it can be."""
        if not self._leases[checkpoint.run_id].held():
            return
        note = self.store.note(checkpoint.run_id)
        step, problem = checkpoint.step, ""
        try:
            files.write(files.whole_path(self.store.folder(checkpoint.run_id)), checkpoint)
        except StoreError as error:
            step, problem = note.step if note else 0, f"no new checkpoint: {error}"
        self.saved(checkpoint.run_id, step, problem)

    def saved(self, run_id: str, step: int, problem: str) -> None:
        """Note the step of the checkpoint that stands, and why a newer one could not be written."""
        if self._leases[run_id].held():
            with suppress(StoreError):  # no space for a note is no reason to stop
                self.store.saved(run_id, step, problem)

    def interrupt(self, run_ids: Iterable[str], reason: str) -> None:
        """Note that runs were stopped at a boundary: they go on from their checkpoints, or are missing without one."""
        for run_id in run_ids:
            note = self.store.note(run_id)
            if note is not None and note.step and self._leases[run_id].held():
                with suppress(
                    StoreError
                ):  # without space it counts as missing, and goes on from there all the same
                    self.store.interrupt(run_id, reason)
                    self._under_way.discard(run_id)

    def leave(self, run_id: str) -> None:
        """Give a run back as it is, after a kill too: whoever knows more says how it ended."""
        self._under_way.discard(run_id)
        self._leases.pop(run_id).release()

    def end(self, outcome: Outcome) -> bool:
        """Keep how a run ended and give it back; False when it is no longer ours to say. Raises `StoreError`."""
        held = self._leases[outcome.run_id].held()
        if held:
            outcome.save(self.store)
            if outcome.status.settled:
                files.remove(self.store.folder(outcome.run_id))
        self.leave(outcome.run_id)
        return held

    def _settled(self, spec: RunSpec) -> bool:
        """Whether the run is left as it is; what a newer version has written always is."""
        status = self.store.status(spec.run_id)
        if status.state == "invalid" and isinstance(self.store.refusal(spec.run_id), NewerResultError):
            return True
        return not self.again and status.settled

    def _start(self, spec: RunSpec) -> Start:
        folder = self.store.folder(spec.run_id)
        whole, index = files.whole_path(folder), folder / "checkpoint.json"
        if not (whole.exists() or index.exists()):
            return Start()
        try:
            source = source_of(spec)
            if spec.backend == "simulated":
                found = files.read(whole, spec, source)
                return Start() if found is None else Start(step=found.step, checkpoint=found)
            return Start(step=files.published(folder, spec, source) or 0)
        except CheckpointError as error:
            files.set_aside(folder)
            self._notes[spec.run_id] = f"begun anew, the checkpoint is of no use: {error}"
            return Start()


# ---- Workers of this machine: a pool of processes, one thread and one slot each, that take groups of runs. One interrupt lets
# the groups under way finish, a second one (or a SIGTERM) stops them between two steps, with checkpoints, a third one at once. A
# worker takes lists of run ids from a pipe, None at the end, and at any time the reason to stop; it tells ("step", steps of
# the group) and ("over",); where it takes no more, ("stopped",), or ("full", text) when results cannot be kept. How the runs of
# the group have ended says the store.


GPU_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"


class SlotError(ValueError):
    """The workers that were asked for cannot be had here; the message says what to change."""


Slot = str | None
"""The GPU that a worker and its children see, as CUDA names it; None: they compute on the processor."""


def slots(jobs: int | None = None, gpus: Sequence[str] = ()) -> tuple[Slot, ...]:
    """A slot for each worker.

    jobs: how many, by default one a GPU where some are named, else one a core. gpus: dealt to the workers in turn.

    Raises `SlotError` where there are more GPUs than workers.
    """
    wanted = jobs or len(gpus) or len(os.sched_getaffinity(0))
    if len(set(gpus)) != len(gpus):
        raise SlotError(f"GPUs {','.join(gpus)}: name each once; more workers (--jobs) share them in turn")
    if len(gpus) > wanted:
        raise SlotError(
            f"{wanted} workers for {len(gpus)} GPUs: a worker sees one, so leave --jobs out or name fewer GPUs"
        )
    return tuple(gpus[k % len(gpus)] if gpus else None for k in range(wanted))


OVER: Final = ("over",)


def serve(pipe: Connection, root: str, slot: Slot) -> None:
    """Work until the pipe closes or None arrives. Signals to stop are the pool's affair, not ours."""
    begin_child()
    if slot is not None:
        os.environ[GPU_VARIABLE] = slot  # before torch is imported: it looks for GPUs once
    import torch

    torch.set_num_threads(1)
    store, interruption = Store(root), PipeStop(pipe)
    try:
        while isinstance(run_ids := pipe.recv(), list):
            word = _train(run_ids, store, pipe, interruption, "cpu" if slot is None else "cuda")
            pipe.send(word)
            if word != OVER:
                return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        os._exit(1)  # nobody is left to tell


def _train(
    run_ids: list[str], store: Store, pipe: Connection, interruption: PipeStop, device: str
) -> tuple[str, ...]:
    """Train a group; returns the last word about it."""
    specs = [store.spec(run_id) for run_id in run_ids]
    try:
        for _ in execute(
            specs, store, lambda step: pipe.send(("step", step)), interruption=interruption, device=device
        ):
            pass
    except StoreError as error:
        return ("full", str(error))
    except Interrupted:
        return ("stopped",)
    return OVER


STOP_S: Final = 25.0
"""How long workers have for their checkpoints; less than Slurm leaves between its SIGTERM and its SIGKILL."""


@dataclass
class Tally:
    """How far a sweep has come. `share`: of the work, by what a run is expected to cost, without the steps that checkpoints
    have.
    """

    runs_total: int
    share: float = 0.0
    runs: int = 0
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
    cost: Callable[[RunSpec], float] = lambda spec: spec.steps,
) -> Tally:
    """Carry the runs out; `report` is called whenever something has moved. Returns the final tally.

    Runs that another process owns are passed over, and counted as how they stand. jobs: how many workers, or a slot for each; by
    default as `slots` has it. cost: of a run, in any unit, for the share of the work.

    Raises `StoreError` when results cannot be kept; what was finished is kept.
    """
    places = (slots(jobs) if jobs is None or isinstance(jobs, int) else tuple(jobs))[: max(1, len(specs))]
    gpus = set(places) - {None}
    waiting = deque(groups(specs, len(places), GPU_GROUP_BYTES if gpus else GROUP_BYTES, bool(gpus)))
    tally = Tally(len(specs))
    kept = {spec.run_id: _kept(store, spec) for spec in specs}
    of_step = {spec.run_id: cost(spec) / spec.steps for spec in specs}
    whole = sum(of_step[spec.run_id] * (spec.steps - kept[spec.run_id]) for spec in specs)
    work = {run_id: (kept[run_id], cost_of_step / whole) for run_id, cost_of_step in of_step.items()}
    deadline = math.inf
    with _interrupts(tally, report) as received:
        pool = [_Worker(store, place, work) for place in places[: len(waiting)]]
        try:
            while any(worker.alive for worker in pool):
                _assign(pool, waiting, tally)
                for worker in _ready(pool):
                    worker.receive(tally)
                    if worker.dead and waiting and not tally.interrupted:
                        pool[pool.index(worker)] = _Worker(store, worker.slot, work)
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

    def __init__(self, store: Store, slot: Slot, work: Mapping[str, tuple[int, float]]) -> None:
        self.slot = slot
        self._work = work
        self._child = Child(serve, str(store.root), slot)
        self.pipe = self._child.pipe
        self._store = store
        self._owned: dict[str, RunSpec] = {}
        self._counted = 0
        self._busy = False
        self.alive = True
        self.dead = False
        self.full: str | None = None

    @property
    def idle(self) -> bool:
        return self.alive and not self._busy

    def give(self, specs: Sequence[RunSpec]) -> None:
        """Hand it a group."""
        self._owned = {spec.run_id: spec for spec in specs}
        self._counted = 0
        self._busy = True
        for spec in specs:
            self._store.put_spec(spec)
        self._child.send(list(self._owned))

    def receive(self, tally: Tally) -> None:
        """Take one message; the end of the pipe means that the process has died."""
        if (message := self._child.receive()) is None:
            self._mark_dead(tally)
            return
        what, *content = message
        if what == "step":
            # a part of the group may stand further back than the one before
            step = max(content[0], self._counted)
            for run_id in self._owned:
                self._advance(tally, run_id, step)
            self._counted = step
            return
        self._busy = False
        if what == "over":
            self._count(tally)
            return
        self._count(tally, ended=True)
        tally.interrupted = True
        self.full = content[0] if content else None
        self._close()

    def dismiss(self) -> None:
        """Let it go when there is nothing left to do."""
        self._child.send(None)
        self._close()

    def ask_to_stop(self, reason: str) -> None:
        """Have it stop between two steps, with checkpoints."""
        if self.alive:
            self._child.send(reason)

    def end(self) -> None:
        """Stop it, whatever it does."""
        if self.alive:
            self._child.kill()
            self.alive = False
            for run_id in filter(self._has, self._owned):
                self._store.abandon(run_id)
                release_lease(self._store.folder(run_id), self._owner)

    def _advance(self, tally: Tally, run_id: str, step: int) -> None:
        kept, of_step = self._work[run_id]
        tally.share += max(0, step - max(kept, self._counted)) * of_step

    def _count(self, tally: Tally, ended: bool = False) -> None:
        """Count the runs of the group, or those of them that have ended, as they stand."""
        for run_id, spec in list(self._owned.items()):
            status = self._store.status(run_id)
            if ended and not status.terminal:
                continue
            del self._owned[run_id]
            tally.runs += 1
            self._advance(tally, run_id, spec.steps)
            tally.states[status.state] = tally.states.get(status.state, 0) + 1
            if status.terminal and status.state != "done":
                tally.failures.append((run_id, status.state, status.reason))

    def _mark_dead(self, tally: Tally) -> None:
        self.alive, self.dead = False, True
        status = Status("error", f"the worker process died: {exit_text(self._child.exitcode)}")
        for run_id, spec in self._owned.items():
            if self._has(run_id):
                failed(spec, status).save(self._store)
                release_lease(self._store.folder(run_id), self._owner)
        self._count(tally)

    @property
    def _owner(self) -> str:
        return owner_here(self._child.pid)

    def _has(self, run_id: str) -> bool:
        """Whether a run is this worker's to end, and not another process's that it passed over."""
        mine = lease_holder(self._store.folder(run_id)) in {None, self._owner}
        return mine and not self._store.status(run_id).settled

    def _close(self) -> None:
        self.alive = False
        self._child.close()


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

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        tally.interrupted = True
        if _reason_to_stop(received):
            tally.note = "interrupted: writing checkpoints; once more stops at once"
        else:
            tally.note = "interrupted: finishing what is under way; once more stops it at a checkpoint"
        report(tally)

    with handling(note, signal.SIGINT, signal.SIGTERM):
        yield received
