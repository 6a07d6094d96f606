"""The local optimizers by name, and any torch.optim.Optimizer factory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from reference_impls.algorithm import OptimizerFactory
from reference_impls.errors import UnsupportedError, nearest
from reference_impls.optimizers.lion import Lion


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
