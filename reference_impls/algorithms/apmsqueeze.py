"""APMSqueeze: Adam for a while, then its variance frozen as preconditioner and the momentum sent in one bit. 2008.11343.

Warm-up (T_w steps): g = mean g_i; m <- b1 m + (1-b1) g; v <- b2 v + (1-b2) g^2; x <- x - lr m / (sqrt(v) + eps).
Compressed: u_i = b1 m + (1-b1) g_i from the agreed m; m <- CAR(u_i) with worker and server errors; same x with v frozen.
The body of the paper could not be read; its first author's prototype and DeepSpeed's first 1-bit Adam were.

Differences: weight decay is decoupled (the prototype adds it to the gradient). v starts at 0, as in DeepSpeed (there at
1). Coordinates whose frozen variance is 0 are not moved, since +-scale / eps would be enormous. A bucket is compressed
as one vector (the prototype compresses tensor by tensor, and never those of fewer than 8 n elements), with the scale
over all elements of a piece (there over those that are not 0). T_w is 15 % of the training unless given, borrowed from
1-bit Adam (the paper's value was not readable), and never before the learning rate's warm-up ends. The abstract speaks
of compressing gradients, all code compresses the momentum: so does this; ``compress="gradient"`` is the other reading.
One worker compresses nothing. No bias correction, as in both codes, unless asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reference_impls.algorithm import Algorithm, Clock, Shard, Slot, option, owned, per_rank, replicated
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.compressed_all_reduce import compressed_all_reduce

_FOREVER = 1_000_000_000  # steps
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class APMSqueeze(Algorithm):
    """Kinds of step: ``warm-up`` (fp32 all-reduce of gradients) and ``compressed`` (1-bit momentum)."""

    warmup_steps: int | None = option(
        None, "T_w: steps of exact Adam; default warmup_fraction of total_steps"
    )
    warmup_fraction: float = option(0.15, "T_w as a share of total_steps")
    total_steps: int | None = option(None, "steps of the whole training, from which T_w follows")
    lr_warmup_steps: int = option(0, "steps of learning-rate warm-up; T_w is never shorter")
    compress: Literal["momentum", "gradient"] = option("momentum", "what is sent compressed")
    compressor: Literal["sign", "none"] = option("sign", "none: an exact mean, as a control")
    norm: Literal["l2", "l1"] = option("l2", "scale of a block: l2 keeps the norm, l1 is a contraction")
    scale: Literal["chunk", "shard"] = option(
        "chunk", "one scale a server's chunk, or one a shard, on the way up"
    )
    bias_correction: bool = option(False, "Adam's bias corrections; the variance keeps its last one")
    initial_variance: float = option(0.0, "v at the start; 1 reproduces the prototype")

    defaults: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
    }
    reduces_gradient: ClassVar[bool] = False

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {
            "momentum": replicated(),
            "variance": replicated(self.initial_variance),
            "worker_error": per_rank(),
            "server_error": owned(),
        }

    @property
    def frozen_from(self) -> int:
        """T_w: the first compressed step."""
        if self.warmup_steps is not None:
            return max(self.warmup_steps, self.lr_warmup_steps)
        assert self.total_steps is not None  # check() has refused anything else
        return max(math.ceil(self.warmup_fraction * self.total_steps), self.lr_warmup_steps)

    def check(self, world: Group) -> None:
        if self.warmup_steps is None and self.total_steps is None:
            raise UnsupportedError(
                "APMSqueeze needs warmup_steps, or total_steps from which it takes warmup_fraction"
            )
        if (self.warmup_steps or 0) < 0 or not 0 <= self.warmup_fraction <= 1:
            raise UnsupportedError("APMSqueeze wants warmup_steps >= 0 and 0 <= warmup_fraction <= 1")
        for name, value, known in (
            ("compress", self.compress, ("momentum", "gradient")),
            ("compressor", self.compressor, ("sign", "none")),
            ("norm", self.norm, ("l2", "l1")),
            ("scale", self.scale, ("chunk", "shard")),
        ):
            if value not in known:
                raise UnsupportedError(f"{name} must be {' or '.join(known)}, got {value!r}")

    def steady(self) -> Mapping[str, Algorithm]:
        compression = ("compress", "compressor", "norm", "scale")
        begin = ("warmup_steps", "warmup_fraction", "total_steps", "lr_warmup_steps")
        found = {
            "warm-up": self.at_defaults(*begin, *compression, warmup_steps=_FOREVER),
            "compressed": self.at_defaults(
                *begin, warmup_steps=1
            ),  # at 0, no coordinate would have a variance
        }
        if self.warmup_steps is None and self.total_steps is None:
            return found  # incomplete: either may come
        if self.frozen_from == 0:
            del found["warm-up"]
        elif self.total_steps is not None and self.frozen_from >= self.total_steps:
            del found["compressed"]
        return found

    def plan(self, clock: Clock) -> str:
        return "warm-up" if clock.step < self.frozen_from else "compressed"

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if shard.kind == "warm-up":
            return (yield from shard.world.mean(shard.grads, "gradient"))
        if self.compress == "momentum":
            u = shard.state["momentum"].clone()
            for part, h in shard.groups():
                u[part].lerp_(shard.grads[part], 1 - h["betas"][0])
        else:
            u = shard.grads.clone()
        if self.compressor == "none":
            return (yield from shard.world.mean(u, self.compress))
        errors = shard.state["worker_error"], shard.state["server_error"]
        return (yield from compressed_all_reduce(shard, u, *errors, self.compress, self.norm, self.scale))

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
            correction1 = correction2 = 1.0
            if self.bias_correction:
                correction1 = 1 - beta1 ** (shard.step + 1)
                correction2 = 1 - beta2 ** min(shard.step + 1, self.frozen_from) if self.frozen_from else 1.0
            x = shard.params[part].mul_(1 - h["lr"] * h["weight_decay"])
            denominator = (v[part] / correction2).sqrt_().add_(h["eps"])
            move = torch.where(
                v[part] <= _TINY, 0.0, m[part] / denominator
            )  # NaN is not <= and passes through
            x.add_(move, alpha=-h["lr"] / correction1)
