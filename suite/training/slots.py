"""Slots of the local pool: what each of its workers may use, so that workers do not get into each other's way."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

GPU_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"


class SlotError(ValueError):
    """The slots that were asked for cannot be had here; the message says what to change."""


@dataclass(frozen=True)
class Slot:
    """What one worker and its children may use. gpu: the one that it sees, None: as its parent. cores: none given: as
    its parent."""

    gpu: str | None = None
    cores: tuple[int, ...] = ()

    def enter(self) -> None:
        """Confine this process. Before torch is imported: it looks for GPUs once."""
        if self.gpu is not None:
            os.environ[GPU_VARIABLE] = self.gpu
        if self.cores:
            os.sched_setaffinity(0, self.cores)


def slots(jobs: int | None = None, gpus: Sequence[str] = (), cores: int = 0) -> tuple[Slot, ...]:
    """A slot for each worker.

    jobs: how many, by default one a GPU where some are named, else as many as there are cores for. gpus: dealt to the
    workers in turn, as CUDA names them. cores: of each worker, its own alone; 0: no worker is bound.

    Raises `SlotError` where there are fewer cores, or more GPUs than workers.
    """
    here = sorted(os.sched_getaffinity(0))
    wanted = jobs or len(gpus) or len(here) // max(1, cores)
    if cores and (wanted < 1 or wanted * cores > len(here)):
        raise SlotError(
            f"{max(1, wanted)} workers of {cores} cores need {max(1, wanted) * cores}, and this process may use "
            f"{len(here)}: ask for fewer workers (--jobs) or cores (--cores)"
        )
    if len(set(gpus)) != len(gpus):
        raise SlotError(f"GPUs {','.join(gpus)}: name each once; more workers (--jobs) share them in turn")
    if len(gpus) > wanted:
        raise SlotError(
            f"{wanted} workers for {len(gpus)} GPUs: a worker sees one, so leave --jobs out or name fewer GPUs"
        )
    return tuple(
        Slot(gpus[k % len(gpus)] if gpus else None, tuple(here[k * cores : (k + 1) * cores]))
        for k in range(wanted)
    )
