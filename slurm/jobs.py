"""How runs stand when their jobs are asked too: queued and why, running, or gone without a word, and then as what.

A run's own files say how it ended and whether it shows life. What they cannot say is that a run waits in a job, or that its
job was killed, lost its node, ran out of memory. Here the submissions' records say which job a run belongs
to, one squeue tells of all jobs at once, and the accounting, where there is one, of those that the controller has forgotten;
where there is none, the job's log does. With no record of an open run nothing is asked.

Of a log count its last telling lines, and the state that they mean: srun and its helpers say first which task ended and
how, and then at length that they end the others; only the first is worth telling.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from slurm import scheduler
from slurm.records import ArrayJob, Record, records
from slurm.scheduler import Job, SlurmError
from suite.runs.files import StoreError
from suite.runs.plan import make_plan
from suite.runs.result import Status
from suite.runs.spec import RunSpec
from suite.runs.store import Owner, Store, failed, lease_holder, release_lease
from suite.runs.sweep import load_sweep

# Logs


WORDS: Final = (
    (re.compile(r"oom.?kill|out of memory|exceeded (job )?memory limit", re.IGNORECASE), "oom"),
    (re.compile(r"DUE TO TIME LIMIT"), "timeout"),
    (re.compile(r"DUE TO PREEMPTION"), "preempted"),
    (re.compile(r"DUE TO NODE FAILURE|[Nn]ode failure"), "node_lost"),
    (re.compile(r"error: \S+: tasks? [\d,-]+: "), "error"),
    (re.compile(r"CANCELLED AT"), "cancelled"),
)
"""What a log says of its job's end, most telling first."""
LAST_BYTES: Final = 8192
LAST_LINES: Final = 3
_TASK: Final = WORDS[-2][0]
_STOPPED: Final = re.compile(r"\*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ \*\*\*$")
"""What srun does to the tasks that are left, whatever the cause."""
_NOISE: Final = re.compile(
    r"^member of Slurm job |^\[W\d{4} |^srun: (launch/slurm|Force Terminated|Job step aborted|cluster configuration lacks)"
)


def log_tail(logs: Path, job_id: str) -> str:
    """The last telling lines that any task of a job wrote on standard error.

    Args:
        logs: The folder of the submission's logs.
        job_id: As Slurm's commands show it, ``17_3`` for a member of an array.

    Returns:
        At most `LAST_LINES` lines in one, separated by semicolons; "" where there are none.
    """
    lines: list[str] = []
    for path in sorted(logs.glob(f"{job_id}_*_log.err"), reverse=True):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_BYTES))
            lines += file.read().decode(errors="replace").splitlines()
    return "; ".join(_telling([line.strip() for line in lines])[-LAST_LINES:])


def state_from_log(words: str) -> str:
    """The state of a run whose job has gone with these last words."""
    return next((state for pattern, state in WORDS if pattern.search(words)), "error")


def _telling(lines: list[str]) -> list[str]:
    """Those that say something new: what follows the end of one task is that of the others."""
    telling: list[str] = []
    for line in lines:
        another = _TASK.search(line) and telling and _TASK.search(telling[-1])
        if line and line not in telling and not another and not _NOISE.search(line):
            if _STOPPED.search(line) and any(
                pattern.search(each) for pattern, _ in WORDS[:-1] for each in telling
            ):
                continue
            telling.append(line)
    return telling


# Runs and their jobs


FATES: Final = {
    "BOOT_FAIL": "node_lost",
    "CANCELLED": "cancelled",
    "DEADLINE": "timeout",
    "FAILED": "error",
    "NODE_FAIL": "node_lost",
    "OUT_OF_MEMORY": "oom",
    "PREEMPTED": "preempted",
    "REVOKED": "cancelled",
    "TIMEOUT": "timeout",
}
"""What a job's end means for the runs it has left open. A job that completed has left them to somebody else."""


@dataclass(frozen=True)
class RunStates:
    """How runs stand.

    gone: runs that were found here to have ended with their job, which held them; `settle` notes them. jobs: the live
    jobs that hold open runs. unanswered: why Slurm could not be asked, or "".
    """

    statuses: Mapping[str, Status]
    gone: Mapping[RunSpec, Owner] = field(default_factory=dict)
    jobs: tuple[Job, ...] = ()
    unanswered: str = ""

    @property
    def stuck(self) -> bool:
        """Whether there are live jobs, and all of them wait for what does not come by itself."""
        return bool(self.jobs) and all(job.stuck for job in self.jobs)


@dataclass(frozen=True)
class _Membership:
    """The place of a run in a submission: which member of which array."""

    record: Record
    array: ArrayJob
    index: int


def run_states(specs: Sequence[RunSpec], store: Store) -> RunStates:
    """How these runs stand now: one call of squeue for all of them, and of sacct where jobs are unknown to it.

    Args:
        specs: The runs.
        store: Where their own files lie.

    Returns:
        A status of every run, the runs whose jobs have gone, and the live jobs; `RunStates.unanswered` says why Slurm
        could not be asked.
    """
    noted = {spec.run_id: store.status(spec.run_id) for spec in specs}
    seats = _memberships(
        {run_id for run_id, status in noted.items() if not status.settled}, records(store.root)
    )
    if not seats:
        return RunStates(noted)
    try:
        asked = _Slurm(seats)
    except SlurmError as error:
        return RunStates(noted, unanswered=str(error))
    statuses, gone = dict(noted), {}
    for spec in specs:
        places = seats.get(spec.run_id)
        if not places:
            continue
        live = asked.live(places)
        if live is not None:
            statuses[spec.run_id] = _in_live_job(
                spec.run_id, noted[spec.run_id], live, asked.job(live), store
            )
            continue
        end = _end(spec.run_id, places[-1], asked, store)
        statuses[spec.run_id] = end or store.status(spec.run_id)
        if end:
            gone[spec] = asked.owner(places[-1])
    return RunStates(statuses, gone, tuple(asked.holding.values()))


def settle(states: RunStates, store: Store) -> None:
    """Note the end of the runs whose jobs have gone, unless they have ended by themselves meanwhile.

    A store that cannot be written is no reason to say nothing: it is left as it is.

    Args:
        states: What `run_states` answered.
        store: Where the runs' files lie.
    """
    for spec, owner in states.gone.items():
        release_lease(
            store.folder(spec.run_id), owner
        )  # else nobody could take the run until the lease is stale
        if store.result(spec.run_id) is None:
            try:
                failed(spec, states.statuses[spec.run_id]).save(store)
            except StoreError:
                return


def note_ends(store: Store, sweep: str | None = None) -> str:
    """Note what became of runs whose jobs have gone, before tables are made of them.

    Nothing is asked where nothing was submitted.

    Args:
        store: Where the runs' files lie.
        sweep: A name or the path of a file; None: all that were submitted.

    Returns:
        Why Slurm could not be asked, or "".

    Raises:
        YamlError: A sweep cannot be read.
    """
    submitted = {record.called for record in records(store.root)}
    if not submitted:
        return ""
    for called in sorted(submitted) if sweep is None else (sweep,):
        states = run_states(make_plan(load_sweep(called)).specs, store)
        settle(states, store)
        if states.unanswered:
            return states.unanswered
    return ""


class _Slurm:
    """What Slurm says of all jobs that open runs belong to. Raises `SlurmError` where it does not answer."""

    def __init__(self, seats: Mapping[str, Sequence[_Membership]]) -> None:
        self.holding: dict[str, Job] = {}
        self._by_id: dict[str, Job] = {}
        self._by_name: dict[str, str] = {}
        self._words: dict[str, str] = {}
        self._take(scheduler.jobs())
        unknown = [seat for places in seats.values() for seat in places if self.job(seat) is None]
        if unknown:
            since = min(seat.record.since for seat in unknown)
            self._take(scheduler.accounted({seat.array.name for seat in unknown}, since))
        self._sending = {path: record.sending() for path, record in _records(unknown).items()}

    def job(self, seat: _Membership) -> Job | None:
        """The job of a member, or None where Slurm knows none."""
        number = self.number(seat)
        return self._by_id.get(seat.array.member_id(seat.index, number)) if number else None

    def number(self, seat: _Membership) -> str:
        """Id of the array: as its submitter noted it, else as Slurm has it under its name, else ""."""
        return seat.array.job_id or self._by_name.get(seat.array.name, "")

    def live(self, places: Sequence[_Membership]) -> _Membership | None:
        """The seat whose job waits, runs, or is about to be sent."""
        for seat in reversed(places):
            job = self.job(seat)
            if job is not None and not job.ended:
                self.holding[job.id] = job
                return seat
            if not self.number(seat) and not seat.array.refused and self._sending[seat.record.path]:
                return seat
        return None

    def owner(self, seat: _Membership) -> Owner:
        """The name under which the member's job holds runs."""
        return Owner(f"slurm {seat.array.member_id(seat.index, self.number(seat))}")

    def last_words(self, seat: _Membership) -> str:
        """The end of the log of a member, "" where there is none."""
        id_ = seat.array.member_id(seat.index, self.number(seat))
        if id_ not in self._words:
            self._words[id_] = log_tail(seat.record.logs, id_)
        return self._words[id_]

    def _take(self, jobs: Iterable[Job]) -> None:
        self._by_id = {**{job.id: job for job in jobs}, **self._by_id}  # what was asked first is newer
        self._by_name = {job.name: job.id.partition("_")[0] for job in self._by_id.values()}


def _records(seats: Iterable[_Membership]) -> dict[Path, Record]:
    return {seat.record.path: seat.record for seat in seats}


def _memberships(run_ids: set[str], submissions: Sequence[Record]) -> dict[str, list[_Membership]]:
    """The places of these runs in all submissions, oldest first."""
    memberships: dict[str, list[_Membership]] = {}
    for record in submissions if run_ids else ():
        for array in record.arrays:
            for index in range(array.members):
                for run_id in run_ids.intersection(record.runs(array.first + index)):
                    memberships.setdefault(run_id, []).append(_Membership(record, array, index))
    return memberships


def _in_live_job(run_id: str, noted: Status, seat: _Membership, job: Job | None, store: Store) -> Status:
    """A run whose job waits or runs: an outcome of before does not count any more."""
    note = store.note(run_id)
    if noted.terminal and (note is None or note.attempt != seat.record.facts["before"].get(run_id)):
        return noted
    if job is None:
        return Status("queued", "its submission is on the way")
    if job.waits:
        return Status("queued", f"Slurm job {job.id} waits: {job.reason}")
    if noted.state in {"running", "stale"}:
        return noted
    return Status("queued", f"its turn comes in Slurm job {job.id}, which is {job.state.lower()}")


def _end(run_id: str, seat: _Membership, asked: _Slurm, store: Store) -> Status | None:
    """How a run ended whose job has gone; None where its own files say it, or it is not the job's affair."""
    job, number = asked.job(seat), asked.number(seat)
    noted = store.status(run_id)  # once more: it may have ended while Slurm was asked
    if noted.terminal or not number or (job is not None and job.state == "COMPLETED"):
        return None
    id_ = seat.array.member_id(seat.index, number)
    if noted.state == "running" and lease_holder(store.folder(run_id)) not in {None, asked.owner(seat).name}:
        return None
    words = asked.last_words(seat)
    from_log = state_from_log(words)
    state = from_log if job is None else FATES.get(job.state, "error")
    if state == "error":
        state = from_log if from_log == "oom" else state
    how = "has gone and Slurm no longer says how" if job is None else f"ended as {job.state}"
    ending = f": {words}" if words else ""
    again = f"`bandwise retry {seat.record.called} --status {state}`"
    return Status(state, f"Slurm job {id_} {how}{ending}; again with {again}")


# Slot efficiency: of the seconds that jobs held their slots, how many went into training runs that were kept. What is lost is
# Python's and torch's start, Slurm's own steps, idle ends, and work that was never kept. Runs say how long they trained; Slurm
# says how long a job took, as long as its controller remembers it, afterwards where there is an accounting. A job that was
# started again is left out: its earlier turns are in no list that every Slurm has.


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
