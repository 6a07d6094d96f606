"""signSGD and Signum with majority vote, and D-Signum's average. arXiv 1802.04434, 1810.05291, 2404.00438.

signSGD: x <- (1 - lr wd) x - lr majority(sign(g_i)). Signum: m_i <- b m_i + (1 - b) g_i, and the majority of sign(m_i). With
``vote="average"`` the mean of signs is applied instead, which Distributed Lion's paper calls D-Signum (Avg). Signum is
Lion with both betas equal; votes travel, and zeros, ties and values that are not finite are treated, as in
`algorithms.distributed_lion`.

Differences: the abstracts could be read, and code of others. There zeros and ties count as +1 (a stored sign bit), and a
parameter that never has a gradient drifts; here a zero follows a coin that all ranks share and ties alternate by step.
The server of the paper is every worker, for its piece of the vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from reference_impls.algorithm import Algorithm, Shard, Slot, option, per_rank
from reference_impls.algorithms.distributed_lion import (
    Votes,
    average_of_signs,
    check_votes,
    majority_of_signs,
)
from reference_impls.algorithms.lion_update import LocalClip, clip, step
from reference_impls.collectives import Exchange, Group


@dataclass(frozen=True)
class SignSGD(Votes, LocalClip, Algorithm):
    """Votes on the sign of the gradient; no state."""

    vote: Literal["majority", "average"] = option("majority", "what is applied: the majority or the average")

    defaults: ClassVar[Mapping[str, Any]] = {"lr": 1e-4, "weight_decay": 0.0}
    reduces_gradient: ClassVar[bool] = False

    @property
    def scope(self) -> Literal["bucket", "model"]:  # type: ignore[override]
        """A norm over the whole model needs the whole gradient."""
        return "bucket" if self.local_clip_norm is None else "model"

    def check(self, world: Group) -> None:
        check_votes(self, world)

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if self.local_clip_norm is not None:
            clip(shard.grads, self.local_clip_norm)
        return (yield from self.direction(shard, shard.grads))

    def direction(self, shard: Shard, u: Tensor) -> Exchange[Tensor]:
        """The majority or the average of the signs of all `u`, Tensor[d]."""
        if self.vote == "average":
            return average_of_signs(self, shard, u)
        return majority_of_signs(self, shard, u)

    def update(self, shard: Shard, reduced: Tensor) -> None:
        for part, h in shard.groups():
            step(shard.params[part], reduced[part], h)


@dataclass(frozen=True)
class Signum(SignSGD):
    """Votes on the sign of each worker's own momentum."""

    defaults: ClassVar[Mapping[str, Any]] = {"lr": 1e-4, "momentum": 0.9, "weight_decay": 0.0}

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"momentum": per_rank()}

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if self.local_clip_norm is not None:
            clip(shard.grads, self.local_clip_norm)
        m = shard.state["momentum"]
        for part, h in shard.groups():
            m[part].lerp_(shard.grads[part], 1 - h["momentum"])
        return (yield from self.direction(shard, m))
