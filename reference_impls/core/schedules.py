"""What changes with the step: learning rates, when workers meet, and bits a coordinate. Plain Python: read without torch.

Learning rates are functions of the step, as the official QSR code defines them (arXiv 2310.14423).
With W warm-up steps, T steps in all, lowest rate m, peak M and u = (t - W) / (T - W): warm-up m + t (M - m) / W for
t < W; cosine m + (M - m) (1 + cos(pi u)) / 2; linear m + (1 - u) (M - m);
cosine_step the cosine rounded to the nearest integer power of `base`; constant M. Beyond T the rate stays as it is at T.

Rules say when workers that step locally meet: after rounds of H steps (`Constant`), of more steps as the learning rate falls
(`QSR`), of fewer as the loss falls (`AdaComm`); `AfterSwitch` has data-parallel steps come first.

DQ-SGD (arXiv 2107.14575): B bits are a sign and s = 2^(B-1) - 1 levels of the norm |g|. Least sum of weight_n |g_n|^2 /
s_n^2 for a given sum of B_n, for many levels: s_n = factor |g_n| sqrt(weight_n), so B_n = 1 + log2(1 + s_n), and the step
|g_n| / s_n of the quantiser does not depend on the gradient. Weights: 1 (non-convex), or contraction^(N-n) with N-n steps
to go (strongly convex; contraction = 1 - 2 mu lr + L mu lr^2 there).

AdaQS: twice as many levels, one bit more, whenever the ratio of the gradient's mean to its deviation has halved.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from reference_impls.core.errors import UnsupportedError, UsageError, nearest

if TYPE_CHECKING:
    from reference_impls.core.algorithm import TrainState
    from reference_impls.core.collectives import Exchange

# ---- learning rates --------------------------------------------------------------------------------------------------

SCHEDULES = ("constant", "cosine", "linear", "cosine_step")


@dataclass(frozen=True)
class LearningRate:
    """A schedule; calling it with the number of completed steps gives the rate of the next step.

    peak, min: highest and lowest rate. warmup, total: steps. base: for `cosine_step`.
    Raises `UnsupportedError` for an unknown schedule or impossible numbers.
    """

    schedule: str = "cosine"
    peak: float = 1e-3
    min: float = 0.0
    warmup: int = 0
    total: int = 1
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
        if not self.base > 1:
            raise UnsupportedError(f"base must be > 1, got {self.base}")

    def __call__(self, step: int) -> float:
        """The learning rate of the step taken when `step` steps are complete."""
        if step < self.warmup:
            return self.min + step * (self.peak - self.min) / self.warmup
        if self.schedule == "constant":
            return self.peak
        u = min((step - self.warmup) / max(self.total - self.warmup, 1), 1.0)
        if self.schedule == "linear":
            return self.min + (1 - u) * (self.peak - self.min)
        cosine = self.min + 0.5 * (self.peak - self.min) * (1 + math.cos(math.pi * u))
        if self.schedule == "cosine":
            return cosine
        return self.base ** round(math.log(cosine, self.base)) if cosine > 0 else 0.0


# ---- when workers meet -----------------------------------------------------------------------------------------------


class Rule(Protocol):
    """When workers meet. What it counts lies in ``train_state.counters``, and so in checkpoints."""

    def plan(self, train_state: TrainState) -> Exchange[str] | str:
        """The kind of the step: ``average`` ends a round of ``local`` ones; ``step`` is data-parallel."""


@dataclass(frozen=True)
class Rounds(ABC):
    """A rule that is asked for the length of a round once, at its first step; the last round ends at `total`, if given."""

    @abstractmethod
    def period(self, step: int, lr: float) -> int:
        """Local steps in the round that begins when `step` steps are complete; lr is that of its first step."""

    def plan(self, train_state: TrainState) -> str:
        left = int(train_state.counters.get("left", 0)) or self.period(train_state.step, train_state.lr)
        train_state.counters["left"] = left - 1
        return "local" if left > 1 else "average"


@dataclass(frozen=True)
class Constant(Rounds):
    """Rounds of `h` steps."""

    h: int
    total: int | None = None

    def period(self, step: int, lr: float) -> int:
        return _cut(self.h, step, self.total)


@dataclass(frozen=True)
class QSR(Rounds):
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


@dataclass(frozen=True)
class AfterSwitch:
    """Data-parallel steps until `at` of them are complete; then `rounds`, the first of which begins there.

    accuracy: the switch comes as soon as workers are told this much on average. They see other accuracies, so they ask for
    the mean; one that was told none holds all back.
    """

    rounds: Rounds
    at: int
    accuracy: float | None = None

    def plan(self, train_state: TrainState) -> Exchange[str] | str:
        if train_state.counters.get("switched", 0) or train_state.step >= self.at:
            return self.rounds.plan(train_state)
        return "step" if self.accuracy is None else self._agreed(train_state, self.accuracy)

    def _agreed(self, train_state: TrainState, wanted: float) -> Exchange[str]:
        mean = yield from _mean(train_state, train_state.observed.get("accuracy", -math.inf), "accuracy")
        if not mean >= wanted:
            return "step"
        train_state.counters["switched"] = 1
        return self.rounds.plan(train_state)


@dataclass(frozen=True)
class AdaComm:
    """Rounds of `first` steps, whose length changes `every` so many steps with the mean loss over workers and the rate.

    With tau_0 = `first`, F the loss and g the learning rate at the beginning (0) and now:

    - ``paper``: ceil(sqrt(F / F_0 g_0 / g) tau_0), and if that is not shorter than the present round, ceil(`decay` times
      it): rounds only ever shorten.
    - ``paddle``: ceil(sqrt(F / F_0 g_0 / g tau_0)), from 1 to 16 (PaddlePaddle's LocalSGD).

    NaN and infinite ratios keep the present length, so that a training that diverges is seen as one.
    """

    first: int
    every: int
    decay: float
    form: Literal["paper", "paddle"]
    total: int | None = None

    def plan(self, train_state: TrainState) -> Exchange[str]:
        counters = train_state.counters
        if not counters.get("left", 0) and train_state.step >= counters.get("adapt_at", 0):
            yield from self._adapt(train_state)
        return Constant(int(counters["period"]), self.total).plan(train_state)

    def _adapt(self, train_state: TrainState) -> Exchange[None]:
        """Agree on the loss and set the length of the next rounds."""
        if "loss" not in train_state.observed:
            raise UsageError(
                "AdaComm plans by the loss: call optimizer.observe(loss=...) before each backward pass"
            )
        loss = yield from _mean(train_state, train_state.observed["loss"], "loss")
        if loss < 0:
            raise UnsupportedError(f"the loss is {loss}: AdaComm needs one that is never negative")
        counters = train_state.counters
        counters["adapt_at"] = train_state.step + self.every
        if "first_loss" not in counters:
            counters.update(first_loss=loss, first_lr=train_state.lr, period=self.first)
            return
        ratio = _ratio(loss, counters["first_loss"]) * _ratio(counters["first_lr"], train_state.lr)
        counters["period"] = self.next_period(int(counters["period"]), ratio)

    def next_period(self, period: int, ratio: float) -> int:
        """The length after `period`; ratio: F / F_0 g_0 / g."""
        if not math.isfinite(ratio):
            return period
        if self.form == "paddle":
            return max(1, min(16, math.ceil(math.sqrt(ratio * self.first))))
        proposed = max(1, math.ceil(math.sqrt(ratio) * self.first))
        return proposed if proposed < period else max(1, math.ceil(self.decay * period))


def _mean(train_state: TrainState, value: float, stage: str) -> Exchange[float]:
    """The mean over all workers of a number that each was told."""
    import torch  # here, since schedules are read without it

    from reference_impls.core import compute

    own = compute.sent(torch.tensor([value], dtype=torch.float64), train_state.device)
    return float((yield from train_state.world.mean(own, stage)))


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.inf


# ---- bits a coordinate -----------------------------------------------------------------------------------------------

_SAMPLES = 64


def wanted_levels(factor: float, norm: float, contraction: float = 1.0, left: float = 0.0) -> float:
    """s of the rule, a real number: factor contraction^(left/2) |g|."""
    return float(factor * contraction ** (left / 2) * norm)


def nominal_bits(wanted: float) -> float:
    """B = 1 + log2(1 + s), before rounding."""
    return 1 + math.log2(1 + wanted)


def whole_bits(nominal: float, least: int, most: int) -> int:
    """Up to the next integer, within least .. most; `most` for what is not a number."""
    return max(least, math.ceil(min(nominal, most))) if nominal == nominal else most


def factor_for(
    bits: float,
    norm: float,
    contraction: float = 1.0,
    left: int = 1,
    least: float = 1,
    most: float = math.inf,
) -> float:
    """The factor by which the next `left` steps, if |g| stays at `norm`, take `bits` nominal bits on average.

    Each step's bits are cut to least .. most, so `bits` must lie strictly between. Steps are sampled. 0 where the norm is 0
    or not finite.
    """
    if not 0 < norm < math.inf:
        return 0.0
    if contraction == 1:
        return math.expm1((bits - 1) * math.log(2)) / norm
    count = min(left, _SAMPLES)
    logs = [0.5 * math.log(contraction) * (left - (i + 0.5) * left / count) for i in range(count)]

    def mean(log_factor: float) -> float:
        total = 0.0
        for log_weight in logs:
            log_s = log_factor + log_weight
            nominal = 1 + (log_s / math.log(2) if log_s > 40 else math.log1p(math.exp(log_s)) / math.log(2))
            total += min(max(nominal, least), most)
        return total / count

    low, high = -60.0, 60.0 - min(logs)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) < bits else (low, middle)
    return math.exp(min(high, 600.0)) / norm


def doubled(bits: int, ratio: float, reference: float, fall: float) -> tuple[int, float]:
    """AdaQS's (bits, reference) after a look at `ratio`; reference: the highest ratio since the last bit was added.

    One bit more, and a new reference, if the ratio has fallen to reference / fall.
    """
    return (bits + 1, ratio) if ratio * fall <= reference else (bits, max(ratio, reference))
