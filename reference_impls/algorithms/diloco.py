"""DiLoCo: hundreds of local AdamW steps, then a Nesterov step along the mean progress. arXiv 2311.08105.

Each worker takes H = `period` steps from the shared parameters A; D = mean(A - x) is the outer gradient; u <- b u + D,
A <- A - a (D + b u) with a = `outer_lr`, b = `outer_momentum`. AdamW's states stay with the workers. Outer sgd of rate 1
is federated averaging; H = 1 with sgd inside and outside is data-parallel training.

Differences: with `total_steps` the last round ends exactly there (the published training scripts leave a partial round
unsynchronised: as here without `total_steps`). Workers have equal weights. Every worker keeps the anchor and the outer
momentum, on its own device (the published code keeps them on the host). Buffers are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference_impls.algorithm import option
from reference_impls.algorithms.local_updates import PeriodicAveraging
from reference_impls.optimizers.outer import OuterKind


@dataclass(frozen=True)
class DiLoCo(PeriodicAveraging):
    """Local updates with an outer Nesterov momentum."""

    period: int = option(500, "H: inner steps in a round, at least 1", ge=1)
    outer: OuterKind = option("nesterov", "outer optimizer")
    outer_lr: float = option(0.7, "learning rate of the outer optimizer", ge=0)
    outer_momentum: float = option(0.9, "momentum of the outer optimizer", ge=0, lt=1)
