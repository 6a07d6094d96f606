"""The rule that APMSqueeze and 1-bit Adam share: Adam with an exact mean, then a frozen variance and a compressed momentum.

Warm-up (T_w steps): g = mean g_i; m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2; x <- x - lr m / (sqrt(v) + eps).
Compressed: u_i = b1 m + (1-b1) g_i from the agreed m; m <- CAR(u_i) with worker and server errors; same x with v frozen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import Cost, Shard, Slot, option, replicated
from reference_impls.algorithms.compressed_momentum import TINY, masked
from reference_impls.algorithms.lion_update import mixed_in
from reference_impls.algorithms.warm_up import WarmedUp
from reference_impls.codecs.sums import fixed_sum
from reference_impls.collectives import Exchange
from reference_impls.errors import UnsupportedError


@dataclass(frozen=True)
class FrozenVariance(WarmedUp):
    """Adam in the warm-up, then its variance as it is."""

    compress: Literal["momentum", "gradient"] = option("momentum", "what is sent compressed")
    bias_correction: bool = option(False, "Adam's bias corrections; the variance keeps its last one")
    initial_variance: float = option(0.0, "v at the start; 1 reproduces the prototype", ge=0)
    decay: Literal["decoupled", "l2"] = option(
        "decoupled", "weight decay on the parameters, or in the gradient before the momentum"
    )
    mask_momentum: bool = option(
        False, "the momentum of coordinates without variance is 0, not only their step"
    )
    max_grad_norm: float | None = option(
        None,
        "clip by the global norm; in compressed steps by sqrt(mean |g_i|^2), one scalar on the wire",
        gt=0,
    )

    unread: ClassVar[tuple[str, ...]] = ("compress", *WarmedUp.unread)
    clipping: ClassVar[str] = "max_grad_norm"

    @property
    def scope(self) -> Literal["bucket", "model"]:  # type: ignore[override]
        """A global norm needs the whole gradient."""
        return "bucket" if self.max_grad_norm is None else "model"

    @property
    def slots(self) -> Mapping[str, Slot]:
        agreed = {"momentum": replicated(), "variance": replicated(self.initial_variance)}
        return {**agreed, **self.error_slots}

    def check_freezing(self) -> None:
        super().check_freezing()
        if self.frozen_from == 0 and not self.initial_variance > TINY:
            raise UnsupportedError(
                "without warm-up and with initial_variance=0 no coordinate ever has a variance, and nothing moves: give "
                "warmup_steps >= 1, or an initial_variance (1 makes it momentum SGD)"
            )

    def wire_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Mapping[str, Cost]:
        clip = 0.0 if self.max_grad_norm is None else wire.all_reduce(4, n)
        return {**super().wire_bytes(shapes, n), "compressed": self.compressed_bytes(shapes, n) + clip}

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        g = self._with_decay(shard)
        if shard.kind == "warm-up":
            g = yield from shard.world.mean(g, "gradient")
            return g if self.max_grad_norm is None else g.mul_(_factor(self.max_grad_norm, _square(g)))
        if self.max_grad_norm is not None:
            square = yield from shard.world.mean(_square(g).view(1), "norm")
            g = torch.mul(g, _factor(self.max_grad_norm, square), out=buffers.empty_like(g))
        if self.compress == "gradient":
            return (yield from self.compressed_mean(shard, g, self.compress))
        u = mixed_in(shard, shard.state["momentum"], g)
        return (yield from self.compressed_mean(shard, u, self.compress))

    def _with_decay(self, shard: Shard) -> Tensor:
        if self.decay == "l2":
            for part, h in shard.groups():
                shard.grads[part].add_(shard.params[part], alpha=h["weight_decay"])
        return shard.grads

    def update(self, shard: Shard, reduced: Tensor) -> None:
        m, v = shard.state["momentum"], shard.state["variance"]
        agreed_momentum = shard.kind == "compressed" and self.compress == "momentum"
        for part, h in shard.groups():
            beta1, beta2 = h["betas"]
            if agreed_momentum:
                m[part] = reduced[part]
            else:
                m[part].lerp_(reduced[part], 1 - beta1)
            if shard.kind == "warm-up":
                v[part].mul_(beta2).addcmul_(reduced[part], reduced[part], value=1 - beta2)
            elif self.mask_momentum:
                masked(m[part], v[part])
            correction1 = correction2 = 1.0
            if self.bias_correction:
                correction1 = 1 - beta1 ** (shard.step + 1)
                correction2 = self.variance_correction(shard, beta2)
            x = shard.params[part]
            if self.decay == "decoupled" and h["weight_decay"]:
                x.mul_(1 - h["lr"] * h["weight_decay"])
            x.add_(self.moved(m[part], v[part], h["eps"], correction2), alpha=-h["lr"] / correction1)

    def variance_correction(self, shard: Shard, beta2: float) -> float:
        """1 - b2^t, as it was when the variance was last changed."""
        warm = min(shard.step + 1, self.frozen_from)
        return 1 - beta2**warm if warm else 1.0


def _square(x: Tensor) -> Tensor:
    """|x|^2 in a fixed order."""
    return fixed_sum(torch.mul(x, x, out=buffers.empty_like(x)))


def _factor(max_grad_norm: float, square: Tensor) -> Tensor:
    """By what a gradient is multiplied so that its norm, given squared, is at most `max_grad_norm`. NaN passes."""
    return torch.clamp(max_grad_norm / (square.sqrt() + 1e-6), max=1.0)
