"""All-reduce of the gradient in full precision, with any local optimizer: the uncompressed baseline.

Methods that replace this mean by a cheaper one derive from `WithLocalOptimizer` as it does: `reduce` answers the mean
gradient, the local optimizer is stepped with it, and all replicas stay equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference_impls.algorithm import (
    Algorithm,
    OptimizerFactory,
    ParamGroups,
    Shard,
    option,
)
from reference_impls.collectives import Exchange
from reference_impls.optimizers import local_optimizer


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


@dataclass(frozen=True)
class AllReduce(WithLocalOptimizer):
    """g <- mean over workers of g, in fp32; then the local optimizer's step. Sends 2 (n-1)/n x 32 bits a parameter.

    The mean consumes the local gradient in place: the answer is the shard's own gradient buffer.
    """

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        return (yield from shard.world.mean(shard.grads, "gradient"))
