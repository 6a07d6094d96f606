"""What workers step with: local optimizers by name, after communication has been settled, and outer optimizers.

Lion: the sign of an interpolated momentum, with decoupled weight decay (arXiv 2302.06675). The authors' code and its
description were read, not the paper's body. A momentum that is not finite makes its parameter NaN. In the authors' code
the sign of NaN is 0, and the coordinate stands still for ever without anybody noticing. As there, a parameter without
gradient is left alone, sign(0) = 0, and the momentum takes the raw gradient after the update has been formed.

Outer optimizers: what is done with the progress that workers made in a round, mean(anchor - parameters).

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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import OptimizerFactory
from reference_impls.errors import UnsupportedError, nearest

__all__ = ["OUTER", "Lion", "LocalOptimizer", "Outer", "OuterKind", "local_optimizer", "mixed"]


# ---- local optimizers ----------------------------------------------------------------------------------------------


class Lion(torch.optim.Optimizer):
    """x <- (1 - lr wd) x - lr sign(b1 m + (1 - b1) g); m <- b2 m + (1 - b2) g. State: `momentum`, zeros at first.

    params: parameters or groups as in torch.optim. lr >= 0, 0 <= betas < 1, weight_decay >= 0, else
    `UnsupportedError`.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        if not lr >= 0 or not all(0 <= b < 1 for b in betas) or not weight_decay >= 0:
            raise UnsupportedError(
                f"Lion wants lr >= 0, 0 <= betas < 1, weight_decay >= 0; got {lr}, {betas}, {weight_decay}"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step from the parameters' ``.grad``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if not state:
                    state["momentum"] = torch.zeros_like(param)
                momentum = state["momentum"]
                direction = buffers.empty_like(momentum)
                torch.lerp(momentum, param.grad, 1 - beta1, out=direction).sign_()
                if group["weight_decay"]:
                    param.mul_(1 - group["lr"] * group["weight_decay"])
                param.add_(direction, alpha=-group["lr"])
                momentum.lerp_(param.grad, 1 - beta2)
                param.add_(momentum, alpha=0)  # 0 x NaN is NaN, which the sign has lost
        return loss


@dataclass(frozen=True)
class LocalOptimizer:
    """How to build an optimizer from parameter groups, and the hyper-parameters that groups may carry."""

    build: OptimizerFactory
    hyperparameters: Mapping[str, Any]


_BY_NAME = {
    "sgd": LocalOptimizer(
        torch.optim.SGD, {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
    ),
    "adamw": LocalOptimizer(torch.optim.AdamW, {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}),
    "lion": LocalOptimizer(Lion, {"betas": (0.9, 0.99), "weight_decay": 0.0}),
}


def local_optimizer(optimizer: str | OptimizerFactory) -> LocalOptimizer:
    """`sgd` (no momentum unless asked for), `adamw`, `lion`, or a callable that takes parameter groups.

    A callable carries its own hyper-parameters; only lr is passed on to it. Raises `UnsupportedError` for a name that
    is not known.
    """
    if callable(optimizer):
        return LocalOptimizer(optimizer, {})
    if optimizer not in _BY_NAME:
        raise UnsupportedError(f"no local optimizer called {optimizer!r}{nearest(str(optimizer), _BY_NAME)}")
    return _BY_NAME[optimizer]


# ---- outer optimizers ----------------------------------------------------------------------------------------------


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
