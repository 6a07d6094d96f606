"""The runs that this process has in hand: leased, begun, kept alive, saved, and ended or given back in good order.

One process at a time writes a run's files, and this is where it does. Whoever finds that its lease was taken over
(it had been silent for too long) trains on to no effect: nothing of that run is written any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final

from suite.runs import checkpoint as files
from suite.runs.checkpoint import Checkpoint, CheckpointError, Start
from suite.runs.files import StoreError
from suite.runs.result import Status
from suite.runs.spec import RunSpec
from suite.runs.store import STALE_AFTER_S, Lease, NewerResultError, Owner, Store, take_lease
from suite.training.interruption import Hooks
from suite.training.record import Outcome, failed

MAX_ATTEMPTS: Final = 5
ALONE_AFTER: Final = 2
"""After so many attempts in vain a run is trained alone, so that it takes no other run down with it."""


class RunOwnership:
    """A context manager; leaving it gives back what is still in hand, as never begun where nothing else was noted.

    again: also take runs that have settled.
    """

    def __init__(
        self,
        store: Store,
        owner: Owner,
        *,
        max_attempts: int = MAX_ATTEMPTS,
        stale_after_s: float = STALE_AFTER_S,
        again: bool = False,
    ) -> None:
        self._store = store
        self._owner = owner
        self._max_attempts = max_attempts
        self._stale_after_s = stale_after_s
        self._again = again
        self._leases: dict[str, Lease] = {}
        self._notes: dict[str, str] = {}
        self._under_way: set[str] = set()

    def __enter__(self) -> RunOwnership:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run_id in list(self._leases):
            if run_id in self._under_way and self._leases[run_id].held():  # broken off, or the store is full
                self._store.abandon(run_id)
            self._give_back(run_id)

    def take(self, specs: Iterable[RunSpec]) -> list[RunSpec]:
        """Those of the runs that nobody has settled and nobody else works on; they are leased now."""
        found = []
        for spec in specs:
            if self._settled(spec):
                continue
            lease = take_lease(self._store.folder(spec.run_id), self._owner, self._stale_after_s)
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
            note = self._store.note(spec.run_id)
            if note is not None and note.state == "running" and note.tries >= ALONE_AFTER:
                alone.append((note.tries, spec))
            else:
                step = starts[spec.run_id].step
                by_step.setdefault(step if spec.backend == "simulated" else spec, []).append(spec)
        suspects = [[spec] for _, spec in sorted(alone, key=lambda pair: pair[0])]
        return [*by_step.values(), *suspects]

    def begin(self, spec: RunSpec, start: Start, together: int) -> Start | Outcome:
        """Note that the run begins, one of `together` runs; the outcome instead when it has begun too often."""
        reason = self._notes.pop(spec.run_id, "")
        note = self._store.begin(spec, self._owner.name, start.step, reason, together)
        self._under_way.add(spec.run_id)
        files.clean(self._store.folder(spec.run_id), start.step)
        if note.tries > self._max_attempts:
            return failed(
                spec,
                Status(
                    "error",
                    f"crash loop: {note.tries - 1} attempts in a row died without a word after step {start.step}; look "
                    "at the job's log, then run it alone with `bandwise run`",
                ),
            )
        return Start(note.attempt, note.lost_s, start.step, start.checkpoint)

    def alive(self) -> None:
        """Show that the runs in hand are alive."""
        for run_id, lease in self._leases.items():
            if lease.heartbeat() and run_id in self._under_way:
                self._store.heartbeat(run_id)

    def hooks(self, spec: RunSpec, asked: Hooks) -> Hooks:
        """The caller's hooks, by which the runs in hand are kept alive too and the run's checkpoints are noted."""

        def alive(step: int) -> None:
            self.alive()
            asked.progress(step)

        return replace(asked, progress=alive, saved=partial(self.saved, spec.run_id))

    def keep(self, checkpoint: Checkpoint) -> None:
        """Write a simulated run's checkpoint. Without space the run goes on without it, which is noted if it can be."""
        if not self._leases[checkpoint.run_id].held():
            return
        note = self._store.note(checkpoint.run_id)
        step, problem = checkpoint.step, ""
        try:
            files.write(files.whole_path(self._store.folder(checkpoint.run_id)), checkpoint)
        except StoreError as error:
            step, problem = note.step if note else 0, f"no new checkpoint: {error}"
        self.saved(checkpoint.run_id, step, problem)

    def saved(self, run_id: str, step: int, problem: str) -> None:
        """Note the step of the checkpoint that stands, and why a newer one could not be written."""
        if self._leases[run_id].held():
            with suppress(StoreError):  # no space for a note is no reason to stop
                self._store.saved(run_id, step, problem)

    def interrupt(self, run_ids: Iterable[str], reason: str) -> None:
        """Note that runs were stopped at a boundary: they go on from their checkpoints, or are missing without one."""
        for run_id in run_ids:
            note = self._store.note(run_id)
            if note is not None and note.step and self._leases[run_id].held():
                with suppress(
                    StoreError
                ):  # without space it counts as missing, and goes on from there all the same
                    self._store.interrupt(run_id, reason)
                    self._under_way.discard(run_id)

    def leave(self, run_id: str) -> None:
        """Give a run back as if this process had been killed: whoever knows why says how it ended."""
        self._give_back(run_id)

    def end(self, outcome: Outcome) -> bool:
        """Keep how a run ended and give it back; False when it is no longer ours to say. Raises `StoreError`."""
        held = self._leases[outcome.run_id].held()
        if held:
            outcome.save(self._store)
            if outcome.status.settled:
                files.remove(self._store.folder(outcome.run_id))
        self._give_back(outcome.run_id)
        return held

    def _give_back(self, run_id: str) -> None:
        self._under_way.discard(run_id)
        self._leases.pop(run_id).release()

    def _settled(self, spec: RunSpec) -> bool:
        """Whether the run is left as it is; what a newer version has written always is."""
        status = self._store.status(spec.run_id)
        if status.state == "invalid" and isinstance(self._store.refusal(spec.run_id), NewerResultError):
            return True
        return not self._again and status.settled

    def _start(self, spec: RunSpec) -> Start:
        from suite.runs.spec import sources

        folder = self._store.folder(spec.run_id)
        whole, index = files.whole_path(folder), folder / "checkpoint.json"
        if not (whole.exists() or index.exists()):
            return Start()
        try:
            source = sources(spec)["algorithm"]
            if spec.backend == "simulated":
                found = files.read(whole, spec, source)
                return Start() if found is None else Start(step=found.step, checkpoint=found)
            return Start(step=files.published(folder, spec, source) or 0)
        except CheckpointError as error:
            files.remove(folder)
            self._notes[spec.run_id] = f"begun anew, the checkpoint is of no use: {error}"
            return Start()
