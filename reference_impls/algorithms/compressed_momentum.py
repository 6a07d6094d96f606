"""What Adam's compressed relatives share: two groups of options, and the functions that read them.

`one_bit_mean` is the compressed all-reduce (`reference_impls.reducers.compressed_all_reduce`) with its options; its
errors live in slots. `denominator` and `moved` are sqrt(v) + eps and m / (sqrt(v) + eps), for coordinates that have a
variance. The warm-up in full precision ends at step `frozen_from`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import (
    DEFAULT,
    FOREVER,
    Shard,
    Slot,
    Timed,
    View,
    option,
    owned,
    per_rank,
    per_tensor,
)
from reference_impls.codecs.sums import fixed_sum
from reference_impls.collectives import Exchange, Group
from reference_impls.compilation import compiled
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.compressed_all_reduce import (
    Norm,
    Scale,
    compressed_all_reduce,
)

TINY: Final = torch.finfo(torch.float32).tiny
HYPERPARAMETERS: Final[Mapping[str, Any]] = {
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.0,
}
"""Adam's, by the names of torch's parameter groups."""
COMPRESSION: Final = ("compressor", "norm", "scale", "pad_in_scale")
"""Options that only steps which compress read."""
WHEN: Final = ("warmup_steps", "warmup_fraction", "total_steps", "lr_warmup_steps")
"""Options that decide only when the warm-up ends."""


# ---- the one-bit mean ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneBitMean:
    """Options of a mean in one bit each way, and of the denominator that it is divided by."""

    compressor: Literal["sign", "none"] = option("sign", "none: an exact mean, as a control")
    norm: Norm = option("l2", "scale of a block: l2 keeps the norm, l2nz does over non-zeros, l1 contracts")
    scale: Scale = option("chunk", "on the way up one scale a server's chunk, a shard, or a tensor")
    pad_in_scale: bool = option(
        False, "padding takes part in scales and carries errors, as in DeepSpeed's 1-bit Adam"
    )


def check_one_bit_mean(own: OneBitMean) -> None:
    """Raise `UnsupportedError` if the options cannot go together."""
    if own.pad_in_scale and own.scale == "tensor":
        raise UnsupportedError(
            "pad_in_scale needs scale='shard' or 'chunk': tensors have no padding of their own here"
        )


def error_slots(own: OneBitMean) -> Mapping[str, Slot]:
    """What the one-bit mean carries from step to step."""
    errors = {"worker_error": per_rank(), "server_error": owned()}
    return {**errors, "pad_error": per_tensor("per_rank", _a_chunk)} if own.pad_in_scale else errors


def one_bit_mean(own: OneBitMean, shard: Shard, u: Tensor, stage: str) -> Exchange[Tensor]:
    """The mean of `u` over all ranks, in one bit each way (or exactly, and in place)."""
    if own.compressor == "none":
        return (yield from shard.world.mean(u, stage))
    errors = shard.state["worker_error"], shard.state["server_error"]
    pads = shard.state["pad_error"][shard.views[-1].name] if own.pad_in_scale else None
    return (yield from compressed_all_reduce(shard, u, *errors, stage, own.norm, own.scale, pads))


def forget_errors(shard: Shard) -> None:
    """What was lost so far is let go of."""
    shard.state["worker_error"].zero_()
    shard.state["server_error"].zero_()
    for error in shard.state.get("pad_error", {}).values():
        error.zero_()


def _a_chunk(view: View, world: Group) -> tuple[int, ...]:
    """An error a chunk for its padding, and one as server."""
    return (world.size + 1,)


# ---- the warm-up ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WarmUp:
    """Options that say when a warm-up in full precision ends and its variance is frozen."""

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
        assert self.total_steps is not None  # check_warm_up() has refused anything else
        return max(math.ceil(self.warmup_fraction * self.total_steps), self.lr_warmup_steps)


def check_warm_up(own: WarmUp) -> None:
    """Raise `UnsupportedError` if it is not said when the warm-up ends."""
    if own.warmup_steps is None and own.total_steps is None:
        raise UnsupportedError(
            f"{type(own).__name__} needs warmup_steps, or total_steps from which it takes warmup_fraction"
        )


TIMED: Final[Timed] = {
    "warm-up": {**dict.fromkeys((*WHEN, *COMPRESSION), DEFAULT), "warmup_steps": FOREVER},
    "compressed": {**dict.fromkeys(WHEN, DEFAULT), "warmup_steps": 1},
}
"""`Algorithm.timed` of the two phases; without a warm-up no coordinate would have a variance."""


# ---- Adam's arithmetic ---------------------------------------------------------------------------------------------


def denominator(v: Tensor, eps: float) -> Tensor:
    """sqrt(v) + eps, in a buffer of the pool."""
    return torch.sqrt(v, out=buffers.empty_like(v)).add_(eps)


def moved(m: Tensor, v: Tensor, eps: float) -> Tensor:
    """m over the `denominator` of v, in a buffer of the pool; 0 where there is no variance.

    There +-scale / eps would be enormous. NaN passes through.
    """
    out = buffers.empty_like(m)
    _move(out, m, v, torch.tensor(eps, dtype=m.dtype, device=m.device))
    return out


@compiled
def _move(out: Tensor, m: Tensor, v: Tensor, eps: Tensor) -> None:
    out.copy_(torch.where(v <= TINY, 0.0, m / (v.sqrt() + eps)))  # NaN is not <=


def masked(x: Tensor, v: Tensor) -> Tensor:
    """`x`, made 0 in place where there is no variance."""
    return x.masked_fill_(torch.le(v, TINY, out=buffers.empty_like(v, torch.bool)), 0.0)


def squared_norm(x: Tensor) -> Tensor:
    """|x|^2 in a fixed order, since replicas must get the same bits on whatever machine."""
    return fixed_sum(torch.mul(x, x, out=buffers.empty_like(x)))


def by_tensor(shard: Shard) -> Iterator[tuple[View, Mapping[str, Any]]]:
    """The parameters of a shard, each with the hyper-parameters of its group."""
    runs = list(shard.groups())
    for view in shard.views:
        yield (
            view,
            next(h for part, h in runs if part.start <= view.part.start <= view.part.stop <= part.stop),
        )


def one_number(view: View, world: Group) -> tuple[int, ...]:
    """Shape of state per tensor: one number."""
    return (1,)
