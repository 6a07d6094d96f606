"""Everything that is measured on a GPU, as a list of jobs: `make gpu`, or `python -m suite.gpu` with the machine's own Python.

Each job is a process of its own, of ten minutes at most, and leaves a table in results/gpu. What a table holds of this GPU and
these versions is not measured again, and what was cut off goes on when the list is run again; take rows out of a table to have
them measured anew. A job that lacks something on this machine is left out, and the list says what it lacks.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from suite.gpu.tables import GO_ON, say
from suite.links.cluster import PROGRAMS, find_program

LIMIT_S: Final = 600.0
SHORTEST_S: Final = 60.0
"""With less time than this left no job is begun."""
ENDS_S: Final = 90.0
"""How long a job that is interrupted may take to write down what it has, and a study to end its sweep first."""
CHECKOUT: Final = Path(__file__).resolve().parents[2]


def _importable(name: str) -> bool:
    """Whether there is a module of that name; ``name==version``: a distribution of that version."""
    distribution, _, version = name.partition("==")
    if version:
        found = importlib.metadata.distributions(name=distribution)
        return any(one.version == version for one in found)
    return importlib.util.find_spec(name) is not None


class Job(NamedTuple):
    """name: of its table too. minutes: that it takes, about. modules, programs: which it needs besides torch, numpy, pandas."""

    name: str
    module: str
    minutes: int
    what: str
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    @property
    def lacks(self) -> list[str]:
        """What of that is not here."""
        modules = [name for name in (self.module, *self.modules) if not _importable(name)]
        return modules + [name for name in self.programs if find_program(name) is None]


FILES: Final = ("pydantic", "yaml", "sympy==1.14.0")
"""What reading sessions and runs takes, and the text that `code-gpt` is trained on."""
JOBS: Final = (
    Job("steps", "suite.gpu.steps", 4, "whole steps beside fused AdamW and torch's own hooks, one rank"),
    Job("streams", "suite.gpu.streams", 4, "frontends over NCCL, raced, beside gloo"),
    Job("session", "suite.gpu.session", 9, "four ranks over shaped links", FILES, PROGRAMS),
    Job("simulation", "suite.gpu.simulation", 8, "simulated training", FILES),
    Job("codecs", "suite.gpu.compressors", 9, "compressors beside a copy"),
    Job("studies", "suite.gpu.studies", 9, "the studies of python-gpt, piece by piece", FILES),
)


def carry_out(command: Sequence[str], limit_s: float, asks: int, ends_s: float) -> int | None:
    """Run a command, which is interrupted where its time is over, and killed where it does not end then.

    It can be interrupted also where this process is a shell's job in the background, which ignores interruptions.

    Args:
        command: In the checkout.
        limit_s: Its time.
        asks: Times that it is interrupted, a second apart: a sweep finishes what is under way unless it is asked twice.
        ends_s: How long it may then take.

    Returns:
        Its exit code; None where its time was over.
    """
    own = signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is ignored would be inherited
    try:
        process = subprocess.Popen(command, cwd=CHECKOUT)
    finally:
        signal.signal(signal.SIGINT, own)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            for _ in range(asks):
                process.send_signal(signal.SIGINT)
                time.sleep(1.0)
            try:
                process.wait(ends_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def run(job: Job, limit_s: float) -> int | None:
    """Run a job; its exit code, None where its time was over."""
    return carry_out([sys.executable, "-m", job.module], limit_s, asks=1, ends_s=ENDS_S)


def work(jobs: Sequence[Job], minutes: float) -> dict[str, str]:
    """Run jobs one after the other, those that go on until nothing is left or the time is over.

    Args:
        jobs: Which of `JOBS`.
        minutes: For all of them.

    Returns:
        How each ended, by name.
    """
    end, ends = time.monotonic() + 60 * minutes, dict.fromkeys((job.name for job in jobs), "not begun")
    for job in jobs:
        if job.lacks:
            ends[job.name] = f"left out, for want of {', '.join(job.lacks)}"
            continue
        while (left_s := end - time.monotonic()) > SHORTEST_S:
            say(f"{job.name}: {job.what}")
            code = run(job, min(LIMIT_S, left_s))
            known = {0: "done", GO_ON: "not all is measured", None: "interrupted, its time was over"}
            ends[job.name] = known.get(code, f"failed, exit code {code}")
            if code != GO_ON:
                break
    return ends


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m suite.gpu", description=__doc__)
    names = [job.name for job in JOBS]
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"which of {', '.join(names)} (default: all)")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all jobs together (default: 60)")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.jobs if name not in names]:
        parser.error(f"no job {', '.join(unknown)}; there are {', '.join(names)}")
    jobs = [job for job in JOBS if job.name in (given.jobs or names)]
    for job in jobs:
        lacks = f"; lacks {', '.join(job.lacks)}" * bool(job.lacks)
        say(f"{job.name:10} about {job.minutes} min: {job.what}{lacks}")
    if given.list:
        return 0
    import torch

    if not torch.cuda.is_available():
        parser.error("there is no GPU here that torch sees")
    signal.signal(signal.SIGTERM, lambda *of: sys.exit(1))  # no job is left behind
    ends = work(jobs, given.minutes)
    for name, how in ends.items():
        say(f"{name}: {how}")
    return 0 if set(ends.values()) == {"done"} else 1


if __name__ == "__main__":
    raise SystemExit(main())
