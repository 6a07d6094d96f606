"""Submit a sweep: runs become the members of Slurm arrays, by submitit, and the call returns at once.

**Members.** Starting Python and torch takes seconds, so a member holds enough work for that to be a small share; it is planned
to take half of its time limit at most; and within both there are a few members for each that may run at once. Members of
simulated runs are one task, those of runs on real process groups a task a rank, and the two never mix.

**Killed.** submitit writes a member's work when sbatch has answered. A submitter that is killed in between leaves jobs that
find no work and end; their runs count as missing, and the same command submits them again, beside nothing that waits already.

**Code.** Jobs run what was submitted and not what the checkout holds by then. ``<results>/code/<commit>`` holds the packages
as they are, ``<commit>-<hash of the changes>`` where they differ from the commit. ``snapshot.json`` is what provenance reads
there instead of git (`suite.runs.spec`), so that a run records commit and hash of the changes of its code.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError
from submitit.helpers import clean_env

from reference_impls.core.registry import PLUGINS
from slurm.job import TrainRuns
from slurm.profile import Profile
from slurm.scheduler import DEFAULT_MAX_ARRAY_SIZE, SlurmError, max_array_size, require_slurm
from slurm.states import Record, new_folder, run_states, settle
from suite import DATA
from suite.runs.files import ID_DIGITS, StoreError, dump
from suite.runs.plan import Estimator, groups
from suite.runs.spec import CHECKOUT, PACKAGES, SNAPSHOT_FILE, THREAD_VARIABLES, RunSpec, code_state, git
from suite.runs.store import CIRCUMSTANCE, Store

MEMBERS_A_SLOT: Final = 3
OPEN: Final = frozenset({"missing", "stale", "interrupted"}) | CIRCUMSTANCE
"""States in which a run is submitted."""

Member = Sequence[Sequence[RunSpec]]
"""Groups of runs that one job trains one after another."""


class SubmissionError(ValueError):
    """The request cannot be submitted as it is; the message says what to change."""


def tasks(spec: RunSpec) -> int:
    """How many processes a run needs: one, or a rank each where it is not simulated."""
    return 1 if spec.backend == "simulated" else spec.world_size


def pack(
    specs: Sequence[RunSpec], profile: Profile, seconds: Callable[[RunSpec], float]
) -> list[list[list[RunSpec]]]:
    """Members for all these runs, those of equal tasks beside each other.

    Args:
        specs: The runs.
        profile: How much work a member should hold, and how long it may take.
        seconds: What a run takes.

    Returns:
        The members.
    """
    total = math.fsum(map(seconds, specs))
    share = total / (MEMBERS_A_SLOT * profile.array_parallelism)
    aim = min(max(profile.pack_s, share), profile.work_max_s) if profile.pack_s else 0.0
    wanted = math.ceil(total / aim) if aim else profile.array_parallelism
    members: list[list[list[RunSpec]]] = []
    held = 0.0
    for group in groups(sorted(specs, key=tasks), slots=max(1, wanted // MEMBERS_A_SLOT)):
        cost = math.fsum(map(seconds, group))
        full = held + cost / 2 > aim or held + cost > profile.work_max_s
        if not members or full or tasks(group[0]) != tasks(members[-1][0][0]):
            members.append([])
            held = 0.0
        members[-1].append(group)
        held += cost
    return members


class Executor(SlurmExecutor):
    """submitit's executor for jobs of a profile, also where no Slurm is: a dry run shows its scripts."""

    @classmethod
    def affinity(cls) -> int:
        """That it can be made here."""
        return 2

    def script(self, members: int = 1) -> str:
        """The batch script for so many members."""
        count = {"map_count": members} if members > 1 else {}
        self.parameters.update(count)
        text: str = self._make_submission_file_text(self._submitit_command_str, uid="")
        for key in count:
            del self.parameters[key]
        return text

    def send(self, work: Sequence[Callable[[], None]], profile: Profile) -> list[str]:
        """Send the work as one array; ids of its members. Raises `SlurmError` with sbatch's own words."""
        try:
            with clean_env() if "SLURM_JOB_ID" in os.environ else nullcontext():
                return [job.job_id for job in self.submit_array(work)]
        except FailedJobError as error:
            raise SlurmError(
                f"sbatch refused the job; change profile {profile.name!r} to what the site allows: {error}"
            ) from error


def executor(profile: Profile, folder: Path, name: str, count: int, code: Path, **more: Any) -> Executor:
    """The executor for jobs of so many tasks.

    Args:
        profile: What a job asks the cluster for.
        folder: submitit's: scripts, pickles, logs.
        name: Of the jobs.
        count: Tasks of a job.
        code: The code that the jobs run.
        more: submitit's parameters that differ from the profile's.

    Returns:
        The executor.

    Raises:
        ProfileError: The profile cannot place so many tasks.
        SubmissionError: Slurm would misread the folder.
    """
    if "%" in str(folder):
        raise SubmissionError(
            f"{folder}: Slurm replaces what follows a % in a path; use a results folder without one"
        )
    given = {**profile.parameters(count), **more}
    variables = {**profile.variables(), **dict.fromkeys(THREAD_VARIABLES, "1"), "PYTHONSAFEPATH": "1"}
    variables |= {key: os.environ[key] for key in (PLUGINS, DATA) if os.environ.get(key)}
    lines = [f"export {key}={shlex.quote(value)}" for key, value in variables.items()]
    lines.append(f"export PYTHONPATH={shlex.quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}")
    made = Executor(folder, max_num_timeout=profile.max_requeues)
    made.update_parameters(**{**given, "job_name": name, "setup": [*given["setup"], *lines]})
    return made


@dataclass(frozen=True)
class Submission:
    """What was submitted, or would be. folder: submitit's, None where nothing was left to do.

    jobs: ids of the arrays; none in a dry run. scripts: the batch script of each array.
    """

    sweep: str
    called: str
    folder: Path | None
    members: int
    runs: int
    jobs: tuple[str, ...]
    scripts: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as `--json` prints it."""
        return {**asdict(self), "folder": None if self.folder is None else str(self.folder)}

    def __str__(self) -> str:
        work = f"{self.sweep}: {self.runs} runs in {self.members} members"
        if not self.runs:
            return f"{self.sweep}: nothing to submit"
        if not self.jobs:
            return "\n".join([*self.scripts, f"{work} would be submitted; arrays: {len(self.scripts)}"])
        return (
            f"{work} submitted as Slurm jobs {', '.join(self.jobs)}, logs in {self.folder}\n"
            f"`bandwise status {self.called}` says how they stand"
        )


def submit_runs(
    specs: Sequence[RunSpec],
    profile: Profile,
    results_root: Path | str,
    *,
    sweep: str,
    called: str | None = None,
    dry_run: bool = False,
    only: frozenset[str] = OPEN,
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
        ProfileError: The profile cannot place a run.
        SnapshotError: The code is no git clone.
        StoreError: The results folder cannot be written.
    """
    root = Path(results_root).resolve()
    store, called = Store(root), called or sweep
    states = run_states(specs, store)
    if not dry_run:
        require_slurm()
        if states.unanswered:  # else runs might be done twice
            raise SlurmError(f"cannot tell which runs of {sweep} wait in jobs: {states.unanswered}")
        settle(states, store)
    open_ = [spec for spec in specs if states.statuses[spec.run_id].state in only]
    if not open_:
        return Submission(sweep, called, None, 0, 0, (), ())
    members = pack(open_, profile, Estimator.of_store(set(specs).difference(open_), store).seconds)
    for count in {tasks(spec) for spec in open_}:
        profile.shape(count)
    limit = max(1, DEFAULT_MAX_ARRAY_SIZE if dry_run else max_array_size())  # 0: arrays are off
    code = code_folder(root, dry_run=dry_run)
    folder = new_folder(root / "sweeps" / sweep, dry_run=dry_run)
    record = Record(folder, called, time.time(), profile.as_dict(), {})
    sent, scripts = list[str](), list[str]()
    for array in arrays(members, limit):
        send = executor(profile, folder, f"bandwise-{sweep}".replace(" ", "-"), tasks(array[0][0][0]), code)
        scripts.append(send.script(len(array)))
        if not dry_run:
            device = "cuda" if profile.gpus_per_task else "cpu"
            limits = (profile.timeout_min, profile.max_requeues, profile.checkpoint_s, device)
            plain = [[[spec.as_dict() for spec in group] for group in member] for member in array]
            ids = send.send([TrainRuns(called, str(root), work, *limits) for work in plain], profile)
            held = [[spec.run_id for group in member for spec in group] for member in array]
            record = replace(record, jobs={**record.jobs, **dict(zip(ids, held, strict=True))})
            record.save()
            sent.append(ids[0].partition("_")[0])
    return Submission(sweep, called, folder, len(members), len(open_), tuple(sent), tuple(scripts))


def arrays(members: Sequence[Member], limit: int) -> list[list[Member]]:
    """Members of equal tasks together, at most `limit` of them in an array."""
    found: list[list[Member]] = []
    for _, same in groupby(members, key=lambda member: tasks(member[0][0])):
        alike = list(same)
        found += [alike[i : i + limit] for i in range(0, len(alike), limit)]
    return found


# The code of a submission


class SnapshotError(RuntimeError):
    """The code cannot be kept; the message says why."""


def code_folder(results_root: Path, checkout: Path = CHECKOUT, *, dry_run: bool = False) -> Path:
    """Keep the packages of a checkout, unless they are kept already.

    Args:
        results_root: Where they are kept, below ``code/``.
        checkout: A git clone.
        dry_run: Only say where they would be.

    Returns:
        The folder.

    Raises:
        SnapshotError: The checkout is not one of git.
        StoreError: The folder cannot be written.
    """
    try:
        listed = git(
            checkout, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *PACKAGES
        ).decode()
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", b"") or str(error).encode()).decode(errors="replace").strip()
        raise SnapshotError(
            f"submit from a git clone, so that runs can say which code computed them: {said}"
        ) from None
    facts = code_state(checkout)
    if facts["commit"] is None:
        raise SnapshotError(
            f"submit from a git clone, so that runs can say which code computed them: {checkout} is none"
        )
    different = f"-{facts['changes']['sha256'][:ID_DIGITS]}" if "changes" in facts else ""
    folder = results_root.resolve() / "code" / f"{facts['commit']}{different}"
    if dry_run or folder.exists():
        return folder
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        for name in filter(None, listed.split("\0")):
            if (checkout / name).is_file():
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, temporary / name)
        (temporary / SNAPSHOT_FILE).write_text(dump(facts) + "\n", encoding="utf-8")
        temporary.rename(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.exists():  # else another submission was faster, with the same files
            raise StoreError(
                f"cannot keep the code in {folder}: {error.strerror}; free some space, check rights, or use "
                "another results folder (--results)"
            ) from error
    return folder
