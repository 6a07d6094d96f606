"""Deep Gradient Compression: top-k of accumulated momentum. arXiv 1712.01887 (from a reader's notes and the authors' code).

On every worker, with the gradient clipped to local_clip / sqrt(n): u <- m u + g (momentum correction: the momentum is local and
is what accumulates), v <- v + u; the largest coordinates of v are sent and set to 0 in v, and in u as well (momentum factor
masking); x <- x - lr mean of what was sent. The share that is sent falls exponentially in a warm-up: in its stage s = 1 .. S it
is ratio^(s / (S+1)), which for ratio 0.001 and S = 4 is 0.25, 0.063, 0.016, 0.004.

Differences: selection is exact and k = max(1, floor(ratio d)) fixed; the published code estimates a threshold from a sample of
1 % and corrects it. The norm that is clipped is that of the whole model, hence one shard, without overlap with backward;
per tensor in the published code. k is of a tensor (the published code; 1-D tensors included, which it leaves out) or of the
model. Where what is sent is 0, u is not masked. Weight decay is added to the gradient
before the momentum, as in torch's SGD. One worker compresses nothing and is SGD with momentum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reference_impls.algorithm import (
    DEFAULT,
    Algorithm,
    Clock,
    Shard,
    Slot,
    Timed,
    option,
    per_rank,
)
from reference_impls.codecs.codec import Codec, PerTensor
from reference_impls.codecs.sparse import TopK
from reference_impls.collectives import Exchange
from reference_impls.reducers.coded_mean import gather_mean


@dataclass(frozen=True)
class DGC(Algorithm):
    """Kinds of step: ``ratio-<share that is sent>``."""

    scope: ClassVar[Literal["bucket", "model"]] = "model"
    defaults: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-2,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "nesterov": False,
    }
    reduces_gradient: ClassVar[bool] = False
    clipping: ClassVar[str] = "local_clip"

    ratio: float = option(0.001, "share of the coordinates that is sent, after the warm-up", gt=0, le=1)
    local_clip: float = option(
        0.0, "largest norm of the gradient of n workers together; 0: no clipping", ge=0
    )
    granularity: Literal["tensor", "model"] = option(
        "tensor", "k coordinates of each tensor, or of the model"
    )
    warmup_steps: int = option(0, "first steps, in which the share falls to ratio", ge=0)
    warmup_stages: int = option(4, "shares that the warm-up goes through, equally long each", ge=1)

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"momentum": per_rank(), "velocity": per_rank()}

    def share(self, step: int) -> float:
        """The share of the coordinates that is sent in this step."""
        if step >= self.warmup_steps:
            return self.ratio
        stage = 1 + step * self.warmup_stages // self.warmup_steps
        return float(self.ratio ** (stage / (self.warmup_stages + 1)))

    def _codec(self, ratio: float, lengths: Sequence[int]) -> Codec:
        codec = TopK(ratio)
        return codec if self.granularity == "model" else PerTensor(codec, tuple(lengths))

    def plan(self, clock: Clock) -> str:
        return _kind(self.share(clock.step))

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        u, v, g = shard.state["momentum"], shard.state["velocity"], shard.grads
        if self.local_clip:
            norm = torch.linalg.vector_norm(g, dtype=torch.float64)
            limit = self.local_clip / math.sqrt(shard.world.size)
            g.mul_((limit / norm).clamp(max=1.0).to(g.dtype))  # lets NaN through
        step: Tensor = u.clone()
        for part, h in shard.groups():
            if h["weight_decay"]:
                g[part].add_(shard.params[part], alpha=h["weight_decay"])
            u[part].mul_(h["momentum"]).add_(g[part])
            step[part] = g[part].add(u[part], alpha=h["momentum"]) if h["nesterov"] else u[part]
        if shard.world.size == 1:
            return step
        before = v + step
        codec = self._codec(
            self.share(shard.step), [view.part.stop - view.part.start for view in shard.views]
        )
        mean = yield from gather_mean(shard, step, codec, "velocity", worker_error=v)
        u.masked_fill_(before != v, 0)
        return mean

    def update(self, shard: Shard, reduced: Tensor) -> None:
        for part, h in shard.groups():
            shard.params[part].add_(reduced[part], alpha=-h["lr"])

    @property
    def timed(self) -> Timed:  # type: ignore[override]
        shares = {self.share(step) for step in range(self.warmup_steps + 1)}
        return {
            _kind(share): {"ratio": share, "warmup_steps": DEFAULT, "warmup_stages": DEFAULT}
            for share in shares
        }


def _kind(share: float) -> str:
    return f"ratio-{share:.4g}"
