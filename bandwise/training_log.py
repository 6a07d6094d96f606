"""What a step sent and what its loss was, step by step, to the tracker that a training already has.

    log = TrainingLog(optimizer.ledger, wandb.run, "bytes.csv")     # or SummaryWriter(...), mlflow, a function
    for step, batch in enumerate(batches):
        ...
        optimizer.step()
        log(step, loss=loss)

Any ledger will do: of `DataParallelOptimizer`, of `ddp_hook`'s state, of `fsdp_hook`.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from reference_impls.core.collectives import Ledgers
from reference_impls.core.options import scalars

Write = Callable[[Mapping[str, float], int], object]
"""Takes values by name, and the step that they are of."""
COLUMNS = ("step", "name", "value")


class TrackerError(TypeError):
    """Something that is given as a tracker takes no values in a known way."""


class TrainingLog:
    """Writes a training's bytes and losses to trackers.

    Every call takes the ledger's rows over and clears it, so that a long training keeps no row for each of its steps.

    Args:
        ledger: Of an optimizer, a hook or a `SimulatedCluster`, where the bytes of rank 0 are written.
        trackers: Each a wandb run (it has ``log``), a tensorboard ``SummaryWriter`` (``add_scalar``), the module mlflow or a
            Lightning logger (``log_metrics``), a path of a CSV file with columns step, name, value (it is written anew), or a
            function of (values, step). Give them on one rank only, unless every rank's bytes are wanted.

    Raises:
        TrackerError: A tracker is none of these.
    """

    def __init__(self, ledger: Ledgers, *trackers: Any) -> None:
        self._ledger = ledger
        self._writes = [_write_of(tracker) for tracker in trackers]
        self._sent = 0.0

    def __call__(self, step: int, **values: Any) -> dict[str, float]:
        """Write what was sent since the call before.

        Args:
            step: Number of the step; it rises from call to call.
            values: Whatever else is known of the step, for example ``loss=loss``: numbers, or tensors of one element.

        Returns:
            All that was written: the values; `calls`, collectives since the call before; `wire_bytes/STAGE` of each stage and
            `wire_bytes`, bytes that this rank sent in them; `wire_bytes_total`, in all calls together.

        Raises:
            UsageError: A tensor has several elements; it is named.
        """
        values = scalars(values)
        rows = self._ledger.totals()
        self._ledger.clear()
        rows = [row for row in rows if row["rank"] == rows[0]["rank"]]
        stages: dict[str, float] = {}
        for row in rows:
            name = f"wire_bytes/{row['stage']}"
            stages[name] = stages.get(name, 0.0) + row["wire_bytes"]
        sent = sum(stages.values())
        self._sent += sent
        found = {
            **values,
            "calls": float(sum(row["calls"] for row in rows)),
            **stages,
            "wire_bytes": sent,
            "wire_bytes_total": self._sent,
        }
        for write in self._writes:
            write(found, step)
        return found


def _write_of(tracker: Any) -> Write:
    if isinstance(tracker, str | Path):
        return _csv(Path(tracker))
    if hasattr(tracker, "add_scalar"):  # a SummaryWriter takes one value a call

        def scalars(values: Mapping[str, float], step: int) -> None:
            for name, value in values.items():
                tracker.add_scalar(name, value, global_step=step)

        return scalars
    if hasattr(tracker, "log_metrics"):  # mlflow as a module, and Lightning's loggers
        return lambda values, step: tracker.log_metrics(dict(values), step=step)
    if hasattr(tracker, "log"):  # a wandb run
        return lambda values, step: tracker.log(dict(values), step=step)
    if callable(tracker):
        return lambda values, step: tracker(values, step)
    raise TrackerError(
        f"{tracker!r} takes no values: give a wandb run, a SummaryWriter, the module mlflow, a Lightning logger, the path of "
        "a CSV file, or a function of (values, step)"
    )


def _csv(path: Path) -> Write:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow(COLUMNS)

    def append(values: Mapping[str, float], step: int) -> None:
        with path.open("a", newline="", encoding="utf-8") as lines:
            csv.writer(lines).writerows((step, name, value) for name, value in values.items())

    return append
