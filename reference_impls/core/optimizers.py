"""What workers step with after communication has been settled: local optimizers by name.

Lion: the sign of an interpolated momentum, with decoupled weight decay (arXiv 2302.06675). The authors' code and its
description were read, not the paper's body. A momentum that is not finite makes its parameter NaN. In the authors' code
the sign of NaN is 0, and the coordinate stands still for ever without anybody noticing. As there, a parameter without
gradient is left alone, sign(0) = 0, and the momentum takes the raw gradient after the update has been formed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from reference_impls.core import compute
from reference_impls.core.algorithm import Algorithm, OptimizerFactory, ParamGroups, option
from reference_impls.core.errors import UnsupportedError, nearest


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
                direction = compute.empty_like(momentum)
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


@dataclass(frozen=True)
class WithLocalOptimizer(Algorithm):
    """A method that steps a local optimizer with what `reduce` answers."""

    optimizer: str | OptimizerFactory = option(
        "sgd", "local optimizer: sgd, adamw, lion, or a factory taking parameter groups"
    )

    def inner_optimizer(self, groups: ParamGroups) -> torch.optim.Optimizer:
        return local_optimizer(self.optimizer).build(groups)

    def hyperparameters(self) -> Mapping[str, Any]:
        return local_optimizer(self.optimizer).hyperparameters
