"""Processes that train: how they are started, told to stop between two steps, and go on from there to the bit.

*When.* At each boundary training asks: is it time to show life, to save, or to stop? Time decides when, a step decides where:
the action is asked for once a step and holds for its boundary. The wish to stop is a flag that a signal handler may set.
Nothing is done in the handler itself, so a signal in the middle of a collective or of a write does no harm: what is under way
stops at the next boundary, on all ranks at the same one, with a checkpoint.

*What.* Checkpoints hold all that a run needs, in files that are there whole or not at all. A simulated run has one file,
replaced by rename. On real processes each rank writes a file of its own; when all have, rank 0 writes the index that names
their step, and only then removes the older ones, so that a kill at any moment leaves a complete checkpoint, the old or the
new. Files carry the hash of the method's source: what other code has begun is not gone on with. Random streams need no place
in here, since they are functions of seed and step.

    checkpoint.pt                  a simulated run
    checkpoint-<step>-<rank>.pt    a rank of a run on real processes
    checkpoint.json                {schema_version, run_id, source, step, world_size}, the ranks' index
"""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Final

from suite.runs.files import TEMPORARY, dump, replacing, write_atomic
from suite.runs.spec import THREAD_VARIABLES, RunSpec

LOOK_S: Final = 0.1
"""How often a pipe is looked at: a look costs as much as a small step."""


class Interruption:
    """A flag with its reason. The first reason stands."""

    def __init__(self) -> None:
        self._reason: str | None = None

    def request(self, reason: str) -> None:
        """Ask for a stop; safe in a signal handler."""
        if self._reason is None:
            self._reason = reason

    @property
    def requested(self) -> str | None:
        """Why to stop; None while nobody has asked."""
        return self._reason


class PipeStop(Interruption):
    """An interruption that the other end of a pipe asks for, by sending the reason or by going away."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe
        self._next_look = 0.0

    @property
    def requested(self) -> str | None:
        if self._reason is None and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_S
            try:
                if self._pipe.poll():
                    self.request(str(self._pipe.recv()))
            except (EOFError, OSError):
                self.request("the process that started this one has gone")
        return self._reason


class Interrupted(Exception):  # noqa: N818 - nothing is wrong
    """Runs were stopped between two steps. `run_ids`: those that can go on from a checkpoint or from the start."""

    def __init__(self, reason: str, run_ids: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.run_ids = tuple(run_ids)


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """These signals go to a handler, and afterwards where they went before."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, own in before.items():
            signal.signal(number, own)


@contextmanager
def on_signals(*numbers: signal.Signals) -> Iterator[Interruption]:
    """An interruption that these signals ask for; the second one stops at once, by KeyboardInterrupt."""
    asked = Interruption()

    def note(number: int, frame: FrameType | None) -> None:
        if asked.requested is not None:
            raise KeyboardInterrupt
        asked.request(f"stopped by {signal.Signals(number).name}")

    with handling(note, *numbers):
        yield asked


# ---- children with pipes


class Child:
    """A process of this one, and the pipe to it. target: gets its end of the pipe, then the arguments."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *arguments))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        return self._process.exitcode

    def send(self, what: Any) -> None:
        """Tell it something, unless it has gone."""
        with suppress(OSError):
            self.pipe.send(what)

    def receive(self) -> tuple[Any, ...] | None:
        """What it says; None where it has ended, which is waited for."""
        try:
            found: tuple[Any, ...] = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.close()
            return None
        return found

    def close(self) -> None:
        """Wait for its end."""
        self._process.join()
        self.pipe.close()

    def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self.close()


def begin_child() -> None:
    """What a child does first: signals are its parent's affair, and torch, which is not imported yet, has one thread."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))


def exit_text(code: int | None) -> str:
    """An exit code in words; a signal by its name."""
    if code is None or code >= 0:
        return f"exit code {code}"
    meaning = " (out of memory, or killed by hand)" if -code == signal.SIGKILL else ""
    return f"signal {signal.Signals(-code).name}{meaning}"


# ---- what training asks at a boundary

CHECKPOINT_S: Final = 60.0
"""Seconds between two checkpoints unless told otherwise."""
SIGN_OF_LIFE_S: Final = 15.0


class Action(IntEnum):
    """What to do at the boundary, the more urgent the greater."""

    GO = 0
    SAVE = 1
    STOP = 2


@dataclass
class Hooks:
    """What training asks, and whom it tells, between two steps.

    progress: told the completed steps. saved: told the step of the checkpoint that stands, and why a newer one could not be
    written. interruption: may ask for a stop. checkpoint_s: seconds between checkpoints, infinite for none.
    """

    progress: Callable[[int], None] = lambda step: None
    saved: Callable[[int, str], None] = lambda step, problem: None
    interruption: Interruption = field(default_factory=Interruption)
    checkpoint_s: float = math.inf
    _written_s: float = field(default_factory=time.monotonic, init=False)
    _shown_s: float = field(default_factory=time.monotonic, init=False)

    def action(self) -> Action:
        """What this process is for: stop when asked to, save when it is time."""
        if self.interruption.requested is not None:
            return Action.STOP
        return Action.SAVE if time.monotonic() - self._written_s >= self.checkpoint_s else Action.GO

    def written(self) -> None:
        """A checkpoint has been written or tried: the next one is due a full interval from now."""
        self._written_s = time.monotonic()

    def show(self, step: int, evaluated: bool) -> None:
        """Tell `progress` how far the run is: after an evaluation, and where it has been silent for long."""
        now = time.monotonic()
        if evaluated or now - self._shown_s >= SIGN_OF_LIFE_S:
            self._shown_s = now
            self.progress(step)

    @property
    def reason(self) -> str:
        """Why to stop, as far as this process knows."""
        return self.interruption.requested or "another rank was asked to stop"


# ---- checkpoints

CHECKPOINT_SCHEMA: Final = 1
UNREADABLE: Final = (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError)
"""What torch and pickle raise over a file that is damaged."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be gone on from; the message says why."""


@dataclass(frozen=True)
class Checkpoint:
    """A run, or one rank of it, after `step` completed steps.

    source: hash of the method's source. train_s: seconds trained so far, over all attempts. recorder: what a `Recorder` goes on
    from. ledger: rows of `LedgerSums`. state: of the driver, `SimulatedCluster` or one rank's optimizer.
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

    attempt: its number, from 1. step: completed steps of the checkpoint that it goes on from; checkpoint: that itself, None for a
    fresh run and where every rank reads its own.
    """

    attempt: int = 1
    step: int = 0
    checkpoint: Checkpoint | None = None


def whole_path(folder: Path) -> Path:
    """The checkpoint of a simulated run."""
    return folder / "checkpoint.pt"


def rank_path(folder: Path, step: int, rank: int) -> Path:
    """The checkpoint of one rank."""
    return folder / f"checkpoint-{step}-{rank}.pt"


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Put it in the place of `path` in one go. Raises `StoreError`."""
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
        content = torch.load(path, map_location="cpu", weights_only=True)  # a GPU's, where there is none
        _check(content, spec, source)
        return Checkpoint(**{key: content[key] for key in _FIELDS})
    except CheckpointError:
        raise
    except UNREADABLE as error:
        raise CheckpointError(f"{path.name} is damaged ({(str(error).splitlines() or ['?'])[0]})") from error


def publish(folder: Path, spec: RunSpec, source: str, step: int) -> None:
    """Make the files that all ranks have written at `step` the run's checkpoint; older ones go.

    Raises `StoreError`.
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


def set_aside(folder: Path) -> None:
    """Out of the way of a run that cannot go on from it here; another machine may, and until the run ends it is kept."""
    for path in [*folder.glob("checkpoint.json"), *folder.glob("checkpoint*.pt")]:
        path.replace(folder / f"refused-{path.name}")


def remove(folder: Path) -> None:
    """Remove the run's checkpoint, the index first."""
    (folder / "checkpoint.json").unlink(missing_ok=True)
    for path in [whole_path(folder), *folder.glob("refused-checkpoint*")]:
        path.unlink(missing_ok=True)
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
