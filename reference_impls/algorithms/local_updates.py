"""Local SGD, local AdamW and QSR: step locally, average the parameters once a round. arXiv 1805.09767, 2310.14423.

QSR sets the length of a round from the learning rate of its first step, H = max(H_base, floor((alpha / lr)^2)), so
that rounds grow as the learning rate decays. Rules are in `reference_impls.schedules.rules`.

Differences: parameters of all trainable tensors are averaged, also of those without gradient (the official code skips
them). Optimizer states stay local, as in the official code at its defaults; its flags that average Adam's m and v are
left out, and so is its separate period for the warm-up, in which H = H_base as in its examples. Buffers are not touched
(there, BatchNorm statistics are estimated anew before each evaluation). With `total_steps` the last round is cut so
that the last average is exactly at the end, as in the official code; without it training is open-ended.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from reference_impls.algorithm import Algorithm, Clock, Shard, option
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.collectives import Exchange, Group
from reference_impls.schedules.rules import QSR, Constant, Rule

ROUNDS = (1, 4, 16, 64)
"""Lengths of the rounds that are timed, in steps."""


@dataclass(frozen=True)
class LocalUpdates(WithLocalOptimizer):
    """Rounds of local steps, each ended by an average of the parameters. Kinds of step: ``local``, ``average``."""

    total_steps: int | None = option(
        None, "steps of the whole training; the last round then ends exactly there"
    )

    @abstractmethod
    def rule(self) -> Rule:
        """How long a round is."""

    def check(self, world: Group) -> None:
        self.rule()  # refuses impossible options

    def plan(self, clock: Clock) -> str:
        left = int(clock.counters.get("left", 0)) or self.rule().period(clock.step, clock.lr)
        clock.counters["left"] = left - 1
        return "local" if left > 1 else "average"

    def synchronize(self, shard: Shard) -> Exchange[None]:
        if shard.kind == "average":
            yield from shard.world.mean(shard.params, "parameters")  # in place: the answer is the parameters

    def steady(self) -> Mapping[str, Algorithm]:
        """Kind ``round-H``: a unit of H steps, H - 1 of kind ``local`` and an ``average``, instead of kinds of step.

        Rounds of one length are alike whatever rule chose it, and a local step may still hide part of the average
        before it, so a round is timed as a whole; rounds of other lengths lie between those of `ROUNDS`.
        """
        return {f"round-{h}": PeriodicAveraging(optimizer=self.optimizer, period=h) for h in ROUNDS}


@dataclass(frozen=True)
class PeriodicAveraging(LocalUpdates):
    """Local SGD / local AdamW with rounds of `period` steps."""

    period: int = option(8, "H: local steps in a round, at least 1")

    def rule(self) -> Rule:
        return Constant(self.period, total=self.total_steps)


@dataclass(frozen=True)
class QuadraticSynchronization(LocalUpdates):
    """QSR. `power` 1 and 3 give the linear and the cubic rule."""

    alpha: float = option(0.0, "growth: H = (alpha / lr)^power; 0 keeps H at h_base")
    h_base: int = option(4, "shortest round, also used during warm-up of the learning rate")
    power: float = option(2.0, "exponent of the rule")
    lr_warmup_steps: int = option(0, "steps of learning-rate warm-up, in which H = h_base")

    def rule(self) -> Rule:
        return QSR(
            self.alpha, self.h_base, power=self.power, warmup=self.lr_warmup_steps, total=self.total_steps
        )
