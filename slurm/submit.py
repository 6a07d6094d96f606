"""Submit a sweep: runs become members of Slurm arrays, and the call returns at once.

**Members.** A member is what one job trains, group after group, in one warm process. Starting Python, torch and the first
compiled function takes seconds, so a member holds enough work for that to be a small share; it is never longer than half of
its time limit; and within both, there are a few members for each that may run at once, so that none waits long for the last
one. Members of simulated runs are one task, those of runs on real process groups a task a rank, and the two never mix.

**Arrays.** A cluster limits how many members an array has, so a large sweep becomes several arrays. Slurm limits how many
members run at once array by array only; where that limit matters, each array waits for the one before it.

**Scripts.** submitit knows sbatch's parameters, checks their names and writes the scripts, the same text for `--dry-run` and
for sbatch. Its pickles are not used: it writes them under a job's id after sbatch has answered, so that a submitter killed in
between leaves jobs without work. Members read a file that is there before their job is, and run `slurm.member` of the snapshot.

What is sent is noted before it is sent (see `slurm.records`), so a submission that is killed half-way is taken up by the next
one: what waits in a live job is left to that job, of whatever sweep, and the rest is submitted.
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

from submitit import SlurmExecutor

from reference_impls.registry import PLUGINS
from slurm import scheduler
from slurm.jobs import RunStates, run_states, settle
from slurm.profile import Profile, check_options
from slurm.records import SCHEMA, ArrayJob, Record, next_number
from slurm.scheduler import DEFAULT_MAX_ARRAY_SIZE, SlurmError, max_array_size, require_slurm, unfinished
from slurm.snapshot import beside, keep_environment, planned, plugins, take
from suite import DATA
from suite.links.process import Process
from suite.runs.files import dump, write_atomic
from suite.runs.plan import Estimator, groups
from suite.runs.provenance import THREAD_VARIABLES
from suite.runs.result import CIRCUMSTANCE
from suite.runs.spec import RunSpec
from suite.runs.store import Store

# Runs into members


MEMBERS_A_SLOT: Final = 3

Group = Sequence[RunSpec]
"""Runs that are trained together."""
Member = Sequence[Group]
"""Groups that one job trains one after another."""


def tasks(spec: RunSpec) -> int:
    """How many processes a run needs: one, or a rank each where it is not simulated."""
    return 1 if spec.backend == "simulated" else spec.world_size


def pack(specs: Sequence[RunSpec], profile: Profile, estimator: Estimator | None = None) -> list[list[Group]]:
    """Members for all these runs, those of equal resources beside each other, runs in their order.

    Args:
        specs: The runs.
        profile: How much work a member should hold, and how long it may take.
        estimator: Seconds of a run; default: what is known without any measurement.

    Returns:
        Members: lists of groups of runs.

    Raises:
        ProfileError: The profile cannot place a run.
    """
    known = estimator or Estimator()
    by_tasks: dict[int, list[RunSpec]] = {}
    for spec in specs:
        by_tasks.setdefault(tasks(spec), []).append(spec)
    members: list[list[Group]] = []
    for count, part in sorted(by_tasks.items()):
        profile.shape(count)
        members.extend(_pack(part, profile, known))
    return members


def _pack(specs: Sequence[RunSpec], profile: Profile, known: Estimator) -> list[list[Group]]:
    most = MEMBERS_A_SLOT * profile.array_parallelism
    if profile.pack_s == 0:
        return [[group] for group in groups(specs, slots=max(1, profile.array_parallelism // MEMBERS_A_SLOT))]
    total = sum(map(known.seconds, specs))
    wanted = max(1, min(most, int(total / profile.pack_s)), -int(-total // profile.work_max_s))
    # `groups` cuts each kind of run into three a slot and more, so that there is something to spread.
    cut = groups(specs, slots=-(-wanted // MEMBERS_A_SLOT))
    wanted = min(wanted, len(cut))
    return _spread(cut, [sum(map(known.seconds, group)) for group in cut], wanted, profile.work_max_s)


def _spread(cut: Sequence[Group], costs: Sequence[float], members: int, most_s: float) -> list[list[Group]]:
    """Neighbouring groups together, in members of about equal seconds, at least so many, none above `most_s`
    unless a single group is."""
    aim = sum(costs) / members
    packed: list[list[Group]] = [[]]
    held = 0.0
    for i, (group, cost) in enumerate(zip(cut, costs, strict=True)):
        left, needed = len(cut) - i, members - len(packed)
        full = held + cost / 2 > aim or held + cost > most_s or left <= needed
        if packed[-1] and full:
            packed.append([])
            held = 0.0
        packed[-1].append(group)
        held += cost
    return packed


# Batch scripts


SESSION_SRUN: Final = ("--kill-on-bad-exit=0", "--no-kill", "--distribution=block", "--wait=30")
"""A rank or a node that is lost is told by the session itself, which has half a minute to write its record."""


class SubmissionError(ValueError):
    """The request cannot be submitted as it is; the message says what to change."""


class _Writer(SlurmExecutor):
    """submitit's executor as a writer of scripts, also on a machine without Slurm."""

    @classmethod
    def affinity(cls) -> int:
        return 2

    def text(self, command: str, members: int) -> str:
        """The script for an array of so many members."""
        if members > 1:
            self.parameters["map_count"] = members
        return self._make_submission_file_text(command, uid="")


def script(profile: Profile, array: ArrayJob, work: Path, after: str | None, code: Path) -> str:
    """The batch script of an array.

    Args:
        profile: What a member asks the cluster for.
        array: The array.
        work: The file that its members read; logs lie beside it.
        after: Id of the array that has to end first, or None.
        code: The snapshot that the members run.

    Returns:
        The text.

    Raises:
        SubmissionError: Slurm would misread the folder.
        ValueError: submitit does not know a parameter.
    """
    if "%" in str(work):
        raise SubmissionError(
            f"{work.parent}: Slurm replaces what follows a % in a path; use a results folder without one"
        )
    writer = _Writer(work.parent)
    writer.update_parameters(**parameters(profile, array, after, code))
    command = shlex.join([sys.executable, "-u", "-m", "slurm.member", str(work)])
    return writer.text(command, array.members)


def stage_script(
    profile: Profile, name: str, study: Path, number: int, after: Sequence[str], code: Path, *, alone: bool
) -> str:
    """The batch script of a stage of a study, a job of one task: see `slurm.stage`.

    A step of a job that has its node alone asks for no number of CPUs, so that it may use them all.

    Args:
        profile: What the job asks the cluster for.
        name: Of the job.
        study: The study's file.
        number: Of the stage.
        after: Ids of the jobs that have to end first.
        code: The snapshot that the job runs.
        alone: With its node for itself.

    Returns:
        The text.

    Raises:
        ValueError: submitit does not know a parameter.
    """
    writer = _Writer(study.parent)
    options = parameters(profile, ArrayJob(0, 1, 1, name), None, code)
    if after:
        options["dependency"] = f"afterany:{':'.join(after)}"
    if alone:
        options["additional_parameters"] = {**options["additional_parameters"], "exclusive": True}
        options["srun_args"] = ["--kill-on-bad-exit=1", "--cpu-bind=none"]
    writer.update_parameters(**options)
    return writer.text(shlex.join([sys.executable, "-u", "-m", "slurm.stage", str(study), str(number)]), 1)


def session_script(profile: Profile, name: str, job: Path, tasks: int, code: Path) -> str:
    """The batch script of a session between real nodes, a task a rank: see `slurm.session`.

    Args:
        profile: What the job asks the cluster for.
        name: Of the job.
        job: The file that its tasks read; logs lie beside it.
        tasks: Ranks.
        code: The snapshot that the job runs.

    Returns:
        The text.

    Raises:
        ProfileError: The profile cannot place so many ranks.
        ValueError: submitit does not know a parameter.
    """
    writer = _Writer(job.parent)
    options = parameters(profile, ArrayJob(0, 1, tasks, name), None, code)
    given = {key: value for key, value in options["additional_parameters"].items() if key != "requeue"}
    options["additional_parameters"] = {**given, "no-requeue": True, "no-kill": True, "exclusive": True}
    kept = [word for word in options["srun_args"] if not word.startswith("--kill-on-bad-exit")]
    options["srun_args"] = [*kept, *SESSION_SRUN]
    writer.update_parameters(**options)
    return writer.text(shlex.join([sys.executable, "-u", "-m", "slurm.session", str(job)]), 1)


def parameters(profile: Profile, array: ArrayJob, after: str | None, code: Path) -> dict[str, Any]:
    """The profile's parameters and those that belong to the submission, under submitit's names."""
    given = profile.parameters(array.tasks)
    ours = [f"export {name}={shlex.quote(value)}" for name, value in profile.variables().items()]
    ours += [f"export {name}=1" for name in THREAD_VARIABLES]
    copied = plugins(code.parent)
    copies = os.pathsep.join(str(copy) for copy in copied.values())
    searched = os.pathsep.join(map(str, [code, *(c.parent for path, c in copied.items() if beside(path))]))
    ours.append(f"export PYTHONPATH={shlex.quote(searched)}${{PYTHONPATH:+:$PYTHONPATH}}")
    ours += [f"export {PLUGINS}={shlex.quote(copies)}"] if copies else []
    ours += [f"export {DATA}={shlex.quote(os.environ[DATA])}"] if os.environ.get(DATA) else []
    ours.append("export PYTHONSAFEPATH=1")  # else Python would look into the folder of the submission first
    return {
        **given,
        "job_name": array.name,
        "dependency": f"afterany:{after}" if after else None,
        "setup": [*given["setup"], *ours],
    }


# Submission


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
    only: frozenset[str] = frozenset({"missing", "stale", "interrupted"}) | CIRCUMSTANCE,
) -> Submission:
    """Submit those of the runs that stand as `only` says and wait in no live job. Nothing is sent where none is left.

    Runs whose jobs have gone are settled on the way.

    Args:
        specs: The runs.
        profile: What a member asks the cluster for.
        results_root: A folder that the compute nodes see under the same path.
        sweep: The sweep's name.
        called: How commands name the sweep, where that is not its name.
        dry_run: Write and send nothing; needs no Slurm.
        only: States in which a run is submitted.

    Returns:
        What was submitted, or would be.

    Raises:
        SlurmError: Slurm is missing, does not answer, or refuses an array; arrays that were submitted before stay.
        ProfileError: The profile cannot place a run, or names an option that sbatch does not know.
    """
    store = Store(results_root)
    states = _answered_states(specs, store, sweep, dry_run)
    if not dry_run:
        settle(states, store)
    open_ = [spec for spec in specs if states.statuses[spec.run_id].state in only]
    if not open_:
        return Submission(sweep, called or sweep, None, 0, 0, (), ())
    members = pack(open_, profile, Estimator.of_store(set(specs).difference(open_), store))
    return submit_members(members, profile, results_root, sweep=sweep, called=called, dry_run=dry_run)


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
    """Submit runs of a sweep, cut into members as `pack` does.

    Args:
        members: The members.
        profile: What a member asks the cluster for.
        results_root: A folder that the compute nodes see under the same path.
        sweep: The sweep's name.
        called: How commands name the sweep, where that is not its name.
        dry_run: Write and send nothing, return the scripts; needs no Slurm.
        command: What was typed, for the record; default this process's arguments.

    Returns:
        What was submitted, or would be.

    Raises:
        SubmissionError: There is nothing to submit, or a member mixes runs of different resources.
        SlurmError: Slurm is missing or refuses an array; arrays that were submitted before stay, and the record names them.
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

    Args:
        job_ids: The jobs, arrays by their first id.
        progress: Called with the number of jobs left after every look.
        poll_s: Seconds between two looks.

    Raises:
        SlurmError: The scheduler has not answered several times in a row.
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
    """Cut members into arrays of equal tasks.

    Args:
        sizes: Tasks of every member, in order.
        limit: Most members of an array; 0: arrays are off, each member stands alone.
        sweep: Name of the sweep, for the names of the jobs.

    Returns:
        The arrays, in order.
    """
    most, first, arrays = max(1, limit), 0, []
    plain = re.sub(r"[^A-Za-z0-9._/-]", "-", sweep)
    for count, same in groupby(sizes):
        end = first + len(list(same))
        for start in range(first, end, most):
            name = f"bandwise-{plain}-{secrets.token_hex(4)}"
            arrays.append(ArrayJob(start, min(most, end - start), count, name))
        first = end
    return arrays


def _answered_states(specs: Sequence[RunSpec], store: Store, sweep: str, dry_run: bool) -> RunStates:
    """How the runs stand. Where something was submitted before, Slurm has to answer, or runs might be done twice."""
    states = run_states(specs, store)
    if states.unanswered and not dry_run:
        raise SlurmError(f"cannot tell which runs of {sweep} wait in jobs: {states.unanswered}")
    return states


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
