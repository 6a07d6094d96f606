"""This process is one rank of a launch made by torchrun or srun, and trains run after run with the others.

Rank 0 decides which runs are trained, keeps what becomes of them, and tells the others, who only take part. Where a rank
was killed and a scheduler will say why, rank 0 waits for that and leaves the run as if it had been killed too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from suite.runs.checkpoint import Start
from suite.runs.spec import RunSpec
from suite.runs.status import Status
from suite.runs.store import Store
from suite.training.custody import Custody
from suite.training.interruption import Interrupted
from suite.training.meeting import Meeting, MeetingError, Place, check_size, meet
from suite.training.peers import FAULTS, HOLD_S, PeersLostError, cause, tell
from suite.training.rank import Hooks, as_rank
from suite.training.record import EXPECTED_FAULTS, Outcome, failed, fault_status

HOLD_POLL_S: Final = 0.5


def join(
    specs: Sequence[RunSpec], store: Store, custody: Custody, hooks: Hooks, place: Place, *, scheduled: bool
) -> Iterator[Outcome]:
    """Train the runs with the other ranks; yields this rank's outcomes. scheduled: as in `execute`.

    Raises `SpecError`, `Interrupted`, and where a scheduler will say more, `PeersLostError`.
    """
    for spec in specs:
        check_size(spec, place)
    try:
        meeting = meet(place, store.folder(specs[0].run_id), os.environ)
    except MeetingError as error:
        yield from _not_met(specs, custody, place, str(error))
        return
    joined = _Joined(store, custody, hooks, place, meeting, scheduled)
    try:
        for number, spec in enumerate(specs):
            yield from (joined.lead if place.rank == 0 else joined.follow)(f"run/{number}", spec)
    finally:
        meeting.part()


@dataclass(frozen=True)
class _Joined:
    store: Store
    custody: Custody
    hooks: Hooks
    place: Place
    meeting: Meeting
    scheduled: bool

    def lead(self, key: str, spec: RunSpec) -> Iterator[Outcome]:
        """Rank 0's part in a run."""
        begun = None
        for taken in self.custody.take([spec]):
            begun = self.custody.begin(taken, self.custody.starts([taken])[taken.run_id], 1)
        if isinstance(begun, Start):
            self.meeting.tell(key, {"go": True, "attempt": begun.attempt, "step": begun.step})
            try:
                begun = self._train(key, spec, begun, self.custody.hooks(spec, self.hooks))
            except Interrupted as interrupted:
                self.custody.interrupt(interrupted.run_ids, interrupted.reason)
                raise
            if begun.status.state in FAULTS:
                begun = self._explained(key, spec, begun)
        else:
            self.meeting.tell(key, {"go": False})
        if begun is not None and self.custody.end(begun):
            yield begun

    def follow(self, key: str, spec: RunSpec) -> Iterator[Outcome]:
        """The part of any other rank."""
        try:
            word = self.meeting.hear(key)
        except MeetingError as error:
            yield failed(spec, Status("error", str(error)))
            return
        if word["go"]:
            yield self._train(key, spec, Start(word["attempt"], step=word["step"]), self.hooks)

    def _explained(self, key: str, spec: RunSpec, own: Outcome) -> Outcome:
        """Rank 0's outcome, or that of the rank whose fault came first."""
        try:
            status = cause(self.meeting, key, self.place, own.status)
        except PeersLostError as lost:
            if not self.scheduled:
                return failed(spec, Status("error", str(lost)))
            sys.stderr.write(f"{lost}; waiting for the scheduler's word\n")
            deadline = time.monotonic() + HOLD_S
            while self.hooks.interruption.requested is None and time.monotonic() < deadline:
                self.custody.alive()
                time.sleep(HOLD_POLL_S)
            self.custody.leave(spec.run_id)
            raise
        return own if status is own.status else failed(spec, status)

    def _train(self, key: str, spec: RunSpec, start: Start, hooks: Hooks) -> Outcome:
        import torch.distributed as dist

        store: Any = dist.PrefixStore(key, self.meeting.store)  # type: ignore[attr-defined]
        folder = self.store.folder(spec.run_id)
        try:
            outcome = as_rank(spec, self.place.rank, store, start, folder, hooks)
        except EXPECTED_FAULTS as error:
            outcome = failed(spec, fault_status(error))
        if self.place.rank > 0:
            tell(self.meeting, key, self.place, outcome)
        return outcome


def _not_met(specs: Sequence[RunSpec], custody: Custody, place: Place, reason: str) -> Iterator[Outcome]:
    """The ranks have not come together: rank 0 ends the runs as `error`."""
    for spec in specs if place.rank > 0 else custody.take(specs):
        outcome = failed(spec, Status("error", reason))
        if place.rank > 0:
            yield outcome
            continue
        custody.begin(spec, Start(), 1)
        if custody.end(outcome):
            yield outcome
