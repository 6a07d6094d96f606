"""Slot efficiency: of the seconds that jobs held their slots, how many went into training runs that were kept.

What is lost is Python's and torch's start, Slurm's own steps, idle ends, and work that was never kept. Runs say how
long they trained; Slurm says how long a job took, as long as its controller remembers it, afterwards where there is an
accounting. A job that was started again is left out: its earlier turns are in no list that every Slurm has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from slurm import scheduler
from slurm.records import ArrayJob, Record, records
from slurm.scheduler import Job
from suite.runs.store import Store


@dataclass(frozen=True)
class Efficiency:
    """training_s: of the runs that ended in these jobs. allocated_s: of the jobs; both times their tasks. jobs: how many
    have ended and are known. left_out: jobs that go on, are not known to Slurm any more, or were started again."""

    training_s: float
    allocated_s: float
    jobs: int
    left_out: int

    @property
    def share(self) -> float | None:
        """Training over allocated seconds; None where no job tells."""
        return self.training_s / self.allocated_s if self.allocated_s else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as `--json` prints it."""
        return {**asdict(self), "share": self.share}

    def __str__(self) -> str:
        left_out = f"; {self.left_out} jobs left out" if self.left_out else ""
        if self.share is None:
            return f"slot efficiency: not known, Slurm tells of no job that has ended{left_out}"
        return (
            f"slot efficiency {self.share:.1%}: {self.training_s:.0f} s of training in {self.allocated_s:.0f} s of "
            f"{self.jobs} jobs{left_out}"
        )


def slot_efficiency(sweep: str, store: Store) -> Efficiency | None:
    """The slot efficiency of all submissions of a sweep.

    Args:
        sweep: The sweep's name.
        store: Where the runs' files and the submissions' records lie.

    Returns:
        The efficiency, None where nothing was submitted.

    Raises:
        SlurmError: Slurm does not answer.
    """
    submissions = records(store.root, sweep)
    if not submissions:
        return None
    known = {job.id: job for job in scheduler.jobs()}
    names = {a.name for r in submissions for a in r.arrays if any(id_ not in known for id_ in _ids(a))}
    for job in scheduler.accounted(names, min(record.since for record in submissions)):
        known.setdefault(job.id, job)
    return of_jobs(submissions, known.values(), store)


def of_jobs(submissions: Sequence[Record], jobs: Iterable[Job], store: Store) -> Efficiency:
    """The efficiency of these submissions by what Slurm says of its jobs."""
    known = {job.id: job for job in jobs}
    training, allocated, left_out = [], [], 0
    for record in submissions:
        for array in record.arrays:
            for index, id_ in enumerate(_ids(array)):
                job = known.get(id_)
                trained = _trained_s(record, array.first + index, id_, store)
                if job is None or not job.ended or trained is None:
                    left_out += 1
                    continue
                training.append(array.tasks * trained)
                allocated.append(array.tasks * job.elapsed_s)
    return Efficiency(math.fsum(training), math.fsum(allocated), len(allocated), left_out)


def _ids(array: ArrayJob) -> list[str]:
    """Ids of the jobs of an array's members; none where it was never sent."""
    return [array.member_id(index) for index in range(array.members if array.job_id else 0)]


def _trained_s(record: Record, member: int, job_id: str, store: Store) -> float | None:
    """Seconds that a member trained; None where it was started more than once."""
    seconds = 0.0
    for run_id in record.runs(member):
        note, result = store.note(run_id), store.result(run_id)
        if note is None or note.owner != f"slurm {job_id}":
            continue
        if note.attempt - record.facts["before"].get(run_id, 0) > 1:
            return None
        seconds += result["train_s"] if result is not None and result["status"] == "done" else 0.0
    return seconds
