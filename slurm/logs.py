"""What a job's log says of its end: its last telling lines, and the state that they mean.

srun and its helpers say first which task ended and how, and then at length that they end the others; only the
first is worth telling.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

WORDS: Final = (
    (re.compile(r"oom.?kill|out of memory|exceeded (job )?memory limit", re.IGNORECASE), "oom"),
    (re.compile(r"DUE TO TIME LIMIT"), "timeout"),
    (re.compile(r"DUE TO PREEMPTION"), "preempted"),
    (re.compile(r"DUE TO NODE FAILURE|[Nn]ode failure"), "node_lost"),
    (re.compile(r"error: \S+: tasks? [\d,-]+: "), "error"),
    (re.compile(r"CANCELLED AT"), "cancelled"),
)
"""What a log says of its job's end, most telling first."""
LAST_BYTES: Final = 8192
LAST_LINES: Final = 3
_TASK: Final = WORDS[-2][0]
_STOPPED: Final = re.compile(r"\*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ \*\*\*$")
"""What srun does to the tasks that are left, whatever the cause."""
_NOISE: Final = re.compile(
    r"^member of Slurm job |^\[W\d{4} |^srun: (launch/slurm|Force Terminated|Job step aborted|cluster configuration lacks)"
)


def last_words(logs: Path, job_id: str) -> str:
    """The last telling lines that any task of a job wrote on standard error, in one line; "" where there are none."""
    lines: list[str] = []
    for path in sorted(logs.glob(f"{job_id}_*_log.err"), reverse=True):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_BYTES))
            lines += file.read().decode(errors="replace").splitlines()
    return "; ".join(_telling([line.strip() for line in lines])[-LAST_LINES:])


def meaning(words: str) -> str:
    """The state of a run whose job has gone with these last words."""
    return next((state for pattern, state in WORDS if pattern.search(words)), "error")


def _telling(lines: list[str]) -> list[str]:
    """Those that say something new: what follows the end of one task is that of the others."""
    found: list[str] = []
    for line in lines:
        another = _TASK.search(line) and found and _TASK.search(found[-1])
        if line and line not in found and not another and not _NOISE.search(line):
            if _STOPPED.search(line) and any(
                pattern.search(each) for pattern, _ in WORDS[:-1] for each in found
            ):
                continue
            found.append(line)
    return found
