"""The studies of `python-gpt` that want a GPU, a piece at a time: rates are tuned, then seeds are scored: `make gpu`.

A piece is `bandwise sweep`, interrupted when its time is over; runs lie in results/runs as anybody's, and the next piece goes on
from their checkpoints. To hand results on, copy the folders of that one into results/runs of another checkout: there the same two
commands find every run done, the first writes the file of rates, and `bandwise report` and `bandwise publish` do the rest.

A machine without the seven packages takes their text from `PACKED` (`suite.workloads.python_text`) in the folder BANDWISE_DATA.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from suite.gpu.__main__ import GO_ON, start, stop
from suite.gpu.tables import say

STUDIES: Final = ("python", "python-3m", "python-10m")
"""In the order of what they tell for their time."""
PIECE_S: Final = 500.0
STOPS_S: Final = 60.0
"""How long a sweep may take to write its checkpoints."""


def commands(names: Sequence[str]) -> Iterator[list[str]]:
    """What a study is made by, in order."""
    for name in names:
        for more in (["--tune"], []):
            yield [sys.executable, "-m", "bandwise", "sweep", name, *more, "--gpus", "0"]


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
        process = start(command)
        try:
            code = process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            stop(process, asks=2, ends_s=STOPS_S)
            return GO_ON
        except KeyboardInterrupt:
            stop(process, asks=2)
            raise
        if code:
            return code
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m suite.gpu.studies", description=__doc__)
    parser.add_argument("studies", nargs="*", default=STUDIES, help=f"default: {' '.join(STUDIES)}")
    code = piece(commands(parser.parse_args().studies))
    say({0: "all is trained", GO_ON: "not all is trained: run this again"}.get(code, f"exit code {code}"))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
