"""APMSqueeze: Adam for a while, then its variance frozen as preconditioner and the momentum sent in one bit. 2008.11343.

Warm-up (T_w steps): g = mean g_i; m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2; x <- x - lr m / (sqrt(v) + eps).
Compressed: u_i = b1 m + (1-b1) g_i from the agreed m; m <- CAR(u_i) with worker and server errors; same x with v frozen.
The body of the paper could not be read; its first author's prototype and DeepSpeed's first 1-bit Adam were.

``apmsqueeze`` is our reading of the paper. ``apmsqueeze-prototype`` fixes what the first author's prototype does: v
starts at 1, no bias corrections, weight decay as L2 in the gradient before the momentum, a scale a chunk over its
non-zeros, eps outside the root. Not repeated there, on purpose: it books a sign of 0 where it sent +1, which leaves an
error uncompensated every step; it compresses tensor by tensor, whose last chunk can have a negative length, and never
those of fewer than 8 n elements, whose variance then never freezes; a chunk of zeros gives NaN; it counts T_w in epochs.

Differences: weight decay is decoupled (the prototype adds it to the gradient). v starts at 0, as in DeepSpeed (there at
1). Coordinates whose frozen variance is 0 are not moved, since +-scale / eps would be enormous. A bucket is compressed
as one vector (the prototype compresses tensor by tensor, and never those of fewer than 8 n elements), with the scale
over all elements of a piece (there over those that are not 0); the scale is per bucket, so results depend on the bucket
size. T_w is 15 % of the training unless given, borrowed from 1-bit Adam (the paper's value was not readable), and never
before the learning rate's warm-up ends. The abstract speaks of compressing gradients, all code compresses the momentum:
so does this. Clipping is our own reading: only local gradients exist in
compressed steps, so their root mean square norm, which is never below the norm of the mean, stands in for it. One
worker compresses nothing. No bias correction, as in both codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import (
    Algorithm,
    Clock,
    Shard,
    Slot,
    Timed,
    option,
    replicated,
)
from reference_impls.algorithms.compressed_momentum import (
    HYPERPARAMETERS,
    TIMED,
    TINY,
    OneBitMean,
    WarmUp,
    check_one_bit_mean,
    check_warm_up,
    error_slots,
    masked,
    moved,
    one_bit_mean,
    squared_norm,
)
from reference_impls.algorithms.lion_update import mixed_in
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError


@dataclass(frozen=True)
class APMSqueeze(WarmUp, OneBitMean, Algorithm):
    """Kinds of step: ``warm-up`` (fp32 all-reduce of gradients) and ``compressed`` (1-bit momentum)."""

    initial_variance: float = option(0.0, "v at the start; 1 reproduces the prototype", ge=0)
    decay: Literal["decoupled", "l2"] = option(
        "decoupled", "weight decay on the parameters, or in the gradient before the momentum"
    )
    max_grad_norm: float | None = option(
        None,
        "clip by the global norm; in compressed steps by sqrt(mean |g_i|^2), one scalar on the wire",
        gt=0,
    )

    defaults: ClassVar[Mapping[str, Any]] = HYPERPARAMETERS
    reduces_gradient: ClassVar[bool] = False
    clipping: ClassVar[str] = "max_grad_norm"
    masks_momentum: ClassVar[bool] = False
    """Whether the momentum of coordinates without variance is 0, not only their step."""

    @property
    def scope(self) -> Literal["bucket", "model"]:  # type: ignore[override]
        """A global norm needs the whole gradient."""
        return "bucket" if self.max_grad_norm is None else "model"

    @property
    def slots(self) -> Mapping[str, Slot]:
        agreed = {"momentum": replicated(), "variance": replicated(self.initial_variance)}
        return {**agreed, **error_slots(self)}

    def check(self, world: Group) -> None:
        self.check_freezing()
        check_one_bit_mean(self)

    def check_freezing(self) -> None:
        """Raise `UnsupportedError` if the variance is never frozen, or frozen at nothing."""
        check_warm_up(self)
        if self.frozen_from == 0 and not self.initial_variance > TINY:
            raise UnsupportedError(
                "without warm-up and with initial_variance=0 no coordinate ever has a variance, and nothing moves: give "
                "warmup_steps >= 1, or an initial_variance (1 makes it momentum SGD)"
            )

    def plan(self, clock: Clock) -> str:
        return "warm-up" if clock.step < self.frozen_from else "compressed"

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        g = shard.grads
        if self.decay == "l2":
            for part, h in shard.groups():
                g[part].add_(shard.params[part], alpha=h["weight_decay"])
        if shard.kind == "warm-up":
            g = yield from shard.world.mean(g, "gradient")
            return g if self.max_grad_norm is None else g.mul_(self._clipping(squared_norm(g)))
        if self.max_grad_norm is not None:  # only local gradients exist: their root mean square norm
            square = yield from shard.world.mean(squared_norm(g).view(1), "norm")
            g = torch.mul(g, self._clipping(square), out=buffers.empty_like(g))
        u = mixed_in(shard, shard.state["momentum"], g)
        return (yield from one_bit_mean(self, shard, u, "momentum"))

    def update(self, shard: Shard, reduced: Tensor) -> None:
        m, v = shard.state["momentum"], shard.state["variance"]
        for part, h in shard.groups():
            beta1, beta2 = h["betas"]
            if shard.kind == "warm-up":
                m[part].lerp_(reduced[part], 1 - beta1)
                v[part].mul_(beta2).addcmul_(reduced[part], reduced[part], value=1 - beta2)
            else:
                m[part] = reduced[part]
                if self.masks_momentum:
                    masked(m[part], v[part])
            x = shard.params[part]
            if self.decay == "decoupled" and h["weight_decay"]:
                x.mul_(1 - h["lr"] * h["weight_decay"])
            x.add_(moved(m[part], v[part], h["eps"]), alpha=-h["lr"])

    def _clipping(self, square: Tensor) -> Tensor:
        """By what a gradient is multiplied so that its norm, given squared, is at most the largest. NaN passes."""
        assert self.max_grad_norm is not None
        return torch.clamp(self.max_grad_norm / (square.sqrt() + 1e-6), max=1.0)

    timed: ClassVar[Timed] = TIMED
