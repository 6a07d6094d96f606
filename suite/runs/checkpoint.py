"""Checkpoints: all that a run needs to go on to the bit, in files that are there whole or not at all.

A simulated run has one file, replaced by rename. On real processes each rank writes a file of its own; when all have,
rank 0 writes the index that names their step, and only then removes the older ones, so that a kill at any moment
leaves a complete checkpoint, the old or the new. Files carry the hash of the method's source: what other code has
begun is not gone on with. Random streams need no place in here, since they are functions of seed and step.

    checkpoint.pt                  a simulated run
    checkpoint-<step>-<rank>.pt    a rank of a run on real processes
    checkpoint.json                {schema_version, run_id, source, step, world_size}, the ranks' index
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suite.runs.files import TEMPORARY, dump, replacing, write_atomic
from suite.runs.spec import RunSpec

CHECKPOINT_SCHEMA: Final = 1
UNREADABLE: Final = (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError)
"""What torch and pickle raise over a file that is damaged."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be gone on from; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """A run, or one rank of it, after `step` completed steps.

    source: hash of the method's source. train_s: seconds trained so far, over all attempts. recorder: `Recorder.state`.
    ledger: rows of `LedgerSums`. state: of the driver, `SimulatedCluster` or one rank's optimizer.
    """

    run_id: str
    source: str
    step: int
    train_s: float
    recorder: Mapping[str, Any]
    ledger: Sequence[Mapping[str, Any]]
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Start:
    """How an attempt at a run begins.

    attempt: its number, from 1. lost_s: seconds that earlier ones trained in vain. step: completed steps of the
    checkpoint that it goes on from; checkpoint: that itself, None for a fresh run and where every rank reads its own.
    """

    attempt: int = 1
    lost_s: float = 0.0
    step: int = 0
    checkpoint: Checkpoint | None = None


def whole_path(folder: Path) -> Path:
    """The checkpoint of a simulated run."""
    return folder / "checkpoint.pt"


def rank_path(folder: Path, step: int, rank: int) -> Path:
    """The checkpoint of one rank."""
    return folder / f"checkpoint-{step}-{rank}.pt"


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Put it in the place of `path` in one go. Raises `StoreError`, `StoreFullError`."""
    import torch

    content = {"schema_version": CHECKPOINT_SCHEMA, **{k: getattr(checkpoint, k) for k in _FIELDS}}
    buffer = io.BytesIO()  # so that a full disk is met by one write of our own
    torch.save(content, buffer)
    with replacing(path) as file:
        file.write(buffer.getbuffer())


def read(path: Path, spec: RunSpec, source: str) -> Checkpoint | None:
    """The checkpoint, or None where there is none. Raises `CheckpointError` for one of no use to this code."""
    import torch

    if not path.exists():
        return None
    try:
        content = torch.load(path, weights_only=True)
        _check(content, spec, source)
        return Checkpoint(**{key: content[key] for key in _FIELDS})
    except CheckpointError:
        raise
    except UNREADABLE as error:
        raise CheckpointError(f"{path.name} is damaged ({(str(error).splitlines() or ['?'])[0]})") from error


def publish(folder: Path, spec: RunSpec, source: str, step: int) -> None:
    """Make the files that all ranks have written at `step` the run's checkpoint; older ones go.

    Raises `StoreError`, `StoreFullError`.
    """
    index = {
        "schema_version": CHECKPOINT_SCHEMA,
        "run_id": spec.run_id,
        "source": source,
        "step": step,
        "world_size": spec.world_size,
    }
    write_atomic(folder / "checkpoint.json", dump(index) + "\n")
    clean(folder, step)


def published(folder: Path, spec: RunSpec, source: str) -> int | None:
    """The step that the ranks' checkpoint stands at, None where there is none. Raises `CheckpointError`."""
    path = folder / "checkpoint.json"
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        _check(index, spec, source)
        step = int(index["step"])
    except FileNotFoundError:
        return None
    except CheckpointError:
        raise
    except UNREADABLE as error:
        raise CheckpointError(f"{path.name} is damaged ({error})") from error
    missing = [r for r in range(spec.world_size) if not rank_path(folder, step, r).exists()]
    if missing:
        raise CheckpointError(f"the checkpoint at step {step} lacks the files of ranks {missing}")
    return step


def clean(folder: Path, step: int) -> None:
    """Remove the ranks' files of other steps than `step`, and half-written ones of processes that were killed."""
    for path in [*folder.glob("checkpoint-*-*.pt"), *folder.glob(f".checkpoint*{TEMPORARY}")]:
        if not path.name.startswith(f"checkpoint-{step}-"):
            path.unlink(missing_ok=True)


def remove(folder: Path) -> None:
    """Remove the run's checkpoint, the index first."""
    (folder / "checkpoint.json").unlink(missing_ok=True)
    whole_path(folder).unlink(missing_ok=True)
    clean(folder, 0)


_FIELDS: Final = tuple(Checkpoint.__dataclass_fields__)


def _check(content: Mapping[str, Any], spec: RunSpec, source: str) -> None:
    """Raise `CheckpointError` for a checkpoint of another format, run or code."""
    if content["schema_version"] != CHECKPOINT_SCHEMA:
        raise CheckpointError(f"it has schema version {content['schema_version']}")
    if content["run_id"] != spec.run_id:
        raise CheckpointError(f"it is of run {content['run_id']}")
    if content["source"] != source:
        raise CheckpointError("it was begun by other code of the method")
