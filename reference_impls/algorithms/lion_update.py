"""What Lion's distributed forms share: the arithmetic of the update, the synchronisation of momenta, and their options.

u_i = b1 m_i + (1 - b1) g_i on worker i (`mixed_in`); the method answers a direction from all u_i, the same on all ranks;
x <- (1 - lr wd) x - lr direction (`step`); m_i <- b2 m_i + (1 - b2) g_i with the local gradient. arXiv 2302.06675,
2404.00438. Momenta drift apart; `reducers.momentum_sync` may bring them together.

Differences: decay comes before the step, which is equal up to rounding. Learning rate, betas and weight decay are those
of the parameter groups at every step. The local gradient may be clipped by its norm over the whole model, which the
papers do not say; the method then waits for the whole gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import (
    DEFAULT,
    Shard,
    Timed,
    option,
)
from reference_impls.codecs.sums import fixed_sum
from reference_impls.randomness import Key
from reference_impls.reducers.momentum_sync import MODES, MomentumSync

HYPERPARAMETERS: Final[Mapping[str, Any]] = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.0}
_WHEN: Final = ("sync_every", "sync_doubling", "sync_measure_every")
_SYNC: Final = (*_WHEN, "sync_fraction")


@dataclass(frozen=True)
class LocalClip:
    """The option to clip the local gradient. A method that has it waits for the whole model where it is set."""

    local_clip_norm: float | None = option(
        None,
        "clip the local gradient to this norm over the whole model (waits for all of it); None: do not",
        gt=0,
    )

    clipping: ClassVar[str] = "local_clip_norm"


@dataclass(frozen=True)
class SynchronisedMomenta:
    """Options that say when and how momenta are averaged. Kinds of step: ``step``, ``sync``, ``measure``."""

    momentum_sync: str = option(
        "never", "when momenta are averaged: never, periodic, doubling or selective", choices=MODES
    )
    sync_every: int = option(100, "steps between synchronisations (periodic, selective)", ge=1)
    sync_doubling: float = option(1.0, "gaps double every this many synchronisations (doubling)", gt=0)
    sync_fraction: float = option(0.25, "share of the elements that is synchronised (selective)", gt=0, le=1)
    sync_measure_every: int = option(1000, "steps between measurements of disagreement (selective)", ge=1)

    @property
    def sync(self) -> MomentumSync:
        """The rule that the options describe; `UnsupportedError` for impossible ones."""
        return MomentumSync(
            self.momentum_sync, self.sync_every, self.sync_doubling, self.sync_fraction, self.sync_measure_every,
        )  # fmt: skip

    @property
    def timed(self) -> Timed:  # type: ignore[override]
        when, all_of_them = dict.fromkeys(_WHEN, DEFAULT), dict.fromkeys(_SYNC, DEFAULT)
        often = {**all_of_them, "momentum_sync": "periodic", "sync_every": 1}
        if self.momentum_sync == "selective":  # at every step after 0, which measures
            often = {**when, "sync_every": 1}
        return {
            "measure": {**when, "sync_measure_every": 1},
            "step": {**all_of_them, "momentum_sync": "never"},
            "sync": often,
        }


def zeros(shard: Shard) -> Key:
    """What a zero votes: coins that all ranks share."""
    return shard.key("zero", shared=True)


def ties(shard: Shard) -> bool:
    """Whether a tie is for + at this step; every other one is."""
    return shard.step % 2 == 0


def mixed_in(shard: Shard, momentum: Tensor, gradient: Tensor) -> Tensor:
    """b1 m + (1 - b1) g, group by group, in a buffer of the pool."""
    u = buffers.empty_like(momentum)
    for part, h in shard.groups():
        torch.lerp(momentum[part], gradient[part], 1 - h["betas"][0], out=u[part])
    return u


def sign_of(x: Tensor) -> Tensor:
    """-1, 0 and 1 in a buffer of the pool; NaN where x is not finite, which a sign alone would lose."""
    return torch.sign(x, out=buffers.empty_like(x)).add_(x, alpha=0)


def step(x: Tensor, direction: Tensor, h: Mapping[str, Any]) -> None:
    """x <- (1 - lr wd) x - lr direction, in place."""
    keep = 1 - h["lr"] * h["weight_decay"]
    if keep != 1:  # a pass over the memory for nothing
        x.mul_(keep)
    x.add_(direction, alpha=-h["lr"])


def clip(gradient: Tensor, norm: float) -> None:
    """Scale `gradient` so that its 2-norm is at most `norm`; not finite stays not finite."""
    low, high = gradient.aminmax()
    top = torch.maximum(-low, high)
    scaled = torch.div(gradient, torch.where(top > 0, top, 1.0), out=buffers.empty_like(gradient))
    own = top * fixed_sum(scaled.square_()).sqrt()
    gradient.mul_((norm / torch.where(own == 0, 1.0, own)).clamp(max=1.0))
