"""Local updates by other rules than a constant or QSR's: post-local SGD, SWAP, AdaComm. 1808.07217, 2001.02312, 1810.08313.

Post-local SGD is data-parallel up to a switch, then takes rounds of H local steps. SWAP is data-parallel up to a switch,
then every worker goes on alone to the end, where weights are averaged once. AdaComm starts with long rounds and shortens
them as the loss falls. (The linear and the cubic rule are QSR's with another power.)

Differences: none of the three papers could be read beyond the abstract; code of others was. Before the switch gradients are
averaged (post-local SGD's code averages parameters every step: the same for SGD, not for AdamW); rounds begin at the switch
(there they follow a global index, and the first may be shorter). SWAP stops its first phase at a training accuracy: here
at a step, or when ``observe(accuracy=...)``, averaged over workers (8 bytes a step), reaches `switch_accuracy`; smaller
batches and rates of its second phase belong to the schedule. AdaComm's intervals are counted in steps (there in seconds),
since a run must not depend on the machine; it plans by the loss told to ``observe(loss=...)``, averaged over workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from reference_impls import wire
from reference_impls.algorithm import Algorithm, Clock, Cost, Shard, option
from reference_impls.algorithms.all_reduce import AllReduce
from reference_impls.algorithms.local_updates import TimedAsLocalSGD
from reference_impls.algorithms.model_averaging import (
    average,
    begin_round,
    round_kind,
)
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError, UsageError
from reference_impls.schedules.rules import Constant


@dataclass(frozen=True)
class Switching(TimedAsLocalSGD):
    """Data-parallel training (kind ``step``) until a switch, then rounds (``local``, ``average``); `plan` is the methods' own."""

    switch_step: int | None = option(
        None, "first step of the second phase; default: half of total_steps", ge=0
    )

    @property
    def switch(self) -> int | None:
        """The first step of the second phase."""
        if self.switch_step is not None or self.total_steps is None:
            return self.switch_step
        return self.total_steps // 2

    def check(self, world: Group) -> None:
        super().check(world)
        if self.switch is None:
            raise UnsupportedError(
                "say when data-parallel training ends: switch_step >= 0, or total_steps, half of which it then is"
            )

    def reduce(self, shard: Shard) -> Exchange[Tensor] | Tensor:
        if shard.kind == "step":
            return shard.world.mean(shard.grads, "gradient")
        if shard.step == 0:
            begin_round(self, shard)
        return shard.grads  # a step of the local optimizer

    def synchronize(self, shard: Shard) -> Exchange[None]:
        if shard.kind == "average":
            yield from average(self, shard)
        elif shard.kind == "step":
            begin_round(self, shard)

    def steady(self) -> Mapping[str, Algorithm]:
        return {"step": AllReduce(optimizer=self.optimizer), **super().steady()}

    def wire_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Mapping[str, Cost]:
        return {"step": wire.all_reduce(4 * wire.elements(shapes), n), **super().wire_bytes(shapes, n)}


@dataclass(frozen=True)
class PostLocal(Switching):
    """Post-local SGD: H = 1 by gradients until the switch, then rounds of `period` steps."""

    period: int = option(16, "H: local steps in a round after the switch", ge=1)

    def plan(self, clock: Clock) -> str:
        assert self.switch is not None  # check() has refused it
        if clock.step < self.switch:
            return "step"
        return round_kind(clock, Constant(self.period, total=self.total_steps))


@dataclass(frozen=True)
class SWAP(Switching):
    """Stochastic weight averaging in parallel: one round from the switch to the end."""

    switch_accuracy: float | None = option(
        None,
        "switch as soon as observe(accuracy=...) tells this much on average, at the latest at switch_step",
    )

    def check(self, world: Group) -> None:
        if self.total_steps is None:
            raise UnsupportedError("SWAP averages once, at the end of training: give total_steps")
        super().check(world)

    @property
    def plans_from_data(self) -> bool:
        return self.switch_accuracy is not None

    def plan(self, clock: Clock) -> Exchange[str] | str:
        assert self.switch is not None  # check() has refused it
        if clock.counters.get("switched", 0) or clock.step >= self.switch:
            return self._last_round(clock)
        return "step" if self.switch_accuracy is None else self._agreed(clock, self.switch_accuracy)

    def _agreed(self, clock: Clock, wanted: float) -> Exchange[str]:
        """Workers see other accuracies: all switch by their mean. A worker that was told none holds all back."""
        own = torch.tensor(
            [clock.observed.get("accuracy", -math.inf)], dtype=torch.float64, device=clock.device
        )
        if float((yield from clock.world.mean(own, "accuracy"))) >= wanted:
            clock.counters["switched"] = 1
            return self._last_round(clock)
        return "step"

    def _last_round(self, clock: Clock) -> str:
        assert self.total_steps is not None  # check() has refused it
        return round_kind(clock, Constant(self.total_steps, total=self.total_steps))

    def wire_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Mapping[str, Cost]:
        agreed = {} if self.switch_accuracy is None else {"plan": wire.all_reduce(8, n)}
        return {**agreed, **super().wire_bytes(shapes, n)}


@dataclass(frozen=True)
class AdaComm(TimedAsLocalSGD):
    """Rounds whose length follows the root of the loss. Kinds of step: ``local``, ``average``."""

    first_period: int = option(16, "tau_0: steps of the first rounds", ge=1)
    adapt_every: int = option(100, "steps between changes of the length", ge=1)
    decay: float = option(
        0.5, "gamma: what a round shrinks by when the loss alone does not shorten it (paper)", gt=0, le=1
    )
    form: Literal["paper", "paddle"] = option(
        "paper", "paper, or paddle: tau_0 inside the root, from 1 to 16"
    )

    @property
    def plans_from_data(self) -> bool:
        return True

    def plan(self, clock: Clock) -> Exchange[str]:
        counters = clock.counters
        if not counters.get("left", 0) and clock.step >= counters.get("adapt_at", 0):
            yield from self._adapt(clock)
        return round_kind(clock, Constant(int(counters["period"]), total=self.total_steps))

    def _adapt(self, clock: Clock) -> Exchange[None]:
        """Agree on the loss and set the length of the next rounds."""
        if "loss" not in clock.observed:
            raise UsageError(
                "AdaComm plans by the loss: call optimizer.observe(loss=...) before each backward pass"
            )
        own = torch.tensor([clock.observed["loss"]], dtype=torch.float64, device=clock.device)
        loss = float((yield from clock.world.mean(own, "loss")))
        if loss < 0:
            raise UnsupportedError(f"the loss is {loss}: AdaComm needs one that is never negative")
        counters = clock.counters
        counters["adapt_at"] = clock.step + self.adapt_every
        if "first_loss" not in counters:
            counters.update(first_loss=loss, first_lr=clock.lr, period=self.first_period)
            return
        counters["period"] = adacomm_period(
            int(counters["period"]), self.first_period, _ratio(loss, counters["first_loss"]),
            _ratio(counters["first_lr"], clock.lr), self.decay, self.form,
        )  # fmt: skip

    def reduce(self, shard: Shard) -> Tensor:
        if shard.step == 0:
            begin_round(self, shard)
        return shard.grads  # a step of the local optimizer

    def synchronize(self, shard: Shard) -> Exchange[None]:
        if shard.kind == "average":
            yield from average(self, shard)

    def wire_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Mapping[str, Cost]:
        return {"plan": wire.all_reduce(8, n), **super().wire_bytes(shapes, n)}


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.inf


def adacomm_period(
    period: int, first: int, loss_ratio: float, lr_ratio: float, decay: float, form: str
) -> int:
    """The next length of a round.

    period: the present one. first: tau_0. loss_ratio: F(x_now) / F(x_0). lr_ratio: lr_0 / lr_now. Forms:

    - ``paper``: ceil(sqrt(loss_ratio lr_ratio) tau_0), and if that is not shorter than the present one, ceil(decay
      period): rounds only ever shorten.
    - ``paddle``: ceil(sqrt(loss_ratio lr_ratio tau_0)), from 1 to 16 (PaddlePaddle's LocalSGD).

    Raises `UnsupportedError` where the loss is negative; NaN and infinite ratios keep the present length, so that a
    training that diverges is seen as one.
    """
    ratio = loss_ratio * lr_ratio
    if ratio < 0:
        raise UnsupportedError(
            f"the loss has changed its sign (ratio {loss_ratio}): AdaComm needs a loss that is never negative"
        )
    if not math.isfinite(ratio):
        return period
    if form == "paddle":
        return max(1, min(16, math.ceil(math.sqrt(ratio * first))))
    proposed = max(1, math.ceil(math.sqrt(ratio) * first))
    return proposed if proposed < period else max(1, math.ceil(decay * period))
