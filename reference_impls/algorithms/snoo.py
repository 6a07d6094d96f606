"""SNOO: plain data-parallel training with an outer Nesterov step now and then, which sends nothing. arXiv 2510.15830.

Each step is that of plain training. After every k = `period` of them, with A the parameters after the last outer step:
s = A - x; u <- b u + s; A <- A - a (s + b u); x <- A, where a = `outer_lr`, b = `outer_momentum`. b = 0 is Lookahead; a = 1 and
b = 0 is plain training. One worker trains as by DiLoCo with as long a round, but for a last one that is cut
short, which here ends without an outer step. So it tells what DiLoCo's outer optimizer is worth
from what rare communication costs: SNOO against plain training is the first, DiLoCo against SNOO the second.

Differences: the paper could not be read; formula sheets and code of others were. Outer steps come after step k, 2k, ... (the
published class tests its counter before it counts, so the first comes after step 1, and seeds u with the progress of one step).
Progress is never left in ``.grad`` (there it is, and adds to the next gradient unless that is cleared). The parameters that
training has are evaluated, not A. Weight decay is part of s, and is scaled by a, as there. Buffers are not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reference_impls.algorithms.all_reduce import AllReduce
from reference_impls.algorithms.local_updates import Outer
from reference_impls.core import compute
from reference_impls.core.algorithm import (
    FOREVER,
    Bucket,
    OptimizerFactory,
    StateSpec,
    Timed,
    TrainState,
    option,
    replicated,
)
from reference_impls.core.collectives import Exchange


@dataclass(frozen=True)
class SNOO(AllReduce):
    """Kinds of step: ``step``, and ``outer``, which ends with the outer step. Both send the gradient."""

    optimizer: str | OptimizerFactory = option("adamw", "local optimizer, as of all-reduce")
    period: int = option(100, "k: steps from one outer step to the next", ge=1)
    outer_lr: float = option(0.8, "learning rate of the outer optimizer", ge=0)
    outer_momentum: float = option(0.75, "momentum of the outer optimizer", ge=0, lt=1)

    state: ClassVar[Mapping[str, StateSpec]] = {"anchor": replicated(), "outer_momentum": replicated()}
    timed: ClassVar[Timed] = {"step": {"period": FOREVER}, "outer": {"period": 1}}

    def plan(self, train_state: TrainState) -> str:
        return "step" if (train_state.step + 1) % self.period else "outer"

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if bucket.train_state.choice(lambda now: now.step == 0):
            bucket.state["anchor"].copy_(bucket.params)
        return (yield from super().reduce(bucket))

    def synchronize(self, bucket: Bucket) -> None:
        """A <- outer(A, A - x); x <- A."""
        if bucket.kind == "outer":
            anchor, momentum = bucket.state["anchor"], bucket.state["outer_momentum"]
            progress = torch.sub(anchor, bucket.params, out=compute.empty_like(anchor))
            Outer("nesterov", self.outer_lr, self.outer_momentum).step(anchor, progress, momentum, 0.0)
            bucket.params.copy_(anchor)
