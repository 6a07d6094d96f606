"""Outer optimizers: what is done with the progress that workers made in a round, mean(anchor - parameters).

A is the anchor (the parameters at the beginning of the round, the same on all ranks), D the mean progress, u the outer
momentum (zeros at first), a the outer learning rate, b the momentum, g the learning rate of the step that ends the
round, parameter group by parameter group:

sgd            A <- A - a D                              a = 1 is the plain average of the parameters
heavy-ball     u <- b u + D;    A <- A - a u
nesterov       u <- b u + D;    A <- A - a (D + b u)     torch's form; DiLoCo (2311.08105)
slowmo         u <- b u + D/g;  A <- A - a g u           SlowMo (1910.00643): u outlives changes of the learning rate
bmuf           u <- b u + a D;  A <- A - u               blockwise model-update filtering (Chen & Huo 2016)
bmuf-nesterov  u <- b u + a D;  A <- A - u - b u         the look-ahead point is the next anchor

With constant rates `slowmo`, `heavy-ball` and `bmuf` are the same; `bmuf-nesterov` is not `nesterov`. Where g = 0,
`slowmo` takes the limit g -> 0: u <- b u, A <- A - a D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.errors import UnsupportedError, nearest

__all__ = ["OUTER", "Outer", "OuterKind"]

OuterKind = Literal["sgd", "heavy-ball", "nesterov", "slowmo", "bmuf", "bmuf-nesterov"]
OUTER: Final = ("sgd", "heavy-ball", "nesterov", "slowmo", "bmuf", "bmuf-nesterov")


@dataclass(frozen=True)
class Outer:
    """One of the rules above. Raises `UnsupportedError` for impossible numbers."""

    kind: OuterKind = "sgd"
    lr: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in OUTER:
            raise UnsupportedError(
                f"outer must be one of {', '.join(OUTER)}; got {self.kind!r}{nearest(str(self.kind), OUTER)}"
            )
        if not self.lr >= 0 or not 0 <= self.momentum < 1:
            raise UnsupportedError(
                f"outer_lr must be >= 0 and outer_momentum in [0, 1), got {self.lr} and {self.momentum}"
            )
        if self.kind == "sgd" and self.momentum:
            raise UnsupportedError(
                "outer='sgd' has no momentum: choose heavy-ball, nesterov, slowmo or bmuf, or outer_momentum=0"
            )

    @property
    def keeps_momentum(self) -> bool:
        """Whether there is a u."""
        return self.kind != "sgd"

    @property
    def is_average(self) -> bool:
        """Whether the next anchor is the mean of the parameters and nothing else."""
        return self.kind == "sgd" and self.lr == 1

    def step(self, anchor: Tensor, progress: Tensor, momentum: Tensor | None, inner_lr: float) -> None:
        """Move `anchor` and `momentum` (None for sgd), in place. progress: D; it may be consumed."""
        if momentum is None:
            anchor.sub_(progress, alpha=self.lr)
            return
        momentum.mul_(self.momentum)
        if self.kind == "slowmo":
            if inner_lr == 0:
                anchor.sub_(progress, alpha=self.lr)
                return
            momentum.add_(progress.div_(inner_lr))
            anchor.sub_(momentum, alpha=self.lr * inner_lr)
        elif self.kind in ("bmuf", "bmuf-nesterov"):
            momentum.add_(progress, alpha=self.lr)
            anchor.sub_(momentum)
            if self.kind == "bmuf-nesterov":
                anchor.sub_(momentum, alpha=self.momentum)
        else:
            momentum.add_(progress)
            if self.kind == "nesterov":
                progress.add_(momentum, alpha=self.momentum)
                anchor.sub_(progress, alpha=self.lr)
            else:
                anchor.sub_(momentum, alpha=self.lr)


def mixed(own: Tensor, shared: Tensor, share: float) -> None:
    """own <- share x own + (1 - share) x shared; at 0 and 1 exactly one of the two."""
    if share == 0:
        own.copy_(shared)
    elif share != 1:
        torch.lerp(shared, own, share, out=own)
