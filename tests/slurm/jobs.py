"""Jobs on a development cluster, as tests submit and watch them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from tests.slurm.devcluster import Cluster


def submit(slurm: Cluster, script: str, *options: str, output: Path | None = None) -> str:
    """Submit a line of shell; the job's id. It writes nothing unless told where."""
    return slurm.ask(
        "sbatch",
        "--parsable",
        f"--output={output or '/dev/null'}",
        "--open-mode=append",
        *options,
        f"--wrap={script}",
    ).strip()


def state(slurm: Cluster, job: str) -> str:
    """Slurm's word on a job, such as ``RUNNING``; jobs that have ended are known for some minutes."""
    return slurm.ask("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").strip()


def detail(slurm: Cluster, job: str, key: str) -> str:
    """A field of ``scontrol show job``, such as ``Restarts``."""
    words = slurm.ask("scontrol", "show", "job", job).split()
    return next(word.partition("=")[2] for word in words if word.startswith(f"{key}="))


def seconds_until(condition: Callable[[], bool], limit_s: float = 60.0) -> float:
    """Seconds until the condition comes true; the test fails where it does not within the limit."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < limit_s, f"not within {limit_s:g} s"
        time.sleep(0.1)
    return time.monotonic() - started


def ends(slurm: Cluster, job: str, limit_s: float = 60.0) -> str:
    """Wait until a job has ended; its last state."""
    going = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED"}
    seconds_until(lambda: state(slurm, job) not in going, limit_s)
    return state(slurm, job)
