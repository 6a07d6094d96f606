"""The batch script of an array, as submitit writes it: the same text for `--dry-run` and for sbatch."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

from submitit import SlurmExecutor

from slurm.profile import Profile
from suite.runs.threads import THREAD_VARIABLES

CHECKOUT: Final = Path(__file__).resolve().parents[1]
REQUEUES_OF_SUBMITIT: Final = 0
"""submitit's own budget of requeues. None: what a member could not finish is seen from the runs' files."""


class SubmissionError(ValueError):
    """The request cannot be submitted as it is; the message says what to change."""


class Executor(SlurmExecutor):
    """submitit's executor, which can also show its script on a machine without Slurm."""

    @classmethod
    def affinity(cls) -> int:
        """Always usable; whether Slurm is there is asked before anything is sent."""
        return 2

    def text(self, members: int) -> str:
        """The script for an array of so many members."""
        parameters = {**self.parameters, **({"map_count": members} if members > 1 else {})}
        shown = Executor(self.folder)
        shown.parameters = parameters
        return shown._make_submission_file_text(self._submitit_command_str, uid="")


def executor(
    profile: Profile, folder: Path, job_name: str, after: str | None, code: Path = CHECKOUT
) -> Executor:
    """What submits arrays of `profile`, with logs and pickles in `folder`.

    after: id of the array that has to end first, or None. code: the checkout whose code the members run.
    Raises `SubmissionError` for a folder that Slurm would misread, and submitit's ValueError where it does not
    know a parameter, before anything is sent.
    """
    if "%" in str(folder):
        raise SubmissionError(
            f"{folder}: Slurm replaces what follows a % in a path; use a results folder without one"
        )
    made = Executor(folder, max_num_timeout=REQUEUES_OF_SUBMITIT)
    made.update_parameters(**parameters(profile, job_name, after, code))
    return made


def parameters(profile: Profile, job_name: str, after: str | None, code: Path) -> dict[str, Any]:
    """The profile's parameters and those that belong to the submission, under submitit's names."""
    given = profile.parameters()
    ours = [f"export {name}=1" for name in THREAD_VARIABLES]
    ours.append(f"export PYTHONPATH={shlex.quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}")
    return {
        **given,
        "job_name": job_name,
        "dependency": f"afterany:{after}" if after else None,
        "setup": [*given["setup"], *ours],
        # From Slurm 22.05 on srun does not take the CPUs of a task over from sbatch.
        "srun_args": [f"--cpus-per-task={profile.cpus_per_task}", "--kill-on-bad-exit=1"],
    }
