"""The wish that runs stop: a flag that a signal handler may set and that training looks at between steps.

Nothing is done in the handler itself, so a signal in the middle of a collective or of a write does no harm. What is
under way stops at the next boundary between steps, on all ranks at the same one, with a checkpoint.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


class Told(Interruption):
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
