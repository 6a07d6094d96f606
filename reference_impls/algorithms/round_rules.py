"""Local updates by other rules than a constant or QSR's: post-local SGD, SWAP, AdaComm. 1808.07217, 2001.02312, 1810.08313.

Post-local SGD is data-parallel up to a switch, then takes rounds of H local steps. SWAP is data-parallel up to a switch,
then every worker goes on alone to the end, where weights are averaged once. AdaComm starts with long rounds and shortens
them as the loss falls. (The linear and the cubic rule are QSR's with another power.)

Differences: none of the three papers could be read beyond the abstract; code of others was. Before the switch gradients are
averaged (post-local SGD's code averages parameters every step: the same for SGD, not for AdamW); rounds begin at the switch
(there they follow a global index, and the first may be shorter). SWAP stops its first phase at a training accuracy: here
at a step, or when ``observe(accuracy=...)``, averaged over workers (8 bytes a step), reaches `switch_accuracy`; smaller
batches and rates of its second phase belong to the schedule. AdaComm's intervals are counted in steps (there in seconds),
since a run must not depend on the machine; it plans by the loss told to ``observe(loss=...)``, averaged over workers. Its first
rate is that of step 0, so that a warm-up of the rate, which the formula does not know, makes rounds of one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from reference_impls.algorithms.local_updates import LocalUpdates
from reference_impls.core import schedules
from reference_impls.core.algorithm import Bucket, option
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.schedules import AfterSwitch, Constant


@dataclass(frozen=True)
class Switching(LocalUpdates):
    """Data-parallel training (kind ``step``) until a switch, then rounds, the first of which begins there."""

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

    def reduce(self, bucket: Bucket) -> Exchange[Tensor] | Tensor:  # type: ignore[override]
        return (
            bucket.world.mean(bucket.grads, "gradient") if bucket.kind == "step" else super().reduce(bucket)
        )

    def synchronize(self, bucket: Bucket) -> Exchange[None]:
        if bucket.kind == "step":
            self.begin_round(bucket)
        else:
            yield from super().synchronize(bucket)


@dataclass(frozen=True)
class PostLocal(Switching):
    """Post-local SGD: H = 1 by gradients until the switch, then rounds of `period` steps."""

    period: int = option(16, "H: local steps in a round after the switch", ge=1)

    @property
    def rule(self) -> AfterSwitch:
        assert self.switch is not None  # check() has refused it
        return AfterSwitch(Constant(self.period, self.total_steps), self.switch)


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

    @property
    def rule(self) -> AfterSwitch:
        assert self.switch is not None  # check() has refused it
        assert self.total_steps is not None
        return AfterSwitch(Constant(self.total_steps, self.total_steps), self.switch, self.switch_accuracy)


@dataclass(frozen=True)
class AdaComm(LocalUpdates):
    """Rounds whose length follows the root of the loss."""

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

    @property
    def rule(self) -> schedules.AdaComm:
        return schedules.AdaComm(self.first_period, self.adapt_every, self.decay, self.form, self.total_steps)
