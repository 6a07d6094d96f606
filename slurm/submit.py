"""Submit a sweep: runs become members of Slurm arrays, and the call returns at once.

A cluster limits how many members an array has, so a large sweep becomes several arrays. Slurm limits how many
members run at once array by array only; where that limit matters, each array waits for the one before it.
What is sent is noted before it is sent (see `records`), so a submission that is killed half-way is taken up by the next one:
what waits in a live job is left to that job, of whatever sweep, and the rest is submitted.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from slurm import scheduler
from slurm.jobs import Standing, settle, standing
from slurm.pack import Member, pack, tasks
from slurm.profile import Profile, check_options
from slurm.records import SCHEMA, ArrayJob, Record, next_number
from slurm.scheduler import DEFAULT_MAX_ARRAY_SIZE, SlurmError, max_array_size, require_slurm, unfinished
from slurm.script import SubmissionError, script
from slurm.snapshot import keep_environment, planned, take
from suite.links.process import Process
from suite.runs.grouping import Estimator
from suite.runs.spec import RunSpec
from suite.runs.status import CIRCUMSTANCE
from suite.runs.store import Store, dump, write_atomic

POLL_S: Final = 2.0
UNANSWERED_POLLS_MAX: Final = 5
WORK_SCHEMA: Final = 1


@dataclass(frozen=True)
class Submission:
    """What was submitted, or would be. record: path of its file, None where nothing was left to do.

    scripts: the batch script of each array.
    """

    sweep: str
    called: str
    record: Path | None
    members: int
    runs: int
    jobs: tuple[ArrayJob, ...]
    scripts: tuple[str, ...]

    @property
    def job_ids(self) -> tuple[str, ...]:
        """Slurm's job ids, one an array; empty for a dry run."""
        return tuple(job.job_id for job in self.jobs if job.job_id)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as `--json` prints it."""
        return {**asdict(self), "record": None if self.record is None else str(self.record)}

    def __str__(self) -> str:
        work = f"{self.sweep}: {self.runs} runs in {self.members} members"
        if not self.jobs:
            return f"{self.sweep}: nothing to submit"
        if not self.job_ids:
            return "\n".join([*self.scripts, f"{work} would be submitted; arrays: {len(self.jobs)}"])
        return (
            f"{work} submitted as Slurm jobs {', '.join(self.job_ids)}, noted in {self.record}\n"
            f"follow them with `bandwise watch {self.called}`, or look once with `bandwise status {self.called}`"
        )


def submit_runs(
    specs: Sequence[RunSpec],
    profile: Profile,
    results_root: Path | str,
    *,
    sweep: str,
    called: str | None = None,
    dry_run: bool = False,
    command: str | None = None,
    only: frozenset[str] = frozenset({"missing", "stale", "interrupted"}) | CIRCUMSTANCE,
) -> Submission:
    """Submit those of the runs that stand as `only` says and wait in no live job. Nothing is sent where none is left.

    Runs whose jobs have gone are settled on the way. The rest is as for `submit_members`.
    """
    store = Store(results_root)
    found = _standing(specs, store, sweep, dry_run)
    if not dry_run:
        settle(found, store)
    open_ = [spec for spec in specs if found.statuses[spec.run_id].state in only]
    if not open_:
        return Submission(sweep, called or sweep, None, 0, 0, (), ())
    members = pack(open_, profile, Estimator.of_store(set(specs).difference(open_), store))
    return submit_members(
        members, profile, results_root, sweep=sweep, called=called, dry_run=dry_run, command=command
    )


def submit_members(
    members: Sequence[Member],
    profile: Profile,
    results_root: Path | str,
    *,
    sweep: str,
    called: str | None = None,
    dry_run: bool = False,
    command: str | None = None,
) -> Submission:
    """Submit runs of the sweep of that name, cut into members as `pack` does.

    results_root: a folder that the compute nodes see under the same path. called: how commands name the sweep, where
    that is not its name. dry_run: write and send nothing,
    return the scripts; needs no Slurm. command: what was typed, for the record; default this process's
    arguments.

    Raises `SlurmError` where Slurm is missing or refuses an array; arrays that were submitted before stay,
    and the record names them.
    """
    if not members or not all(members) or not all(group for member in members for group in member):
        raise SubmissionError("nothing to submit: give at least one group of runs, and no empty ones")
    limit = DEFAULT_MAX_ARRAY_SIZE
    if not dry_run:
        require_slurm()
        limit = max_array_size()
        check_options(profile, scheduler.sbatch_options())
    root = Path(results_root).resolve()
    members = sorted(members, key=_tasks)
    arrays = cut_arrays([_tasks(member) for member in members], limit, sweep)
    folder = root / "sweeps" / sweep
    number = next_number(folder, claim=not dry_run)
    code = (planned if dry_run else take)(root)
    facts = {
        "schema_version": SCHEMA,
        "sweep": sweep,
        "called": called or sweep,
        "number": number,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "submitter": {"host": socket.gethostname(), **asdict(Process.of(os.getpid()))},
        "command": shlex.join(sys.argv) if command is None else command,
        "profile": profile.as_dict(),
        "code": code.as_dict(),
        "environment": None if dry_run else str(keep_environment(root)),
        "members": [[[spec.run_id for spec in group] for group in member] for member in members],
        "before": {} if dry_run else _before(members, Store(root)),
    }
    record = Record(folder / f"submission-{number}.json", facts, ())
    chained = len(members) > profile.array_parallelism
    scripts: list[str] = []
    for k, array in enumerate(arrays):
        after = (record.arrays[-1].job_id or "ARRAY-BEFORE") if chained and record.arrays else None
        work = record.logs / f"work-{k}.json"
        scripts.append(script(profile, array, work, after, code.path))
        if not dry_run:
            _write_work(
                work, members[array.first : array.first + array.members], profile, root, called or sweep
            )
            path = work.with_name(f"array-{k}.sh")
            write_atomic(path, scripts[-1])
            record = _send(record.noted(array), array, path, profile)
        else:
            record = record.noted(array)
    runs = sum(len(group) for member in members for group in member)
    return Submission(
        sweep,
        called or sweep,
        None if dry_run else record.path,
        len(members),
        runs,
        record.arrays,
        tuple(scripts),
    )


def wait(
    job_ids: Sequence[str], progress: Callable[[int], None] = lambda left: None, poll_s: float = POLL_S
) -> None:
    """Return once none of the jobs is in the queue any more, however they ended.

    progress is called with the number of jobs left after every look. Raises `SlurmError` when the scheduler
    has not answered several times in a row.
    """
    unanswered = 0
    while True:
        try:
            left = unfinished(job_ids)
        except SlurmError:
            unanswered += 1
            if unanswered == UNANSWERED_POLLS_MAX:
                raise
        else:
            unanswered = 0
            progress(len(left))
            if not left:
                return
        time.sleep(poll_s)


def cut_arrays(sizes: Sequence[int], limit: int, sweep: str = "sweep") -> list[ArrayJob]:
    """Arrays of at most ``limit`` members of equal tasks (`sizes`, in order); limit 0: arrays are off, each stands alone."""
    most, first, found = max(1, limit), 0, []
    plain = re.sub(r"[^A-Za-z0-9._/-]", "-", sweep)
    for count, same in groupby(sizes):
        end = first + len(list(same))
        for start in range(first, end, most):
            name = f"bandwise-{plain}-{secrets.token_hex(4)}"
            found.append(ArrayJob(start, min(most, end - start), count, name))
        first = end
    return found


def _standing(specs: Sequence[RunSpec], store: Store, sweep: str, dry_run: bool) -> Standing:
    """How the runs stand. Where something was submitted before, Slurm has to answer, or runs might be done twice."""
    found = standing(specs, store)
    if found.unanswered and not dry_run:
        raise SlurmError(f"cannot tell which runs of {sweep} wait in jobs: {found.unanswered}")
    return found


def _send(record: Record, array: ArrayJob, path: Path, profile: Profile) -> Record:
    """Note that an array is about to be sent, send it, note how that went."""
    record.save()
    try:
        sent = record.noted(replace(array, job_id=scheduler.submit(str(path))))
    except SlurmError as error:
        record.noted(replace(array, refused=str(error))).save()
        raise SlurmError(
            f"sbatch refused the job; change profile {profile.name!r} to what the site allows: {error}"
        ) from error
    sent.save()
    return sent


def _write_work(path: Path, members: Sequence[Member], profile: Profile, root: Path, called: str) -> None:
    """What the members of an array read."""
    work = {
        "schema_version": WORK_SCHEMA,
        "sweep": called,
        "results_root": str(root),
        "timeout_min": profile.timeout_min,
        "max_requeues": profile.max_requeues,
        "checkpoint_s": profile.checkpoint_s,
        "members": [[[spec.as_dict() for spec in group] for group in member] for member in members],
    }
    write_atomic(path, dump(work))


def _before(members: Sequence[Member], store: Store) -> dict[str, int]:
    """How often the runs that have failed were tried before."""
    specs = [spec for member in members for group in member for spec in group]
    notes = [(s.run_id, store.note(s.run_id)) for s in specs if store.result(s.run_id) is not None]
    return {run_id: note.attempt for run_id, note in notes if note is not None}


def _tasks(member: Member) -> int:
    counts = {tasks(spec) for group in member for spec in group}
    if len(counts) != 1:
        raise SubmissionError(f"a member needs one number of tasks, not {sorted(counts)}: cut it with pack()")
    return counts.pop()
