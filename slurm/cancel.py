"""Cancel the jobs of one sweep's submissions, those of a submission that was killed half-way included."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from slurm import scheduler
from slurm.records import records
from slurm.study import studies

POLL_S: Final = 0.5


def cancel_sweep(sweep: str, results_root: Path, end_s: float) -> tuple[list[str], list[str]]:
    """Cancel all jobs of a sweep that have not ended and wait until they have, at most `end_s` seconds.

    Returns the ids of the jobs (arrays by their first id) that were cancelled, and of those that are still being ended.
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
    found = (job for job in scheduler.jobs() if job.name in names and not job.ended)
    return sorted({job.id.partition("_")[0] for job in found}, key=int)
