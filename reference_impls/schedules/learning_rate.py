"""Learning-rate schedules as functions of the step, as the official QSR code defines them (arXiv 2310.14423).

With W warm-up steps, T steps in all, lowest rate m, peak M and u = (t - W) / (T - W): warm-up m + t (M - m) / W for
t < W; cosine m + (M - m) (1 + cos(pi u)) / 2; linear m + (1 - u) (M - m); step M gamma^k after k milestones;
cosine_step the cosine rounded to the nearest integer power of `base`; constant M. Beyond T the rate stays as it is at T.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reference_impls.errors import UnsupportedError, nearest

SCHEDULES = ("constant", "cosine", "linear", "step", "cosine_step")


@dataclass(frozen=True)
class LearningRate:
    """A schedule; calling it with the number of completed steps gives the rate of the next step.

    peak, min: highest and lowest rate. warmup, total: steps. milestones, gamma: for `step`. base: for `cosine_step`.
    Raises `UnsupportedError` for an unknown schedule or impossible numbers.
    """

    schedule: str = "cosine"
    peak: float = 1e-3
    min: float = 0.0
    warmup: int = 0
    total: int = 1
    milestones: tuple[int, ...] = ()
    gamma: float = 0.1
    base: float = 2.0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise UnsupportedError(
                f"no learning-rate schedule {self.schedule!r}{nearest(self.schedule, SCHEDULES)}"
            )
        if not 0 <= self.min <= self.peak or not math.isfinite(self.peak):
            raise UnsupportedError(
                f"learning rates must satisfy 0 <= min <= peak < inf, got min {self.min}, peak {self.peak}"
            )
        if self.total < 1 or not 0 <= self.warmup <= self.total:
            raise UnsupportedError(
                f"steps must satisfy 0 <= warmup <= total and total >= 1, got {self.warmup}, {self.total}"
            )
        if not self.gamma > 0 or not self.base > 1:
            raise UnsupportedError(
                f"gamma must be > 0 and base > 1, got gamma {self.gamma}, base {self.base}"
            )

    def __call__(self, step: int) -> float:
        """The learning rate of the step taken when `step` steps are complete."""
        if step < self.warmup:
            return self.min + step * (self.peak - self.min) / self.warmup
        if self.schedule == "constant":
            return self.peak
        if self.schedule == "step":
            return self.peak * self.gamma ** sum(step >= m for m in self.milestones)
        u = min((step - self.warmup) / max(self.total - self.warmup, 1), 1.0)
        if self.schedule == "linear":
            return self.min + (1 - u) * (self.peak - self.min)
        cosine = self.min + 0.5 * (self.peak - self.min) * (1 + math.cos(math.pi * u))
        if self.schedule == "cosine":
            return cosine
        return self.base ** round(math.log(cosine, self.base)) if cosine > 0 else 0.0
