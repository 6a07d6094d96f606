"""The few questions put to Slurm, each one call for all jobs, and the error for a machine that has none.

`jobs` is one squeue, which also tells how jobs ended as long as the controller remembers them (MinJobAge, some
minutes); `accounted` asks the accounting, where there is one, about those it has forgotten.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

CALL_TIMEOUT_S: Final = 60
POLL_S: Final = 2.0
UNANSWERED_MAX: Final = 5
DEFAULT_MAX_ARRAY_SIZE: Final = 1001
"""Slurm's own default, for a plan made where there is no Slurm to ask."""

ENDED: Final = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
"""States that a job does not leave; in any other it waits, runs, or is being ended or requeued."""
STUCK: Final = re.compile(
    r"JobHeld|requeued_held|DependencyNeverSatisfied|BadConstraints|PartitionTimeLimit|PartitionNodeLimit"
    r"|InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed"
)
"""Reasons for waiting that do not pass by themselves."""

OF_SLURM: Final = ("SLURM", "SBATCH", "SRUN", "SALLOC", "SQUEUE", "SINFO", "SCANCEL", "SCONTROL", "SACCT")
"""How variables begin that Slurm's clients read, or that a job has."""
KEPT: Final = ("SLURM_CONF", "SLURM_JWT")
"""Of these the ones that say where the cluster is, and who asks."""

WHAT_TO_DO: Final = (
    "submit from a login node of the cluster, or start a cluster on this machine "
    "(`python -m tests.slurm.devcluster up`), or run here with --on local"
)


class SlurmError(RuntimeError):
    """Slurm is not there or refused something; the message says what to do."""


@dataclass(frozen=True)
class Job:
    """One job, or one member of an array, as Slurm sees it. id: ``17``, or ``17_3`` for member 3 of array 17."""

    id: str
    name: str
    state: str
    reason: str

    @property
    def ended(self) -> bool:
        """Whether it will not run (again)."""
        return self.state in ENDED

    @property
    def waits(self) -> bool:
        """Whether it has not started, or waits to be started again."""
        return self.state in {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}

    @property
    def stuck(self) -> bool:
        """Whether it waits for something that does not come by itself."""
        return self.waits and STUCK.search(self.reason) is not None


def without_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables that Slurm's clients would take for options."""
    return {name: value for name, value in environ.items() if not name.startswith(OF_SLURM)}


def require_slurm() -> None:
    """Raises `SlurmError` unless sbatch, srun, scontrol and squeue are on PATH."""
    missing = [name for name in ("sbatch", "srun", "scontrol", "squeue") if shutil.which(name) is None]
    if missing:
        raise SlurmError(f"{', '.join(missing)} not on PATH: {WHAT_TO_DO}")


def max_array_size() -> int:
    """How many members an array may have on this cluster (Slurm's MaxArraySize; 0 where arrays are off)."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config"), re.MULTILINE)
    if match is None:
        raise SlurmError("`scontrol show config` names no MaxArraySize: check that this Slurm answers")
    return int(match.group(1))


def jobs() -> list[Job]:
    """All jobs of this user that the controller knows, each member of an array by itself, ended ones included."""
    listed = _ask("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%j|%T|%r")
    return [Job(*line.split("|", 3)) for line in listed.splitlines() if line.count("|") >= 3]


def accounted(job_ids: Iterable[str]) -> list[Job]:
    """What the accounting says about these jobs; nothing where there is none."""
    if shutil.which("sacct") is None:
        return []
    arrays = ",".join(sorted({job_id.partition("_")[0] for job_id in job_ids}))
    command = ("sacct", "--allocations", "--noheader", "--parsable2", f"--jobs={arrays}")
    try:
        listed = _ask(*command, "--format=JobID,JobName,State,Reason")
    except SlurmError:
        return []  # accounting is off, or its daemon is away: as good as none
    rows = [line.split("|", 3) for line in listed.splitlines() if line.count("|") >= 3]
    return [Job(id_.partition("_[")[0], name, state.split()[0], reason) for id_, name, state, reason in rows]


def poll(under_way: Callable[[], bool]) -> None:
    """Look again and again until nothing is under way.

    Args:
        under_way: One look.

    Raises:
        SlurmError: Slurm has not answered `UNANSWERED_MAX` times in a row.
    """
    unanswered = 0
    while True:
        try:
            if not under_way():
                return
            unanswered = 0
        except SlurmError:
            unanswered += 1
            if unanswered == UNANSWERED_MAX:
                raise
        time.sleep(POLL_S)


def _ask(*command: str) -> str:
    environment = {
        **without_slurm(os.environ),
        **{name: os.environ[name] for name in KEPT if name in os.environ},
    }
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        require_slurm()
        raise
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"`{' '.join(command)}` gave no answer in {CALL_TIMEOUT_S} s: is slurmctld up?"
        ) from None
    if done.returncode != 0:
        complaint = done.stderr.strip().splitlines() or ["no message"]
        raise SlurmError(f"`{' '.join(command)}` failed ({complaint[-1]}): {WHAT_TO_DO}")
    return done.stdout
