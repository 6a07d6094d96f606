"""The few questions put to Slurm, each one call for all jobs, and the error for a machine that has none."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from typing import Final

CALL_TIMEOUT_S: Final = 60
DEFAULT_MAX_ARRAY_SIZE: Final = 1001
"""Slurm's own default, for a plan made where there is no Slurm to ask."""

WHAT_TO_DO: Final = (
    "submit from a login node of the cluster, or start a cluster on this machine "
    "(`bandwise cluster up --slurm`), or run here with --on local"
)


class SlurmError(RuntimeError):
    """Slurm is not there or refused something; the message says what to do."""


def require_slurm() -> None:
    """Raises `SlurmError` unless sbatch, srun, scontrol and squeue are on PATH."""
    missing = [name for name in ("sbatch", "srun", "scontrol", "squeue") if shutil.which(name) is None]
    if missing:
        raise SlurmError(f"{', '.join(missing)} not on PATH: {WHAT_TO_DO}")


def max_array_size() -> int:
    """How many members an array may have on this cluster (Slurm's MaxArraySize; 0 where arrays are off)."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config"), re.MULTILINE)
    if found is None:
        raise SlurmError("`scontrol show config` names no MaxArraySize: check that this Slurm answers")
    return int(found.group(1))


def unfinished(job_ids: Iterable[str]) -> set[str]:
    """Those of the jobs (arrays by their first id) of which a member waits, runs or is being ended."""
    queued = set(_ask("squeue", "--me", "--noheader", "--format=%F").split())
    return queued & set(job_ids)


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False)
    except FileNotFoundError:
        require_slurm()
        raise
    except subprocess.TimeoutExpired:
        raise SlurmError(
            f"`{' '.join(command)}` gave no answer in {CALL_TIMEOUT_S} s: is slurmctld up?"
        ) from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise SlurmError(f"`{' '.join(command)}` failed ({said[-1]}): {WHAT_TO_DO}")
    return done.stdout
