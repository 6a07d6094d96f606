"""A study as one submission: tuning, accuracy runs, sessions, report, each a job or an array that waits for those before.

``sweeps/<sweep>/study-<n>/study.json`` says what was asked for, before anything is sent::

    {"schema_version": 1, "sweep": ..., "called": ..., "name": "bandwise-<sweep>-<token>", "created": ...,
     "profile": {...}, "code": path of the snapshot, "results_root": ..., "stages": ["tune", "runs", "session:quick", "report"]}

``stage-<k>.json`` beside it says how a stage stands in its own words: {"state": ..., "reason": ...}. It has one writer at a
time: who sends the stage, then its job. Jobs are known by their name, ``<name>-<k>``, so that a kill at any moment
loses none. What comes after tuning is sent when the rates are there; the rest is sent at once, by ``afterany``: a later
stage looks itself whether what it needs is there. A stage of its kind that waits or runs already is not sent again.
`cancel_sweep` cancels the jobs of all submissions and studies of a sweep, of a submission that was killed half-way too.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from slurm import scheduler
from slurm.profile import Profile, check_options
from slurm.records import next_number, records
from slurm.scheduler import Job, SlurmError
from slurm.snapshot import planned, take
from suite.runs.files import dump, parsed, read, write_atomic
from suite.runs.sweep import Sweep
from suite.timing.spec import load_session

SCHEMA: Final = 1
TUNE: Final = "tune"
RUNS: Final = "runs"
SESSION: Final = "session"
MORE_MIN: Final = 10
"""Minutes that a session's job has beyond those that its file states: it builds its cases and clears up."""
PLACEHOLDER: Final = "STAGE-BEFORE"
"""Stands for the id of a job in the scripts of a dry run."""


@dataclass(frozen=True)
class Study:
    """A study as its file has it."""

    path: Path
    sweep: str
    called: str
    name: str
    created: str
    profile: Profile
    code: Path
    results_root: Path
    stages: tuple[str, ...]

    def job_name(self, number: int) -> str:
        """Name of the job of a stage."""
        return f"{self.name}-{number}"

    def note(self, number: int, state: str, reason: str) -> None:
        """Say how a stage stands."""
        facts = {"stage": self.stages[number], "state": state, "reason": reason}
        write_atomic(self._note(number), dump(facts) + "\n")

    def noted(self, number: int) -> dict[str, Any] | None:
        """What a stage has noted, None before its turn."""
        text = read(self._note(number))
        return None if text is None else dict(parsed(text, self._note(number)))

    def save(self) -> None:
        """Write what was asked for."""
        facts = {**asdict(self), "profile": self.profile.as_dict(), "schema_version": SCHEMA}
        facts.pop("path")
        texts = {key: str(facts[key]) for key in ("code", "results_root")}
        write_atomic(self.path, dump({**facts, **texts}, indent=1) + "\n")

    def _note(self, number: int) -> Path:
        return self.path.with_name(f"stage-{number}.json")


@dataclass(frozen=True)
class Sent:
    """A stage that was sent, or would be: its job (placeholder in a dry run), and its script where it is new."""

    stage: str
    job: str
    script: str | None


def new_study(
    sweep: Sweep, profile: Profile, root: Path, stages: Sequence[str], *, dry_run: bool = False
) -> Study:
    """A study with the code as it is now, noted unless it is a dry run.

    Args:
        sweep: What is studied.
        profile: What its jobs ask the cluster for.
        root: The results root.
        stages: In order: "tune", "runs", "session:<name>", "report".
        dry_run: Write nothing; needs no Slurm.

    Returns:
        The study; nothing of it has been sent.

    Raises:
        SlurmError: Slurm is missing.
        ProfileError: This Slurm does not know an option of the profile.
    """
    if not dry_run:
        scheduler.require_slurm()
        check_options(profile, scheduler.sbatch_options())
    root = root.resolve()
    plain = re.sub(r"[^A-Za-z0-9._/-]", "-", sweep.name)
    folder = root / "sweeps" / sweep.name
    study = Study(
        path=folder / f"study-{next_number(folder, claim=not dry_run, stem='study')}" / "study.json",
        sweep=sweep.name,
        called=sweep.called,
        name=f"bandwise-{plain}-study-{secrets.token_hex(4)}",
        created=datetime.now(UTC).isoformat(timespec="milliseconds"),
        profile=profile,
        code=(planned if dry_run else take)(root).path,
        results_root=root,
        stages=tuple(stages),
    )
    if not dry_run:
        study.save()
    return study


def under_way(sweep: Sweep, root: Path, stages: Sequence[str]) -> Study | None:
    """The latest study of the same stages of which a job waits or runs, so that the same command goes on with it."""
    known = [study for study in studies(root.resolve(), sweep.name) if study.stages == tuple(stages)]
    names = {job.name for job in scheduler.jobs() if not job.ended} if known else set()
    return next((s for s in reversed(known) if names & {s.job_name(k) for k in range(len(stages))}), None)


def load_study(path: Path) -> Study:
    """Read a study's file. Raises `StoreError` for a damaged one."""
    facts = dict(parsed(read(path) or "", path))
    facts.pop("schema_version")
    return Study(
        **{
            **facts,
            "path": path,
            "profile": Profile.from_dict(facts["profile"]),
            "code": Path(facts["code"]),
            "results_root": Path(facts["results_root"]),
            "stages": tuple(facts["stages"]),
        }
    )


def studies(root: Path, sweep: str) -> list[Study]:
    """All studies of a sweep, oldest first."""
    loaded = [load_study(path) for path in (root / "sweeps" / sweep).glob("study-*/study.json")]
    return sorted(loaded, key=lambda study: study.created)


def send_stages(study: Study, first: int, after: Sequence[str], *, dry_run: bool = False) -> list[Sent]:
    """Send the stages from `first` on that are jobs of their own, each after the one before."""
    sent: list[Sent] = []
    for number in range(first, len(study.stages)):
        stage = send_stage(study, number, after, dry_run=dry_run)
        sent.append(stage)
        after = [stage.job]
    return sent


def send_stage(study: Study, number: int, after: Sequence[str], *, dry_run: bool = False) -> Sent:
    """Send one stage, unless it is on its way: then its job is named.

    Args:
        study: The study.
        number: Of the stage.
        after: Ids of the jobs that have to end first.
        dry_run: Send nothing.

    Returns:
        The stage's job, and its script where it is new.

    Raises:
        SlurmError: sbatch refused it; with sbatch's own words.
    """
    from slurm.submit import (
        stage_script,  # here, since it needs submitit, which who only looks does not wait for
    )

    stage = study.stages[number]
    alone, profile = stage.startswith(SESSION), study.profile
    if alone:
        stated = load_session(stage.partition(":")[2]).minutes
        profile = profile.model_copy(update={"timeout_min": max(profile.timeout_min, stated + MORE_MIN)})
    text = stage_script(profile, study.job_name(number), study.path, number, after, study.code, alone=alone)
    if dry_run:
        return Sent(stage, PLACEHOLDER, text)
    known = (
        [study] if stage == TUNE else studies(study.results_root, study.sweep)
    )  # what follows a search is its own
    if live := live_job(known, stage, scheduler.jobs()):
        return Sent(stage, live.id, None)
    path = study.path.with_name(f"stage-{number}.sh")
    write_atomic(path, text)
    return Sent(stage, scheduler.submit(str(path)), text)


def live_job(known: Sequence[Study], stage: str, jobs: Sequence[Job]) -> Job | None:
    """The job of a stage of this kind that waits, or runs and is not this very process."""
    names = {study.job_name(k) for study in known for k, other in enumerate(study.stages) if other == stage}
    this_job = os.environ.get("SLURM_JOB_ID", "")
    return next((job for job in jobs if job.name in names and job.waits), None) or next(
        (job for job in jobs if job.name in names and not job.ended and job.id != this_job), None
    )


def stage_rows(root: Path, sweep: str) -> list[dict[str, str]]:
    """How the stages of the latest study of a sweep stand: what they say themselves, else what Slurm says of their jobs."""
    known = studies(root, sweep)
    if not known:
        return []
    study = known[-1]
    try:
        jobs = scheduler.jobs()
    except SlurmError:
        jobs = []
    rows = []
    for number, stage in enumerate(study.stages):
        note = study.noted(number)
        stage_jobs = [job for job in jobs if job.name == study.job_name(number)]
        job = live_job(known, stage, jobs) or max(stage_jobs, key=lambda job: int(job.id), default=None)
        rows.append({"stage": stage, **_stands(note, job)})
    return rows


def _stands(note: dict[str, Any] | None, job: Job | None) -> dict[str, str]:
    if job is not None and not job.ended:
        why = f": {job.reason}" if job.waits else ""
        remark = f"; {note['reason']}" if note and note["reason"] else ""
        return {
            "state": "queued" if job.waits else "running",
            "reason": f"Slurm job {job.id}{why}{remark}",
        }
    if note is not None and note["state"] not in {"running", "queued"}:
        return {"state": note["state"], "reason": note["reason"]}
    if job is not None:
        return {
            "state": "error",
            "reason": f"Slurm job {job.id} ended as {job.state}; give the same command again",
        }
    if note is not None:
        return {
            "state": "stale",
            "reason": f"{note['reason']}; Slurm knows no job of it: give the same command again",
        }
    return {"state": "missing", "reason": "its turn has not come, or its job is not known to Slurm any more"}


# Cancelling


POLL_S: Final = 0.5


def cancel_sweep(sweep: str, results_root: Path, end_s: float) -> tuple[list[str], list[str]]:
    """Cancel all jobs of a sweep that have not ended and wait until they have.

    Args:
        sweep: The sweep's name.
        results_root: Where its submissions and studies are noted.
        end_s: Longest wait in seconds.

    Returns:
        Ids of the jobs (arrays by their first id) that were cancelled, and of those that are still being ended.

    Raises:
        SlurmError: Slurm does not answer.
    """
    names = {array.name for record in records(results_root, sweep) for array in record.arrays}
    names |= {s.job_name(k) for s in studies(results_root, sweep) for k in range(len(s.stages))}
    if not names:
        return [], []
    cancelled = _live(names)
    scheduler.cancel(cancelled)
    deadline = time.monotonic() + end_s
    while (left := _live(names)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return cancelled, left


def _live(names: set[str]) -> list[str]:
    """Jobs of these names that have not ended."""
    live = (job for job in scheduler.jobs() if job.name in names and not job.ended)
    return sorted({job.id.partition("_")[0] for job in live}, key=int)
