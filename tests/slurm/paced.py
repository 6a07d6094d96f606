"""A method for tests that take runs away in the middle: local AdamW that can be slowed down, and held.

Both are said by the environment and so are no part of a run's identity: a run that takes a minute in a job is trained
again in a moment, to the bit. It is found through an entry point, as any method of another package; `install` makes one.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reference_impls.algorithms.local_updates import PeriodicAveraging
from reference_impls.core.algorithm import TrainState, option
from reference_impls.core.catalogue import Entry
from reference_impls.core.collectives import Exchange
from reference_impls.core.registry import registry

NAME: Final = "paced-adamw"
PACE_S: Final = "TEST_PACE_S"
"""Variable: seconds that every worker rests before a step. Without it there is no rest."""
HOLD: Final = "TEST_HOLD"
"""Variable: a folder. The first job whose run completes `HELD_AT` steps goes on; others leave their node's name there and wait
for `GO` in it."""
HELD_AT: Final = 50
FREE: Final = "free"
GO: Final = "go"


def wait(folder: Path) -> None:
    """Wait until `GO` is in the folder, unless this job was the first to come."""
    job = os.environ["SLURM_JOB_ID"]
    with contextlib.suppress(FileExistsError), (folder / FREE).open("x", encoding="utf-8") as first:
        first.write(job)
    if (folder / FREE).read_text(encoding="utf-8") == job:
        return
    (folder / os.environ["SLURMD_NODENAME"]).touch()
    while not (folder / GO).exists():
        time.sleep(0.02)


@dataclass(frozen=True)
class PacedAdamW(PeriodicAveraging):
    """Local AdamW with rounds of three steps."""

    optimizer: str = option("adamw", "what a worker steps with")
    period: int = option(3, "H: local steps in a round")

    def plan(self, train_state: TrainState) -> Exchange[str] | str:
        time.sleep(float(os.environ.get(PACE_S, "0")))
        if train_state.step == HELD_AT and HOLD in os.environ:
            wait(Path(os.environ[HOLD]))
        return super().plan(train_state)


def install(folder: Path) -> str:
    """Make the method known here, and to every Python that has `folder` on its path; returns the folder."""
    told = folder / "paced-1.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: paced\nVersion: 1\n", encoding="utf-8")
    (told / "entry_points.txt").write_text(
        f"[bandwise.algorithms]\n{NAME} = {__name__}:PacedAdamW\n", encoding="utf-8"
    )
    if NAME not in registry.names():
        registry.add(NAME, Entry(f"{__name__}:PacedAdamW", "plugin", "", ""))
    return str(folder)
