"""The batch script of an array, as submitit writes it: the same text for `--dry-run` and for sbatch.

submitit knows sbatch's parameters and checks their names. Its pickles are not used: it writes them under a job's id
after sbatch has answered, so that a submitter killed in between leaves jobs without work. Members read a
file that is there before their job is, and run `slurm.member` of the snapshot.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit import SlurmExecutor

from reference_impls.registry import PLUGINS
from slurm.profile import Profile
from slurm.records import ArrayJob
from slurm.snapshot import plugins
from suite.training.threads import THREAD_VARIABLES


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
    """The batch script of an array. work: what its members read; logs lie beside it. after: id of the array that has
    to end first, or None. code: the snapshot that the members run.

    Raises `SubmissionError` for a folder that Slurm would misread, and submitit's ValueError where it does not
    know a parameter.
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
    """The batch script of a stage of a study, a job of one task: see `stage`. alone: with its node for itself.

    A step of a job that has its node alone asks for no number of CPUs, so that it may use them all.
    """
    writer = _Writer(study.parent)
    found = parameters(profile, ArrayJob(0, 1, 1, name), None, code)
    if after:
        found["dependency"] = f"afterany:{':'.join(after)}"
    if alone:
        found["additional_parameters"] = {**found["additional_parameters"], "exclusive": True}
        found["srun_args"] = ["--kill-on-bad-exit=1", "--cpu-bind=none"]
    writer.update_parameters(**found)
    return writer.text(shlex.join([sys.executable, "-u", "-m", "slurm.stage", str(study), str(number)]), 1)


def parameters(profile: Profile, array: ArrayJob, after: str | None, code: Path) -> dict[str, Any]:
    """The profile's parameters and those that belong to the submission, under submitit's names."""
    given = profile.parameters(array.tasks)
    ours = [f"export {name}={shlex.quote(value)}" for name, value in profile.variables().items()]
    ours += [f"export {name}=1" for name in THREAD_VARIABLES]
    ours.append(f"export PYTHONPATH={shlex.quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}")
    told = os.pathsep.join(str(copy) for copy in plugins(code.parent).values())
    ours += [f"export {PLUGINS}={shlex.quote(told)}"] if told else []
    ours.append("export PYTHONSAFEPATH=1")  # else Python would look into the folder of the submission first
    return {
        **given,
        "job_name": array.name,
        "dependency": f"afterany:{after}" if after else None,
        "setup": [*given["setup"], *ours],
    }
