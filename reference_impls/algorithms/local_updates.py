"""Local SGD, local AdamW and QSR: step locally, average the parameters once a round. arXiv 1805.09767, 2310.14423.

QSR sets the length of a round from the learning rate of its first step, H = max(H_base, floor((alpha / lr)^2)), so
that rounds grow as the learning rate decays. Rules are in `reference_impls.schedules.rules`; how models are averaged
at the end of a round (compression, outer optimizer, inner states) is in `reference_impls.algorithms.model_averaging` and
goes with any rule.

Differences: parameters of all trainable tensors are averaged, also of those without gradient (the official code skips
them). Optimizer states stay local unless `inner_state` says otherwise; the official code can average Adam's m and v
apart. During the warm-up H = H_base as in its examples; the paper takes the first value after it, which a method that
sees one learning rate at a time cannot know: give it as `warmup_period`. Buffers are not touched (there, BatchNorm statistics are
estimated anew before each evaluation). With `total_steps` the last round is cut so that the last average is exactly at
the end, as in the official code; without it training is open-ended, and what follows the last whole round stays local.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from reference_impls.algorithm import Algorithm, Clock, Shard, option
from reference_impls.algorithms.model_averaging import (
    ROUNDS,
    ModelAveraging,
    average,
    begin_round,
    round_kind,
)
from reference_impls.collectives import Exchange, Group
from reference_impls.schedules.rules import QSR, Constant


@dataclass(frozen=True)
class PeriodicAveraging(ModelAveraging):
    """Local SGD / local AdamW with rounds of `period` steps. Kinds of step: ``local``, ``average``."""

    period: int = option(8, "H: local steps in a round, at least 1", ge=1)

    def plan(self, clock: Clock) -> str:
        return round_kind(clock, Constant(self.period, total=self.total_steps))

    def reduce(self, shard: Shard) -> Tensor:
        if shard.step == 0:
            begin_round(self, shard)
        return shard.grads  # a step of the local optimizer

    def synchronize(self, shard: Shard) -> Exchange[None]:
        if shard.kind == "average":
            yield from average(self, shard)

    def steady(self) -> Mapping[str, Algorithm]:
        return rounds_of_local_sgd(self)


def rounds_of_local_sgd(own: ModelAveraging) -> Mapping[str, Algorithm]:
    """`Algorithm.steady` of methods whose rounds are those of local SGD, whatever rule chose their length.

    Args:
        own: The method; options of its average and of its local optimizer are kept.

    Returns:
        ``round-H`` -> a unit of H steps, H - 1 of kind ``local`` and an ``average``. A local step may still hide part of the
        average before it, so a round is timed as a whole; other lengths lie between those of `ROUNDS`.
    """
    names = {f.name for f in dataclasses.fields(ModelAveraging)} - {"total_steps"}
    options: dict[str, Any] = {name: getattr(own, name) for name in names}
    options["inner_state"] = own.inner_policy
    return {f"round-{h}": PeriodicAveraging(**options, period=h) for h in ROUNDS}


class TimedAsLocalSGD(ModelAveraging):
    """A method whose rounds are those of local SGD."""

    def steady(self) -> Mapping[str, Algorithm]:
        return rounds_of_local_sgd(self)


@dataclass(frozen=True)
class QuadraticSynchronization(TimedAsLocalSGD):
    """QSR. `power` 1 and 3 give the linear and the cubic rule. Kinds of step: ``local``, ``average``."""

    alpha: float = option(
        0.0,
        "growth: H = (alpha / lr)^power; 0 keeps H at h_base; published: 0.2 to 0.3 (sgd), 2.2 (adamw) peak rates",
        ge=0,
    )
    h_base: int = option(4, "shortest round, also used during warm-up of the learning rate", ge=1)
    power: float = option(2.0, "exponent of the rule", gt=0)
    lr_warmup_steps: int = option(0, "steps of learning-rate warm-up, in which H = warmup_period", ge=0)
    warmup_period: int | None = option(None, "H during the warm-up, and with alpha 0; default: h_base", ge=1)

    @property
    def rule(self) -> QSR:
        """H = max(h_base, floor((alpha / lr)^power)); `UnsupportedError` for impossible options."""
        return QSR(
            self.alpha,
            self.h_base,
            power=self.power,
            warmup=self.lr_warmup_steps,
            total=self.total_steps,
            h_warmup=self.warmup_period,
        )

    def check(self, world: Group) -> None:
        super().check(world)
        self.rule  # noqa: B018 - refuses impossible options

    def plan(self, clock: Clock) -> str:
        return round_kind(clock, self.rule)

    def reduce(self, shard: Shard) -> Tensor:
        if shard.step == 0:
            begin_round(self, shard)
        return shard.grads  # a step of the local optimizer

    def synchronize(self, shard: Shard) -> Exchange[None]:
        if shard.kind == "average":
            yield from average(self, shard)
