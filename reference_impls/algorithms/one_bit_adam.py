"""APMSqueeze and 1-bit Adam, and what all of Adam's compressed relatives share.

A warm-up in full precision ends at step `frozen_from`; then the variance is frozen, and the momentum travels in one bit each way
(`aggregators.compressed_all_reduce`), with errors that live in state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import torch
from torch import Tensor

from reference_impls.aggregators.compressed_all_reduce import Norm, Scale, compressed_all_reduce
from reference_impls.algorithms.lion import mixed_in
from reference_impls.compressors.sums import fixed_sum
from reference_impls.core import compute
from reference_impls.core.algorithm import (
    DEFAULT,
    FOREVER,
    Algorithm,
    Bucket,
    StateSpec,
    Timed,
    TrainState,
    View,
    option,
    owned,
    per_rank,
    per_tensor,
    replicated,
)
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.compute import compiled
from reference_impls.core.errors import UnsupportedError

TINY: Final = torch.finfo(torch.float32).tiny
COMPRESSION: Final = ("compressor", "norm", "scale", "pad_in_scale")
"""Options that only steps which compress read."""
WHEN: Final = ("warmup_steps", "warmup_fraction", "total_steps", "lr_warmup_steps")
"""Options that decide only when the warm-up ends."""
TIMED: Final[Timed] = {
    "warm-up": {**dict.fromkeys((*WHEN, *COMPRESSION), DEFAULT), "warmup_steps": FOREVER},
    "compressed": {**dict.fromkeys(WHEN, DEFAULT), "warmup_steps": 1},
}
"""`Algorithm.timed` of the two phases; without a warm-up no coordinate would have a variance."""


@dataclass(frozen=True)
class OneBitMean(Algorithm):
    """Options of a mean in one bit each way, and of the denominator that it is divided by."""

    compressor: Literal["sign", "none"] = option("sign", "none: an exact mean, as a control")
    norm: Norm = option("l2", "scale of a block: l2 keeps the norm, l2nz does over non-zeros, l1 contracts")
    scale: Scale = option("chunk", "on the way up one scale a server's chunk (chunk), or a bucket (shard)")
    pad_in_scale: bool = option(
        False, "padding takes part in scales and carries errors, as in DeepSpeed's 1-bit Adam"
    )

    defaults: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
    }
    reduces_gradient: ClassVar[bool] = False

    @property
    def state(self) -> Mapping[str, StateSpec]:
        """What the one-bit mean carries from step to step."""
        errors = {"worker_error": per_rank(), "server_error": owned()}
        return {**errors, "pad_error": per_tensor("per_rank", _a_chunk)} if self.pad_in_scale else errors

    def one_bit_mean(self, bucket: Bucket, u: Tensor, stage: str) -> Exchange[Tensor]:
        """The mean of `u` over all ranks, in one bit each way (or exactly, and in place)."""
        if self.compressor == "none":
            return (yield from bucket.world.mean(u, stage))
        errors = bucket.state["worker_error"], bucket.state["server_error"]
        pads = bucket.state["pad_error"][bucket.views[-1].name] if self.pad_in_scale else None
        return (yield from compressed_all_reduce(bucket, u, *errors, stage, self.norm, self.scale, pads))


def _a_chunk(view: View, world: Group) -> tuple[int, ...]:
    """An error a chunk for its padding, and one as server."""
    return (world.size + 1,)


@dataclass(frozen=True)
class WarmUp(OneBitMean):
    """Options that say when a warm-up in full precision ends and its variance is frozen.

    Kinds of step: ``warm-up`` (fp32 all-reduce of gradients) and ``compressed`` (1-bit momentum).
    """

    warmup_steps: int | None = option(
        None, "T_w: steps in full precision; default warmup_fraction of total_steps", ge=0
    )
    warmup_fraction: float = option(0.15, "T_w as a share of total_steps", ge=0, le=1)
    total_steps: int | None = option(None, "steps of the whole training, from which T_w follows", ge=1)
    lr_warmup_steps: int = option(0, "steps of learning-rate warm-up; T_w is never shorter", ge=0)

    @property
    def frozen_from(self) -> int:
        """T_w: the first compressed step."""
        if self.warmup_steps is not None:
            return max(self.warmup_steps, self.lr_warmup_steps)
        assert self.total_steps is not None  # check() has refused anything else
        share = round(self.warmup_fraction * self.total_steps, 6)  # 0.07 x 100 is 7, not a little more
        return max(math.ceil(share), self.lr_warmup_steps)

    def check(self, world: Group) -> None:
        self.check_freezing()
        super().check(world)

    def check_freezing(self) -> None:
        """Raise `UnsupportedError` if it is not said when the warm-up ends."""
        if self.warmup_steps is None and self.total_steps is None:
            raise UnsupportedError(
                f"{type(self).__name__} needs warmup_steps, or total_steps from which it takes warmup_fraction"
            )

    def plan(self, train_state: TrainState) -> str:
        return "warm-up" if train_state.step < self.frozen_from else "compressed"

    timed: ClassVar[Timed] = TIMED


# ---- Adam's arithmetic ---------------------------------------------------------------------------------------------


def denominator(v: Tensor, eps: float) -> Tensor:
    """sqrt(v) + eps, in a buffer of the pool."""
    return torch.sqrt(v, out=compute.empty_like(v)).add_(eps)


def moved(m: Tensor, v: Tensor, eps: float) -> Tensor:
    """m over the `denominator` of v, in a buffer of the pool; 0 where there is no variance.

    There +-scale / eps would be enormous. NaN passes through.
    """
    out = compute.empty_like(m)
    _move(out, m, v, compute.constant(eps, m.dtype, m.device))
    return out


@compiled
def _move(out: Tensor, m: Tensor, v: Tensor, eps: Tensor) -> None:
    out.copy_(torch.where(v <= TINY, 0.0, m / (v.sqrt() + eps)))  # NaN is not <=


def masked(x: Tensor, v: Tensor) -> Tensor:
    """`x`, made 0 in place where there is no variance."""
    return x.masked_fill_(torch.le(v, TINY, out=compute.empty_like(v, torch.bool)), 0.0)


# ---- the methods ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class APMSqueeze(WarmUp):
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
    1). Coordinates whose variance is at most 1.2e-38, the least normal float32, are not moved, since +-scale / eps would be
    enormous. A bucket is compressed as one vector (the prototype compresses tensor by tensor, and never those of fewer than
    8 n elements), with the scale over all elements of a piece (there over those that are not 0); pieces are of a bucket, so
    results depend on the bucket size. T_w is 15 % of the training unless given, borrowed from 1-bit Adam (the paper's value was
    not readable), and never before the learning rate's warm-up ends. The abstract speaks of compressing gradients, all code
    compresses the momentum: so does this. Clipping is our own reading: only local gradients exist in compressed steps, so their
    root mean square norm, which is never below the norm of the mean, stands in for it. One worker compresses nothing. No bias
    correction, as in both codes.
    """

    initial_variance: float = option(0.0, "v at the start; 1 reproduces the prototype", ge=0)
    decay: Literal["decoupled", "l2"] = option(
        "decoupled", "weight decay on the parameters, or in the gradient before the momentum"
    )
    max_grad_norm: float | None = option(
        None,
        "clip by the global norm; in compressed steps by sqrt(mean |g_i|^2), one scalar on the wire",
        gt=0,
    )

    clipping: ClassVar[str] = "max_grad_norm"
    masks_momentum: ClassVar[bool] = False
    """Whether the momentum of coordinates without variance is 0, not only their step."""

    @property
    def state(self) -> Mapping[str, StateSpec]:
        agreed = {"momentum": replicated(), "variance": replicated(self.initial_variance)}
        return {**agreed, **super().state}

    def check_freezing(self) -> None:
        """Raise `UnsupportedError` if the variance is never frozen, or frozen at nothing."""
        super().check_freezing()
        if self.frozen_from == 0 and not self.initial_variance > TINY:
            raise UnsupportedError(
                "without warm-up and with initial_variance=0 no coordinate ever has a variance, and nothing moves: give "
                "warmup_steps >= 1, or an initial_variance (1 makes it momentum SGD)"
            )

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        g = bucket.grads
        if self.decay == "l2":
            for part, decay in bucket.decays():
                g[part].add_(bucket.params[part], alpha=decay)
        if bucket.kind == "warm-up":
            g = yield from bucket.world.mean(g, "gradient")
            return g if self.max_grad_norm is None else g.mul_(self._clipping(fixed_sum(g, "square")))
        if self.max_grad_norm is not None:  # only local gradients exist: their root mean square norm
            square = yield from bucket.world.mean(fixed_sum(g, "square").view(1), "norm")
            g = torch.mul(g, self._clipping(square), out=compute.empty_like(g))
        u = mixed_in(bucket, bucket.state["momentum"], g)
        return (yield from self.one_bit_mean(bucket, u, "momentum"))

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        m, v = bucket.state["momentum"], bucket.state["variance"]
        for part, h in bucket.groups():
            beta1, beta2 = h["betas"]
            if bucket.kind == "warm-up":
                m[part].lerp_(reduced[part], 1 - beta1)
                v[part].mul_(beta2).addcmul_(reduced[part], reduced[part], value=1 - beta2)
            else:
                m[part] = reduced[part]
                if self.masks_momentum:
                    masked(m[part], v[part])
            x = bucket.params[part]
            if self.decay == "decoupled" and h["weight_decay"]:
                x.mul_(1 - h["lr"] * h["weight_decay"])
            compute.add_scaled(x, moved(m[part], v[part], h["eps"]), -h["lr"])

    def _clipping(self, square: Tensor) -> Tensor:
        """By what a gradient is multiplied so that its norm, given squared, is at most the largest. NaN passes."""
        assert self.max_grad_norm is not None
        return torch.clamp(self.max_grad_norm / (square.sqrt() + 1e-6), max=1.0)


@dataclass(frozen=True)
class OneBitAdam(APMSqueeze):
    """1-bit Adam: APMSqueeze's rule with one scale a buffer, a momentum mask, and a freeze that may come by itself. 2102.02888.

    Warm-up (T_w steps, ``freeze_step`` elsewhere): Adam without bias correction on the exact mean gradient. Then v is
    frozen, u_i = b1 m + (1-b1) g_i is averaged in one bit with worker and server errors, and x <- x - lr m / (sqrt(v) + eps).
    With ``freeze="auto"`` the variance is frozen when |v|_1 and what it was `auto_window` steps before are within a factor
    `auto_ratio` of each other. The body of the paper could not be read; DeepSpeed's code, tutorial and blog were.

    ``one-bit-adam-deepspeed`` fixes DeepSpeed's numbers: one scale a buffer on the way up, padding takes part in scales
    and carries errors. Not repeated there, on purpose: its first call only allocates, which in fp32 throws the first
    gradient away and in fp16 shortens the warm-up by a step; a checkpoint loses the errors and the momentum mask, and in
    fp32 a resumed run averages nothing in its first step, so that replicas part; scales are gathered as tensors without
    dimension, which gloo refuses; groups that are never frozen are averaged over all processes; every parameter is padded
    and sent alone in fp32; max_grad_norm, which it takes and ignores, works here.

    Differences: the mask is not given but is where the frozen variance is 0 (rows of a table that no batch reads): their
    agreed momentum is set to 0, their errors are kept, as in DeepSpeed. The buffer is a bucket; DeepSpeed's is a parameter
    group (fp16) or a parameter (fp32), and is padded to n lcm(n, 8) elements, which is our 8 n where n divides 8. T_w is
    15 % of the training unless given (15 to 25 % in the tutorial), and never before the learning rate's warm-up ends. The
    automatic freeze compares at multiples of the window only, and both ways: as third parties' notes have it, later over
    earlier, a variance that starts at 0 and grows would pass at once. Its ratio is known from those notes, its window of
    1 / (1 - b2) steps is our own reading, so it is no default. One worker compresses nothing.
    """

    scale: Scale = option("shard", "on the way up one scale a server's chunk (chunk), or a bucket (shard)")
    freeze: Literal["steps", "auto"] = option(
        "steps", "steps: after T_w; auto: when the variance stops growing"
    )
    auto_ratio: float = option(
        0.96, "freeze when |v|_1 then and now are within this factor (freeze=auto)", gt=0, le=1
    )
    auto_window: int = option(1000, "steps between the two; 1000 is 1 / (1 - 0.999) (freeze=auto)", ge=1)

    masks_momentum: ClassVar[bool] = True

    def check_freezing(self) -> None:
        if self.freeze == "steps":
            super().check_freezing()

    @property
    def plans_from_data(self) -> bool:
        return self.freeze == "auto"

    def plan(self, train_state: TrainState) -> str:
        if self.freeze != "auto":
            return super().plan(train_state)
        counters = train_state.counters  # of the variance, which is the same on all ranks
        if "frozen" not in counters and train_state.step >= self.lr_warmup_steps:
            before, norm = counters.get("norm_before", 0.0), counters.get("norm", 0.0)
            if min(before, norm) >= self.auto_ratio * max(before, norm) > 0:
                counters["frozen"] = train_state.step
        return "compressed" if "frozen" in counters else "warm-up"

    def remember(self, buckets: Sequence[Bucket], reduced: Sequence[Tensor]) -> Mapping[str, int | float]:
        """|v|_1 once a window, as it was before this step's update, and what it was a window earlier."""
        train_state = buckets[0].train_state
        if (
            self.freeze == "steps"
            or train_state.kind != "warm-up"
            or train_state.choice(lambda now: now.step == 0 or now.step % self.auto_window != 0)
        ):
            return {}
        norm = sum(
            float(fixed_sum(bucket.state["variance"].double())) for bucket in buckets
        )  # alike on all ranks
        return {"norm_before": train_state.counters.get("norm", 0.0), "norm": norm}

    timed: ClassVar[Timed] = {
        kind: {**changes, **dict.fromkeys(("freeze", "auto_ratio", "auto_window"), DEFAULT)}
        for kind, changes in TIMED.items()
    }
