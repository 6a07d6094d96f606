"""What training looks at between two steps: is it time to show life, to save, or to stop?

Time decides when, a step decides where: the order is asked for once a step and holds for its boundary.
"""

from __future__ import annotations

import math
import time
from enum import IntEnum
from typing import Final

from suite.training.interruption import Interruption

CHECKPOINT_S: Final = 60.0
"""Seconds between two checkpoints unless told otherwise."""
SIGN_OF_LIFE_S: Final = 15.0


class Order(IntEnum):
    """What to do at the boundary, the more urgent the greater."""

    GO = 0
    SAVE = 1
    STOP = 2


class Watch:
    """Asked between steps. checkpoint_s: seconds between checkpoints, infinite for none."""

    def __init__(self, interruption: Interruption | None = None, checkpoint_s: float = math.inf) -> None:
        self._interruption = interruption or Interruption()
        self._checkpoint_s = checkpoint_s
        self._saved = self._shown = time.monotonic()

    def order(self) -> Order:
        """What this process is for: stop when asked to, save when it is time."""
        if self._interruption.requested is not None:
            return Order.STOP
        return Order.SAVE if time.monotonic() - self._saved >= self._checkpoint_s else Order.GO

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
