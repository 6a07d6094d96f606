"""Step sizes that shrink with the number of the step, on top of the learning rate that the training gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reference_impls.errors import UnsupportedError, nearest

RULES = ("constant", "power", "inverse")


@dataclass(frozen=True)
class StepSize:
    """eta_t for step t = 1, 2, ... at learning rate lr.

    ``constant``: lr. ``power``: lr t^-exponent. ``inverse``: 1 / (1/lr + slope max(0, t - start)^exponent). Never more
    than `largest`, if that is given.
    """

    rule: Literal["constant", "power", "inverse"] = "constant"
    exponent: float = 0.505
    slope: float = 0.0
    start: int = 0
    largest: float | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UnsupportedError(
                f"the step-size rule must be one of {', '.join(RULES)}; got {self.rule!r}"
                f"{nearest(str(self.rule), RULES)}"
            )
        if not (self.exponent >= 0 and self.slope >= 0 and self.start >= 0):
            raise UnsupportedError(
                f"exponent, slope and start of a step-size rule must not be negative, got {self.exponent}, {self.slope}, "
                f"{self.start}"
            )
        if self.largest is not None and not self.largest > 0:
            raise UnsupportedError(f"the largest step size must be positive, got {self.largest}")

    def __call__(self, t: int, lr: float) -> float:
        if self.rule == "power":
            lr *= t**-self.exponent
        elif self.rule == "inverse" and lr != 0:
            lr = 1 / (1 / lr + self.slope * max(0, t - self.start) ** self.exponent)
        return lr if self.largest is None else min(lr, self.largest)
