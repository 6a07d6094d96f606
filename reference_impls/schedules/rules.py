"""Rules for the length of a round of local steps, asked once a round with the learning rate of its first step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from reference_impls.errors import UnsupportedError


class Rule(Protocol):
    """A synchronisation rule."""

    def period(self, step: int, lr: float) -> int:
        """Local steps in the round that begins when `step` steps are complete; lr is that of its first step."""


@dataclass(frozen=True)
class Constant:
    """Rounds of `h` steps; the last one ends at `total` if that is given."""

    h: int
    total: int | None = None

    def __post_init__(self) -> None:
        _positive("period", self.h)

    def period(self, step: int, lr: float) -> int:
        return _cut(self.h, step, self.total)


@dataclass(frozen=True)
class QSR:
    """Quadratic synchronisation rule, H = max(h_base, floor((alpha / lr)^power)). arXiv 2310.14423.

    As in the official code: H = h_warmup (default: h_base) while step < warmup and if alpha = 0; the rate is that of the
    first step of the round; the last round is cut to end at `total`. power 1 and 3 are the linear and cubic rules.
    With a learning rate of 0, or so small that H overflows, the round lasts to `total`, which must then be given
    (`UnsupportedError`).
    """

    alpha: float
    h_base: int
    power: float = 2.0
    warmup: int = 0
    total: int | None = None
    h_warmup: int | None = None

    def __post_init__(self) -> None:
        _positive("h_base", self.h_base)
        if self.h_warmup is not None:
            _positive("h_warmup", self.h_warmup)
        if not self.alpha >= 0 or not self.power > 0:
            raise UnsupportedError(
                f"alpha must be >= 0 and power > 0, got alpha {self.alpha}, power {self.power}"
            )

    def period(self, step: int, lr: float) -> int:
        if step < self.warmup or self.alpha == 0:
            return _cut(self.h_base if self.h_warmup is None else self.h_warmup, step, self.total)
        if not lr >= 0:
            raise UnsupportedError(
                f"the learning rate of step {step} is {lr}; the rule wants one that is not negative"
            )
        try:
            growth = (self.alpha / lr) ** self.power
        except (ZeroDivisionError, OverflowError):
            growth = math.inf
        if (h := max(self.h_base, growth)) < math.inf:
            return _cut(math.floor(h), step, self.total)
        if self.total is None:
            raise UnsupportedError(
                f"with a learning rate of {lr} the round would never end; give total_steps"
            )
        return max(1, self.total - step)


def _cut(h: int, step: int, total: int | None) -> int:
    return max(1, h if total is None else min(h, total - step))


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise UnsupportedError(f"{name} must be at least 1, got {value}")
