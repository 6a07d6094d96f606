"""What one member of an array does on its compute node: train its groups one after another, as the local pool would.

    python -m slurm.member WORK.json

The file says what each member of the array trains (see `submit`); SLURM_ARRAY_TASK_ID says which one this is. How runs
ended stands in their own files. Slurm's signals only raise a flag, at which the runs under way are saved and left:

- SIGUSR2, shortly before the time limit: the member then asks Slurm to start it again, as often as the profile allows;
- SIGTERM, on preemption and `scancel`: whether it starts again is Slurm's affair.

A fault of the program ends the runs of its group as ``error``; the other groups go on. Where several tasks train one run
together, every task does all of this, and the first one alone writes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from suite.training.checkpoint import Interrupted, Interruption

if TYPE_CHECKING:
    from suite.runs.result import Status
    from suite.runs.spec import RunSpec
    from suite.runs.store import Store

FAULT: Final = 1
BEGUN: Final = "member of Slurm job"
"""How its log begins."""
TIME_LIMIT: Final = "its time limit is near"
TOLD_TO_STOP: Final = "Slurm stops the job (preemption, scancel, or shutdown)"
REASONS: Final = {signal.SIGUSR2: TIME_LIMIT, signal.SIGTERM: TOLD_TO_STOP}


@dataclass(frozen=True)
class Seat:
    """Which job this process is a task of. restarts: how often Slurm has started it again."""

    job_id: str
    index: int
    rank: int
    tasks: int
    restarts: int

    @property
    def owner(self) -> str:
        """The name under which this job holds runs: the same after it was started again."""
        return f"slurm {self.job_id}"

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Seat:
        """The seat that Slurm's variables in an environment name."""
        index = environment.get("SLURM_ARRAY_TASK_ID")
        return cls(
            job_id=environment.get("SLURM_JOB_ID", "unknown")
            if index is None
            else f"{environment['SLURM_ARRAY_JOB_ID']}_{index}",
            index=int(index or 0),
            rank=int(environment.get("SLURM_PROCID", "0")),
            tasks=int(environment.get("SLURM_NTASKS", "1")),
            restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
        )


@dataclass(frozen=True)
class Work:
    """What the members of an array read; the groups are those of this member, as `RunSpec.as_dict` made them."""

    sweep: str
    results_root: str
    timeout_min: int
    max_requeues: int
    checkpoint_s: float
    groups: Sequence[Sequence[Mapping[str, Any]]]

    @classmethod
    def read(cls, path: Path, index: int) -> Work:
        """The work of the member of that index."""
        noted = json.loads(path.read_text(encoding="utf-8"))
        groups = noted.pop("members")[index]
        noted.pop("schema_version")
        return cls(**noted, groups=groups)

    def again(self, state: str) -> str:
        """The command that tries runs of a state again."""
        return f"`bandwise retry {self.sweep} --status {state}`"


def main(arguments: Sequence[str]) -> int:
    """Train what the file says; returns the exit code. The flag is raised by signals from here on.

    The log is begun at once: should the disk be full later on, there is a block of it left to say so in.
    """
    seat, interruption = Seat.of(os.environ), Interruption()
    listen(interruption)
    work = Work.read(Path(arguments[0]), seat.index)
    sys.stderr.write(f"{BEGUN} {seat.job_id}, turn {seat.restarts + 1}: {len(work.groups)} groups of runs\n")
    from suite.runs.files import StoreError
    from suite.training.processes import PeersLostError

    try:
        return train(work, seat, interruption)
    except (StoreError, PeersLostError) as error:
        sys.stderr.write(f"{error}\n")
        return FAULT


def listen(interruption: Interruption) -> None:
    """Let Slurm's signals raise the flag."""

    def note(number: int, frame: FrameType | None) -> None:
        interruption.request(REASONS[signal.Signals(number)])

    for number in REASONS:
        signal.signal(number, note)


def train(work: Work, seat: Seat, interruption: Interruption) -> int:
    """Train all groups and keep every outcome.

    Args:
        work: What this member trains.
        seat: Which task of which job this process is.
        interruption: The flag that signals raise.

    Returns:
        0, or `FAULT` after a fault of the program.

    Raises:
        StoreError: Results cannot be kept; what a job leaves open is seen by whoever asks how it stands.
        PeersLostError: Another task of a run on real process groups is lost.
    """
    import torch  # after the signals are listened to: it takes seconds

    from suite.runs.spec import RunSpec
    from suite.runs.store import Store

    torch.set_num_threads(1)  # as in the local pool: the bits of a result may depend on it
    store = Store(work.results_root)
    groups = [[RunSpec.from_dict(dict(spec)) for spec in group] for group in work.groups]
    every = [spec for group in groups for spec in group]
    if seat.restarts > work.max_requeues:
        _end(every, _worn_out(work, seat, every, store), seat, store)
        return 0
    faults = 0
    try:
        for group in groups:
            faults += _train_group(group, work, seat, interruption, store)
    except Interrupted as interrupted:
        if interrupted.reason == TIME_LIMIT and seat.rank == 0:
            _at_time_limit(every, work, seat, store)
    return FAULT if faults else 0


def _train_group(
    group: Sequence[RunSpec], work: Work, seat: Seat, interruption: Interruption, store: Store
) -> int:
    """Train one group; returns 1 after a fault of the program. Among several tasks a fault is raised, which ends them all."""
    from suite.runs.files import StoreError
    from suite.runs.result import Status
    from suite.runs.store import Owner
    from suite.training.execute import execute
    from suite.training.processes import PeersLostError

    if seat.tasks == 1 and interruption.requested is not None:
        raise Interrupted(interruption.requested, [spec.run_id for spec in group])
    owner = Owner(seat.owner)
    try:
        for _ in execute(
            group,
            store,
            owner=owner,
            interruption=interruption,
            checkpoint_s=work.checkpoint_s,
            scheduled=True,
        ):
            pass
    except (Interrupted, StoreError, PeersLostError):
        raise
    except Exception as fault:
        traceback.print_exc()
        reason = f"the program failed in Slurm job {seat.job_id}: {type(fault).__name__}: {fault}"
        _end(group, Status("error", f"{reason}; again with {work.again('error')}"), seat, store)
        if seat.tasks > 1:
            raise
        return 1
    return 0


def _at_time_limit(every: Iterable[RunSpec], work: Work, seat: Seat, store: Store) -> None:
    """Go on in another turn of the same job, or note that the runs have no more turns."""
    from slurm.scheduler import SlurmError, requeue
    from suite.runs.result import Status

    reason = f"Slurm job {seat.job_id} reached its {work.timeout_min} min"
    if seat.restarts < work.max_requeues:
        try:
            requeue(seat.job_id)
        except SlurmError as error:
            reason = f"{reason} and cannot be requeued ({error})"
        else:
            return
    else:
        reason = f"{reason} for the last of {seat.restarts + 1} times: raise timeout_min or max_requeues"
    _end(every, Status("timeout", f"{reason}; it goes on with {work.again('timeout')}"), seat, store)


def _worn_out(work: Work, seat: Seat, every: Iterable[RunSpec], store: Store) -> Status:
    """The end of a job that was started more often than it may: it was preempted, or lost its nodes."""
    from suite.runs.result import Status

    saved = any(store.status(spec.run_id).state == "interrupted" for spec in every)
    state, what = ("preempted", "preempted") if saved else ("node_lost", "lost with its node")
    return Status(
        state,
        f"Slurm job {seat.job_id} was {what} {seat.restarts} times, and max_requeues is {work.max_requeues}; "
        f"it goes on with {work.again(state)}",
    )


def _end(specs: Iterable[RunSpec], status: Status, seat: Seat, store: Store) -> None:
    """Note this end of the runs that have none and that nobody else is at."""
    from suite.runs.store import failed

    for spec in specs if seat.rank == 0 else ():
        note = store.note(spec.run_id)
        elsewhere = note is not None and note.state == "running" and note.owner not in {"", seat.owner}
        if not elsewhere and store.result(spec.run_id) is None:
            failed(spec, status).save(store)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
