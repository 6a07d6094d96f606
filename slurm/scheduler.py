"""The few questions put to Slurm, each one call for all jobs, and the error for a machine that has none.

`jobs` is one squeue, which also tells how jobs ended as long as the controller remembers them (MinJobAge, some
minutes); `accounted` asks the accounting, where there is one, about those it has forgotten.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

CALL_TIMEOUT_S: Final = 60
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
    """One job, or one member of an array, as Slurm sees it. id: ``17``, or ``17_3`` for member 3 of array 17.

    elapsed_s: how long its last turn has taken.
    """

    id: str
    name: str
    state: str
    reason: str
    elapsed_s: int = 0

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


def sbatch_options() -> set[str]:
    """The long options that this Slurm's sbatch lists, without dashes."""
    return set(re.findall(r"--([a-z][a-z0-9-]*)", _ask("sbatch", "--help")))


def submit(script: str) -> str:
    """Send a batch script.

    Args:
        script: Path of the script.

    Returns:
        The job's id.

    Raises:
        SlurmError: sbatch refused it; with sbatch's own words.
    """
    return _ask("sbatch", "--parsable", script).strip().partition(";")[0]


def cancel(job_ids: Sequence[str]) -> None:
    """Ask Slurm to end these jobs (arrays by their first id)."""
    if job_ids:
        _ask("scancel", *job_ids)


def requeue(job_id: str) -> None:
    """Ask Slurm to start a running job again later, under the same id."""
    _ask("scontrol", "requeue", job_id)


def jobs() -> list[Job]:
    """All jobs of this user that the controller knows, each member of an array by itself, ended ones included."""
    listed = _ask("squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%j|%T|%M|%r")
    rows = [line.split("|", 4) for line in listed.splitlines() if line.count("|") >= 4]
    return [Job(id_, name, state, reason, seconds(took)) for id_, name, state, took, reason in rows]


def accounted(names: Iterable[str], since: str) -> list[Job]:
    """What the accounting says about jobs of these names that started after `since`; nothing where there is none.

    since: local time as ``2026-01-31T12:00:00``.
    """
    if not (wanted := ",".join(sorted(set(names)))) or shutil.which("sacct") is None:
        return []
    command = ("sacct", "--allocations", "--noheader", "--parsable2", f"--starttime={since}")
    try:
        listed = _ask(*command, f"--name={wanted}", "--format=JobID,JobName,State,Elapsed,Reason")
    except SlurmError:
        return []  # accounting is off, or its daemon is away: as good as none
    rows = [line.split("|", 4) for line in listed.splitlines() if line.count("|") >= 4]
    return [
        Job(id_, name, state.split()[0], reason, seconds(took)) for id_, name, state, took, reason in rows
    ]


def seconds(text: str) -> int:
    """Slurm's ``[days-][hours:]minutes:seconds`` in seconds; 0 for what is no time, such as INVALID."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in [*parts, *([days] if dash else [])]):
        return 0
    total = 0
    for part in parts:
        total = 60 * total + int(part)
    return total + 86_400 * int(days or 0)


def unfinished(job_ids: Iterable[str]) -> set[str]:
    """Those of the jobs (arrays by their first id) of which a member waits, runs or is being ended."""
    queued = set(_ask("squeue", "--me", "--noheader", "--format=%F").split())
    return queued & set(job_ids)


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
