"""Submit a sweep: a group of runs becomes a member of a Slurm array, and the call returns at once.

A cluster limits how many members an array has, so a large sweep becomes several arrays. Slurm limits how many
members run at once array by array only; where that limit matters, each array waits for the one before it.
What was submitted is written down after every array, in ``sweeps/<sweep>/submission-<n>.json`` below the
results root::

    {"schema_version": 1, "sweep": ..., "number": n, "profile": {...}, "command": ..., "created": ...,
     "groups": [[run id, ...], ...], "jobs": [{"job_id": "17", "first": 0, "members": 1001}, ...]}

``first`` and ``members`` say which groups an array trains; scripts and logs lie in ``slurm-<n>`` beside the
record. How the runs went stands in their own files.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from submitit.core.utils import FailedJobError, FailedSubmissionError

from slurm.member import train
from slurm.profile import DEFAULT, Profile, load_profile
from slurm.scheduler import DEFAULT_MAX_ARRAY_SIZE, SlurmError, max_array_size, require_slurm, unfinished
from slurm.script import Executor, SubmissionError, executor
from suite.runs.plan import Plan, open_specs
from suite.runs.spec import RunSpec
from suite.runs.store import Store, dump, write_atomic
from suite.runs.train import groups

SUBMISSION_SCHEMA: Final = 1
GROUPS_A_SLOT: Final = 3
"""What `groups` cuts for a slot, so that none waits long for the last one."""
POLL_S: Final = 2.0
UNANSWERED_POLLS_MAX: Final = 5

Group = Sequence[RunSpec]
"""Runs that one member trains together."""


@dataclass(frozen=True)
class ArrayJob:
    """One array for the groups from ``first`` on, a group a member; job_id is "" while it is only planned."""

    first: int
    members: int
    job_id: str = ""


@dataclass(frozen=True)
class Submission:
    """What was submitted, or would be. record: path of its file, None where nothing was left to do.

    scripts: the batch script of each array.
    """

    sweep: str
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
            return f"{self.sweep}: nothing to do"
        if not self.job_ids:
            return "\n".join([*self.scripts, f"{work} would be submitted; arrays: {len(self.jobs)}"])
        return (
            f"{work} submitted as Slurm jobs {', '.join(self.job_ids)}, noted in {self.record}\n"
            f"follow them with `bandwise status {self.sweep}` and `squeue --me`"
        )


def submit_sweep(
    plan: Plan,
    profile: str | None,
    results_root: Path | str,
    *,
    dry_run: bool = False,
    command: str | None = None,
) -> Submission:
    """Submit all runs of a sweep that have not settled. profile: name or path, see `load_profile`.

    Nothing is sent where nothing is left to do. The rest is as for `submit_groups`.
    """
    asked = load_profile(profile or DEFAULT)
    missing = open_specs(plan.specs, Store(results_root))
    if not missing:
        return Submission(plan.sweep.name, None, 0, 0, (), ())
    return submit_groups(
        cut(missing, asked), asked, results_root, sweep=plan.sweep.name, dry_run=dry_run, command=command
    )


def cut(specs: Sequence[RunSpec], profile: Profile) -> list[list[RunSpec]]:
    """Runs cut into groups, about as many of each kind as the profile lets run at once."""
    return groups(specs, slots=max(1, profile.array_parallelism // GROUPS_A_SLOT))


def submit_groups(
    members: Sequence[Group],
    profile: Profile,
    results_root: Path | str,
    *,
    sweep: str,
    dry_run: bool = False,
    command: str | None = None,
) -> Submission:
    """Submit runs of the sweep of that name, one of the groups that `cut` makes to each member.

    results_root: a folder that the compute nodes see under the same path. dry_run: write and send nothing,
    return the scripts; needs no Slurm. command: what was typed, for the record; default this process's
    arguments.

    Raises `SlurmError` where Slurm is missing or refuses an array; arrays that were submitted before stay,
    and the record names them.
    """
    if not members or not all(members):
        raise SubmissionError("nothing to submit: give at least one group of runs, and no empty ones")
    if not dry_run:
        require_slurm()
    arrays = array_jobs(len(members), DEFAULT_MAX_ARRAY_SIZE if dry_run else max_array_size())
    chained = len(members) > profile.array_parallelism
    root = Path(results_root).resolve()
    number = _next_number(root / "sweeps" / sweep, claim=not dry_run)
    record = root / "sweeps" / sweep / f"submission-{number}.json"
    facts = {
        "schema_version": SUBMISSION_SCHEMA,
        "sweep": sweep,
        "number": number,
        "profile": asdict(profile),
        "command": shlex.join(sys.argv) if command is None else command,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "groups": [[spec.run_id for spec in group] for group in members],
    }
    jobs: list[ArrayJob] = []
    scripts = []
    for array in arrays:
        after = (jobs[-1].job_id or "ARRAY-BEFORE") if chained and jobs else None
        sender = executor(profile, record.with_name(f"slurm-{number}"), f"bandwise-{sweep}", after)
        scripts.append(sender.text(array.members))
        if dry_run:
            jobs.append(array)
            continue
        part = members[array.first : array.first + array.members]
        jobs.append(replace(array, job_id=_send(sender, part, profile, root)))
        write_atomic(record, dump({**facts, "jobs": [asdict(job) for job in jobs]}, indent=1) + "\n")
    return Submission(sweep, record, len(members), sum(map(len, members)), tuple(jobs), tuple(scripts))


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


def array_jobs(members: int, limit: int) -> list[ArrayJob]:
    """Cut the members into arrays of at most ``limit``; limit 0 (arrays are off): each stands alone."""
    size = max(1, limit)
    return [ArrayJob(first, min(size, members - first)) for first in range(0, members, size)]


def _send(sender: Executor, members: Sequence[Group], profile: Profile, root: Path) -> str:
    """Submit one array; returns its job id."""
    specs: list[list[dict[str, Any]]] = [[spec.as_dict() for spec in group] for group in members]
    n = len(specs)
    try:
        sent = sender.map_array(
            train, specs, [str(root)] * n, [profile.timeout_min] * n, [profile.warning_s] * n
        )
    except (FailedJobError, FailedSubmissionError) as error:
        raise SlurmError(
            f"sbatch refused the job; change profile {profile.name!r} to what the site allows: {error}"
        ) from error
    return str(sent[0].job_id).partition("_")[0]


def _next_number(folder: Path, claim: bool) -> int:
    """Number of the next submission of a sweep; claim: make its folder, so that no other can have it."""
    number = 1 + max((int(path.name.partition("-")[2]) for path in folder.glob("slurm-*")), default=0)
    while claim:
        try:
            (folder / f"slurm-{number}").mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            break
    return number
