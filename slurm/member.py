"""What one member of an array does on its compute node: train its runs, exactly as the local pool would.

Pickled by reference, so this module is imported afresh on the node, and called with plain data only. How the
runs ended stands in their own files, which are the truth; the member returns nothing.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, Final

import torch

from suite.runs.execute import execute
from suite.runs.record import failed
from suite.runs.spec import RunSpec
from suite.runs.status import Status
from suite.runs.store import Store

EARLY_S: Final = 60
"""Slurm may send its warning so much earlier than it was asked to."""


class OutOfTimeError(Exception):
    """Slurm warned that it is about to end this job."""


def train(specs: Sequence[Mapping[str, Any]], results_root: str, timeout_min: int, warning_s: int) -> None:
    """Train one group of runs and keep every outcome under ``results_root``.

    specs: `RunSpec.as_dict` of each. timeout_min, warning_s: time limit of the job, and how long before its
    end Slurm sends SIGUSR2. Runs that have not ended by then are noted as ``timeout``, or as ``preempted``
    where the limit was still far. A fault of the program ends them as ``error``, and is raised.
    """
    started = time.monotonic()
    signal.signal(signal.SIGUSR2, _out_of_time)  # instead of submitit's handler, which knows nothing of runs
    torch.set_num_threads(1)  # as in the local pool: the bits of a result may depend on it
    group, store, job = [RunSpec.from_dict(dict(spec)) for spec in specs], Store(results_root), job_id()
    ended = Status("error", f"the program failed in Slurm job {job}: see {job}_0_log.err of the submission")
    try:
        for _ in execute(group, store):
            pass
    except OutOfTimeError:
        if time.monotonic() - started < 60 * timeout_min - warning_s - EARLY_S:
            ended = Status("preempted", f"Slurm took the node back from job {job}: run the sweep again")
        else:
            reason = f"Slurm job {job} reached its {timeout_min} min: raise timeout_min in the profile"
            ended = Status("timeout", reason)
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        for spec in group:
            if store.result(spec.run_id) is None:
                failed(spec, ended).save(store)


def job_id() -> str:
    """This job's id as Slurm's commands show it: ``17_3`` for member 3 of array 17."""
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    if array is not None:
        return f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ.get("SLURM_JOB_ID", "unknown")


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError
