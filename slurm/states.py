"""How runs stand when their jobs are asked too: queued and why, running, or gone without a word, and then as what.

A run's own files say how it ended and whether it shows life. What they cannot say is that a run waits in a job, or that its
job was killed, lost its node, ran out of memory. One squeue tells of all jobs
at once, and the accounting, where there is one, of those that the controller has forgotten; where there is none, the log does.

`Record` says which job a run belongs to: one file a submission, written by the submitter after each array that Slurm took.
``sweeps/<sweep>/slurm-<n>/`` below the results root is submitit's folder (scripts, pickles, logs). ``jobs.json`` there::

    {"called": name or path of the sweep, "created_s": ..., "profile": {...}, "jobs": {"17_0": [run id, ...], ...}}

A submitter that is killed before it could write leaves runs that count as missing; submitting them once more does no harm,
since whichever job comes second finds them taken or done.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from slurm import scheduler
from slurm.scheduler import Job, SlurmError
from suite.runs.files import StoreError, dump, parsed, read, write_atomic
from suite.runs.plan import make_plan
from suite.runs.spec import RunSpec
from suite.runs.store import Status, Store, failed, lease_holder, release_lease
from suite.runs.sweep import load_sweep

WORDS: Final = (
    (re.compile(r"oom.?kill|out of memory|exceeded (job )?memory limit", re.IGNORECASE), "oom"),
    (re.compile(r"DUE TO TIME LIMIT"), "timeout"),
    (re.compile(r"DUE TO PREEMPTION"), "preempted"),
    (re.compile(r"DUE TO NODE FAILURE|[Nn]ode failure"), "node_lost"),
    (re.compile(r"no space left", re.IGNORECASE), "error"),
    (re.compile(r"error: \S+: tasks? [\d,-]+: "), "error"),
    (re.compile(r"CANCELLED AT"), "cancelled"),
)
"""What a log says of its job's end, most telling first."""
FATES: Final = {
    "BOOT_FAIL": "node_lost",
    "CANCELLED": "cancelled",
    "DEADLINE": "timeout",
    "NODE_FAIL": "node_lost",
    "OUT_OF_MEMORY": "oom",
    "PREEMPTED": "preempted",
    "REVOKED": "cancelled",
    "TIMEOUT": "timeout",
}
"""What a job's end means for the runs that it leaves open. A job that completed has left them to somebody else."""
LAST_BYTES: Final = 8192
FILE: Final = "jobs.json"
BEGUN: Final = "bandwise: Slurm job"
"""How a turn of a job begins in its log (`slurm.job`)."""
TIME_LIMIT: Final = "its time limit is near"
TOLD_TO_STOP: Final = "Slurm stops the job (preemption, scancel, or shutdown)"
REASONS: Final = {signal.SIGUSR2: TIME_LIMIT, signal.SIGTERM: TOLD_TO_STOP}
"""Why a job is told to stop, by the signal that says so."""


@dataclass(frozen=True)
class Record:
    """A submission. called: how commands name its sweep. jobs: run ids of each job that Slurm took."""

    folder: Path
    called: str
    created_s: float
    profile: Mapping[str, Any]
    jobs: Mapping[str, list[str]]

    def save(self) -> None:
        """Write it whole. Raises `StoreError`."""
        facts = {key: value for key, value in asdict(self).items() if key != "folder"}
        write_atomic(self.folder / FILE, dump(facts) + "\n")


def records(results_root: Path, sweep: str | None = None) -> list[Record]:
    """All submissions under a results root, oldest first.

    Args:
        results_root: The results root.
        sweep: Of this sweep alone; None: of all.

    Returns:
        The submissions.

    Raises:
        StoreError: A file is damaged.
    """
    paths = (results_root / "sweeps").glob(f"{sweep or '**'}/slurm-*/{FILE}")
    return sorted(map(_record, paths), key=lambda record: record.created_s)


def _record(path: Path) -> Record:
    facts = parsed(read(path) or "", path)
    try:
        return Record(folder=path.parent, **facts)
    except TypeError:
        raise StoreError(
            f"{path} is no record of a submission, which says called, created_s, profile and jobs: remove it, and runs that "
            "its jobs hold count as what their own folders say"
        ) from None


def new_folder(parent: Path, *, dry_run: bool = False) -> Path:
    """A folder ``slurm-<n>`` of its own below `parent`; in a dry run it is only named."""
    numbers = (re.fullmatch(r"slurm-(\d+)", path.name) for path in parent.glob("slurm-*"))
    number = 1 + max((int(found[1]) for found in numbers if found), default=0)
    while not dry_run:
        try:
            (parent / f"slurm-{number}").mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            break
    return parent / f"slurm-{number}"


@dataclass(frozen=True)
class RunStates:
    """How runs stand.

    gone: runs whose job was found here to have ended, with the name under which it held them; `settle` notes them. jobs: the
    live jobs that hold open runs. unanswered: why Slurm could not be asked, or "".
    """

    statuses: Mapping[str, Status]
    gone: Mapping[RunSpec, str] = field(default_factory=dict)
    jobs: tuple[Job, ...] = ()
    unanswered: str = ""

    @property
    def stuck(self) -> bool:
        """Whether there are live jobs, and all of them wait for what does not come by itself."""
        return bool(self.jobs) and all(job.stuck for job in self.jobs)


def run_states(specs: Sequence[RunSpec], store: Store) -> RunStates:
    """How these runs stand now; Slurm is asked once for all, and not at all where none of them was submitted.

    Args:
        specs: The runs.
        store: Where their own files lie.

    Returns:
        A status of every run, the runs whose jobs have gone, and the live jobs.
    """
    statuses = {spec.run_id: store.status(spec.run_id) for spec in specs}
    held: dict[str, list[tuple[Record, str]]] = {}
    for record in records(store.root):
        for job_id, run_ids in record.jobs.items():
            for run_id in run_ids:
                if run_id in statuses and not statuses[run_id].settled:
                    held.setdefault(run_id, []).append((record, job_id))
    if not held:
        return RunStates(statuses)
    try:
        known = _by_id({job_id for places in held.values() for _, job_id in places})
    except SlurmError as error:
        return RunStates(statuses, unanswered=str(error))
    gone, live = dict[RunSpec, str](), dict[str, Job]()
    for spec in specs:
        places = held.get(spec.run_id)
        if not places:
            continue
        jobs = [(record, job) for record, job_id in places if (job := known.get(job_id)) and not job.ended]
        if jobs:
            record, job = jobs[-1]
            live[job.id] = job
            statuses[spec.run_id] = _in_live_job(spec.run_id, statuses[spec.run_id], record, job, store)
            continue
        record, job_id = places[-1]
        end = _end(spec.run_id, record, job_id, known.get(job_id), store)
        statuses[spec.run_id] = end or store.status(spec.run_id)
        if end:
            gone[spec] = f"slurm {job_id}"
    return RunStates(statuses, gone, tuple(live.values()))


def _by_id(job_ids: set[str]) -> dict[str, Job]:
    """What Slurm knows of these jobs. Members that were cancelled before they began stand as their array. Raises `SlurmError`."""
    told = {job.id: job for job in scheduler.jobs()}
    if forgotten := {id_ for id_ in job_ids if id_ not in told and id_.partition("_")[0] not in told}:
        told = {job.id: job for job in scheduler.accounted(forgotten)} | told
    found = {id_: told.get(id_) or told.get(id_.partition("_")[0]) for id_ in job_ids}
    return {id_: job for id_, job in found.items() if job is not None}


def settle(states: RunStates, store: Store) -> None:
    """Note the end of the runs whose jobs have gone, unless they have ended by themselves meanwhile.

    A store that cannot be written is no reason to say nothing: it is left as it is.
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


def wait(specs: Sequence[RunSpec], store: Store, show: Callable[[RunStates], None]) -> RunStates:
    """Wait until no live job holds one of the runs, or the jobs that do will not start by themselves.

    Args:
        specs: The runs.
        store: Where their files lie.
        show: Called after every look.

    Returns:
        How the runs stand then; ends are noted.

    Raises:
        SlurmError: Slurm has not answered several times in a row.
    """
    found = RunStates({})

    def under_way() -> bool:
        nonlocal found
        found = run_states(specs, store)
        if found.unanswered:
            raise SlurmError(found.unanswered)
        settle(found, store)
        show(found)
        return bool(found.jobs) and not found.stuck

    scheduler.poll(under_way)
    return found


def note_ends(store: Store, sweep: str | None = None) -> str:
    """Note what became of runs whose jobs have gone, before tables are made of them; nothing where nothing was submitted.

    Args:
        store: Where the runs' files lie.
        sweep: A name or the path of a file; None: all that were submitted.

    Returns:
        Why Slurm could not be asked, of all that were submitted also of which sweeps since they cannot be planned here; or "".

    Raises:
        YamlError: The sweep of that name cannot be read.
    """
    submitted = {record.called for record in records(store.root)}
    if not submitted:
        return ""
    unplanned = []
    for called in sorted(submitted) if sweep is None else (sweep,):
        try:
            specs = make_plan(load_sweep(called)).specs
        except (ValueError, RuntimeError) as error:
            if sweep is not None:
                raise
            # its file has moved, its data or its plugin are not at hand
            unplanned.append(f"of {called}, {error}")
            continue
        states = run_states(specs, store)
        settle(states, store)
        if states.unanswered:
            return states.unanswered
    return "; ".join(unplanned)


def last_words(logs: Path, job_id: str) -> str:
    """The most telling line that the last turn of a job wrote on standard error, "" where there is none.

    Args:
        logs: submitit's folder.
        job_id: As Slurm's commands show it, ``17_3`` for a member of an array.
    """
    lines: list[str] = []
    for path in sorted(logs.glob(f"{job_id}_*_log.err"), reverse=True):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_BYTES))
            text = file.read().decode(errors="replace").rpartition(BEGUN)[2]
        lines += [line.strip() for line in text.splitlines() if line.strip()]
    telling = (line for pattern, _ in WORDS for line in lines if pattern.search(line))
    return next(telling, lines[-1] if lines else "")


def _in_live_job(run_id: str, noted: Status, record: Record, job: Job, store: Store) -> Status:
    """A run whose job waits or runs: an outcome of before its submission does not count any more."""
    note = store.note(run_id)
    if noted.terminal and note is not None and note.updated_s > record.created_s:
        return noted
    if job.waits:
        return Status("queued", f"Slurm job {job.id} waits: {job.reason}")
    if noted.state == "running":
        return noted
    if noted.state == "stale" and lease_holder(store.folder(run_id)) == f"slurm {job.id}":
        return Status("running", f"Slurm job {job.id} lives; {noted.reason.partition(';')[0]}")
    return Status("queued", f"its turn comes in Slurm job {job.id}, which is {job.state.lower()}")


def _end(run_id: str, record: Record, job_id: str, job: Job | None, store: Store) -> Status | None:
    """How a run ended whose job has gone; None where its own files say it, or it is not the job's affair."""
    noted = store.status(run_id)  # once more: it may have ended while Slurm was asked
    if noted.terminal or (job is not None and job.state == "COMPLETED"):
        return None
    ours, note = {"", f"slurm {job_id}"}, store.note(run_id)
    if noted.state == "running" and (lease_holder(store.folder(run_id)) or "") not in ours:
        return None
    if note is not None and note.owner not in ours and note.updated_s > record.created_s:
        return None  # taken by somebody else since
    words = last_words(record.folder, job_id)
    from_log = next((state for pattern, state in WORDS if pattern.search(words)), "error")
    state = from_log if job is None else FATES.get(job.state, "oom" if from_log == "oom" else "error")
    how = "has gone and Slurm no longer says how" if job is None else f"ended as {job.state}"
    ending = f": {words}" if words else ""
    again = f"`bandwise sweep {record.called} --retry {state}`"
    return Status(state, f"Slurm job {job_id} {how}{ending}; again with {again}")
