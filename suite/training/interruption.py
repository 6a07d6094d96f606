"""What training looks at between two steps: is it time to show life, to save, or to stop?

Time decides when, a step decides where: the action is asked for once a step and holds for its boundary. The wish to
stop is a flag that a signal handler may set. Nothing is done in the handler itself, so a signal in the middle of a
collective or of a write does no harm: what is under way stops at the next boundary, on all ranks at the same one,
with a checkpoint.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from multiprocessing.connection import Connection
from types import FrameType
from typing import Final

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
        """Why to stop; None while nobody has asked."""
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
def on_signals(*numbers: signal.Signals) -> Iterator[Interruption]:
    """An interruption that these signals ask for; the second one stops at once, by KeyboardInterrupt."""
    asked = Interruption()

    def note(number: int, frame: FrameType | None) -> None:
        if asked.requested is not None:
            raise KeyboardInterrupt
        asked.request(f"stopped by {signal.Signals(number).name}")

    held = {number: signal.signal(number, note) for number in numbers}
    try:
        yield asked
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)


CHECKPOINT_S: Final = 60.0
"""Seconds between two checkpoints unless told otherwise."""
SIGN_OF_LIFE_S: Final = 15.0


class Action(IntEnum):
    """What to do at the boundary, the more urgent the greater."""

    GO = 0
    SAVE = 1
    STOP = 2


class CheckpointPolicy:
    """Asked between steps. checkpoint_s: seconds between checkpoints, infinite for none."""

    def __init__(self, interruption: Interruption | None = None, checkpoint_s: float = math.inf) -> None:
        self._interruption = interruption or Interruption()
        self._checkpoint_s = checkpoint_s
        self._saved = self._shown = time.monotonic()

    def order(self) -> Action:
        """What this process is for: stop when asked to, save when it is time."""
        if self._interruption.requested is not None:
            return Action.STOP
        return Action.SAVE if time.monotonic() - self._saved >= self._checkpoint_s else Action.GO

    def saved(self) -> None:
        """A checkpoint has been written or tried: the next one is due a full interval from now."""
        self._saved = time.monotonic()

    def silent(self) -> bool:
        """Whether it is time for a sign of life; counts as given."""
        now = time.monotonic()
        if now - self._shown < SIGN_OF_LIFE_S:
            return False
        self._shown = now
        return True

    @property
    def reason(self) -> str:
        """Why to stop, as far as this process knows."""
        return self._interruption.requested or "another rank was asked to stop"


@dataclass(frozen=True)
class Hooks:
    """What the caller wants to be told, and may ask for, while a run on real processes is under way.

    progress: completed steps. saved: step of the checkpoint that stands, and why a newer one could not be written.
    """

    progress: Callable[[int], None] = lambda step: None
    saved: Callable[[int, str], None] = lambda step, problem: None
    interruption: Interruption = field(default_factory=Interruption)
    checkpoint_s: float = CHECKPOINT_S
