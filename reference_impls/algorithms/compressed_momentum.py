"""What Adam's compressed relatives have in common: how a vector is averaged in one bit, and how a variance is a metric.

`compressed_mean` is the compressed all-reduce (`reference_impls.reducers.compressed_all_reduce`) with its options; its
errors live in slots. `denominator` and `moved` are sqrt(v) + eps and m / (sqrt(v) + eps), for coordinates that have a
variance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import (
    Algorithm,
    Shard,
    Slot,
    View,
    option,
    owned,
    per_rank,
    per_tensor,
)
from reference_impls.collectives import Exchange, Group
from reference_impls.compilation import compiled
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.compressed_all_reduce import (
    Norm,
    Scale,
    compressed_all_reduce,
    wire_bytes,
)

TINY = torch.finfo(torch.float32).tiny
COMPRESSION = ("compressor", "norm", "scale", "pad_in_scale")
"""Options that only steps which compress read."""


@dataclass(frozen=True)
class CompressedMomentum(Algorithm):
    """The options of a one-bit mean, and its state."""

    compressor: Literal["sign", "none"] = option("sign", "none: an exact mean, as a control")
    norm: Norm = option("l2", "scale of a block: l2 keeps the norm, l2nz does over non-zeros, l1 contracts")
    scale: Scale = option("chunk", "on the way up one scale a server's chunk, a shard, or a tensor")
    pad_in_scale: bool = option(
        False, "padding takes part in scales and carries errors, as in DeepSpeed's 1-bit Adam"
    )
    eps_inside_root: bool = option(False, "sqrt(v + eps) instead of sqrt(v) + eps")

    defaults: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": 0.0,
    }
    reduces_gradient: ClassVar[bool] = False

    @property
    def error_slots(self) -> Mapping[str, Slot]:
        """What the one-bit mean carries from step to step."""
        errors = {"worker_error": per_rank(fold="mean"), "server_error": owned()}
        return {**errors, "pad_error": per_tensor("per_rank", _a_chunk)} if self.pad_in_scale else errors

    def check(self, world: Group) -> None:
        if self.pad_in_scale and self.scale == "tensor":
            raise UnsupportedError(
                "pad_in_scale needs scale='shard' or 'chunk': tensors have no padding of their own here"
            )

    def compressed_mean(self, shard: Shard, u: Tensor, stage: str) -> Exchange[Tensor]:
        """The mean of `u` over all ranks, in one bit each way (or exactly, and in place)."""
        if self.compressor == "none":
            return (yield from shard.world.mean(u, stage))
        errors = shard.state["worker_error"], shard.state["server_error"]
        pads = shard.state["pad_error"][shard.views[-1].name] if self.pad_in_scale else None
        return (yield from compressed_all_reduce(shard, u, *errors, stage, self.norm, self.scale, pads))

    def forget_errors(self, shard: Shard) -> None:
        """What was lost so far is let go of."""
        shard.state["worker_error"].zero_()
        shard.state["server_error"].zero_()
        for error in shard.state.get("pad_error", {}).values():
            error.zero_()

    def compressed_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> float:
        """Bytes that a rank sends in one `compressed_mean`."""
        if self.compressor == "none":
            return wire.all_reduce(4 * wire.elements(shapes), n)
        return wire_bytes(shapes, n, self.scale)

    @property
    def compressed_bits(self) -> str:
        """Bits that a worker sends a parameter in one `compressed_mean`, for `traits`."""
        if self.compressor == "none":
            return "2 (n-1)/n x 32"
        return "2 (n-1)/n + 64 (n-1)/d" + (" a tensor" if self.scale == "tensor" else "")

    def denominator(self, v: Tensor, eps: float) -> Tensor:
        """sqrt(v) + eps, in a buffer of the pool."""
        out = buffers.empty_like(v)
        if self.eps_inside_root:
            return torch.add(v, eps, out=out).sqrt_()
        return torch.sqrt(v, out=out).add_(eps)

    def moved(self, m: Tensor, v: Tensor, eps: float, correction: float = 1.0) -> Tensor:
        """m over the `denominator` of v / correction, in a buffer of the pool; 0 where there is no variance.

        There +-scale / eps would be enormous. NaN passes through.
        """
        out = buffers.empty_like(m)
        numbers = torch.tensor([correction, eps], dtype=m.dtype, device=m.device)
        _move(out, m, v, numbers, self.eps_inside_root)
        return out


@compiled
def _move(out: Tensor, m: Tensor, v: Tensor, numbers: Tensor, inside: bool) -> None:
    corrected, eps = v / numbers[0], numbers[1]
    denominator = (corrected + eps).sqrt() if inside else corrected.sqrt() + eps
    out.copy_(torch.where(v <= TINY, 0.0, m / denominator))  # NaN is not <=


def masked(x: Tensor, v: Tensor) -> Tensor:
    """`x`, made 0 in place where there is no variance."""
    return x.masked_fill_(torch.le(v, TINY, out=buffers.empty_like(v, torch.bool)), 0.0)


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


def _a_chunk(view: View, world: Group) -> tuple[int, ...]:
    """An error a chunk for its padding, and one as server."""
    return (world.size + 1,)
