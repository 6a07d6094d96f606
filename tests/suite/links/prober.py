"""A rank of an emulated cluster that measures what it is told to, line by line; rank 0 answers.

A line on standard input is ``[function of suite.links.probe, arguments...]`` in JSON; an answer is a list of measurements.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys

import torch
import torch.distributed as dist

from suite.links import probe
from suite.links.probe import Measurement


def main() -> None:
    """Join the group that the environment names, then measure until standard input closes."""
    torch.set_num_threads(1)
    with contextlib.suppress(OSError):  # where it may, it goes before other work on the machine
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    dist.init_process_group("gloo")
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        found = getattr(probe, name)(*arguments)
        measured = [found] if isinstance(found, Measurement) else found
        if os.environ["RANK"] == "0":
            sys.stdout.write(
                json.dumps([(m.what, m.bytes, m.seconds, m.bits_per_s) for m in measured]) + "\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
