"""The studies of `python-gpt` that want a GPU, a piece at a time: rates are tuned, then seeds are scored: `make gpu`.

A piece is `bandwise sweep`, interrupted when its time is over; runs lie in results/runs as anybody's, and the next piece goes on
from their checkpoints. To hand results on, copy the folders of that one into results/runs of another checkout: there the same two
commands find every run done, the first writes the file of rates, and `bandwise report` and `bandwise publish` do the rest.

Groups of runs are trained by several processes, since the host of one keeps a GPU busy for a part of the time alone; where
NVIDIA's multi-process service is, they compute on the GPU side by side, else in turns.

A machine without the seven packages takes their text from `PACKED` (`suite.workloads.python_text`) in the folder BANDWISE_DATA.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from suite.gpu.__main__ import carry_out
from suite.gpu.tables import GO_ON, say
from suite.links.cluster import find_program

STUDIES: Final = ("python", "python-2026", "python-3m", "python-10m", "python-16")
"""In the order of what they tell for their time."""
MOST_JOBS: Final = 8
SERVICE: Final = "nvidia-cuda-mps-control"
PIECE_S: Final = 500.0
STOPS_S: Final = 60.0
"""How long a sweep may take to write its checkpoints."""


def commands(names: Sequence[str], cores: int) -> Iterator[list[str]]:
    """What a study is made by, in order. cores: two of which a process has."""
    jobs = str(min(MOST_JOBS, max(1, cores // 2)))
    for name in names:
        for more in (["--tune"], []):
            yield [sys.executable, "-m", "bandwise", "sweep", name, *more, "--gpus", "0", "--jobs", jobs]


@contextmanager
def side_by_side() -> Iterator[None]:
    """The multi-process service, for processes that are started within; nothing where there is none, or it does not start."""
    program = find_program(SERVICE)
    if program is None:
        yield
        return
    with tempfile.TemporaryDirectory(
        prefix="mps-", ignore_cleanup_errors=True
    ) as folder:  # the service ends on its own
        places = dict.fromkeys(("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"), folder)
        with_it = {**os.environ, **places}
        if subprocess.run([program, "-d"], stdin=subprocess.DEVNULL, env=with_it, check=False).returncode:
            yield
            return
        os.environ.update(places)  # processes started from here on take part
        try:
            yield
        finally:
            for name in places:
                del os.environ[name]
            subprocess.run([program], input=b"quit\n", env=with_it, check=False)


def piece(given: Iterator[list[str]], seconds: float = PIECE_S) -> int:
    """Run commands one after the other until they are over, one fails, or the time is.

    Args:
        given: The commands.
        seconds: For all of them.

    Returns:
        0 where all have ended well, `GO_ON` where the time was over, else the exit code of the one that failed.
    """
    end = time.monotonic() + seconds
    for command in given:
        code = carry_out(command, max(0.0, end - time.monotonic()), asks=2, ends_s=STOPS_S)
        if code is None:
            return GO_ON
        if code:
            return code
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m suite.gpu.studies", description=__doc__)
    parser.add_argument("studies", nargs="*", default=STUDIES, help=f"default: {' '.join(STUDIES)}")
    given = parser.parse_args()
    with side_by_side():
        code = piece(commands(given.studies, len(os.sched_getaffinity(0))))
    say({0: "all is trained", GO_ON: "not all is trained: run this again"}.get(code, f"exit code {code}"))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
