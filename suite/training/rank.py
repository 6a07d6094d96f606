"""What a process does that is one rank of a run, whoever started it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from suite.runs.checkpoint import Start
from suite.runs.spec import RunSpec
from suite.runs.status import Status
from suite.training.interruption import Interruption
from suite.training.record import Outcome, failed
from suite.training.watch import CHECKPOINT_S, Watch

TIMEOUT_S: Final = 120.0
"""How long a collective may take before its ranks give up."""


@dataclass(frozen=True)
class Hooks:
    """What the caller wants to be told, and may ask for, while a run on real processes is under way.

    progress: completed steps. saved: step of the checkpoint that stands, and why a newer one could not be written.
    """

    progress: Callable[[int], None] = lambda step: None
    saved: Callable[[int, str], None] = lambda step, problem: None
    interruption: Interruption = field(default_factory=Interruption)
    checkpoint_s: float = CHECKPOINT_S


def as_rank(spec: RunSpec, rank: int, store: Any, start: Start, folder: Path, hooks: Hooks) -> Outcome:
    """Be one rank of a run: form the process group over `store`, train, part. Raises `Interrupted`."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            store=store,
            rank=rank,
            world_size=spec.world_size,
            timeout=timedelta(seconds=TIMEOUT_S),
        )
    except RuntimeError as error:
        first = (str(error).splitlines() or [""])[0]
        return failed(
            spec,
            Status("error", f"rank {rank} could not reach the others ({first}): check GLOO_SOCKET_IFNAME"),
        )
    from suite.training.gloo import train_rank

    watch = Watch(hooks.interruption, hooks.checkpoint_s if rank == 0 else math.inf)
    try:
        return train_rank(spec, start, folder, hooks.progress, watch=watch, saved=hooks.saved)
    finally:
        dist.destroy_process_group()
