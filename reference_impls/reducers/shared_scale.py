"""Scales that all ranks share, so that codes on them may be added: M of Global-QSGD, and TernGrad's, IntSGD's and others'.

One a shard (``bucket``), one a parameter (``tensor``), or one for each `block_size` elements counted from the beginning
of the shard (``block``); results of the first and the last depend on the size of buckets. ``linf``: largest magnitude over
all ranks, 4 bytes in a max all-reduce, NaN sent as +inf. ``l2``: 2-norm of all ranks' values together, summed as float64,
so that no square over- or underflows: 8 bytes. A value that is not finite on any rank makes the scale not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import Shard
from reference_impls.codecs.sums import fixed_sum, largest
from reference_impls.collectives import Exchange

__all__ = ["BUCKET_MAXIMUM", "NORMS", "SCALES", "Norm", "Scale", "Scaling", "an_element", "shared_scale"]

Norm = Literal["linf", "l2"]
Scale = Literal["bucket", "tensor", "block"]
NORMS: Final = ("linf", "l2")
SCALES: Final = ("bucket", "tensor", "block")


@dataclass(frozen=True)
class Scaling:
    """What M is (`norm`), and how many there are (`per`); see the module's text."""

    norm: Norm = "linf"
    per: Scale = "bucket"
    block_size: int = 512

    def bytes_sent(self, lengths: Sequence[int], n: int) -> float:
        """Bytes that a rank sends to agree on the scales of a shard whose tensors have these lengths."""
        blocks = -(-sum(lengths) // self.block_size)
        count = {"bucket": 1, "tensor": len(lengths), "block": blocks}[self.per]
        return wire.all_reduce((4 if self.norm == "linf" else 8) * count, n)


BUCKET_MAXIMUM: Final = Scaling()


def shared_scale(shard: Shard, x: Tensor, stage: str, scaling: Scaling) -> Exchange[Tensor]:
    """The scale(s) of all ranks, float32: 0-dimensional for ``bucket``, else [d], one an element."""
    norm, block = scaling.norm, scaling.block_size
    if scaling.per == "bucket":
        own = _size_of(x, norm).view(1)
    elif scaling.per == "tensor":
        own = torch.stack([_size_of(x[v.part], norm) for v in shard.views])
    else:
        padded = buffers.empty(x.numel() + -x.numel() % block, x.dtype, x.device)
        padded[: x.numel()] = x
        padded[x.numel() :].zero_()
        own = _size_of(padded.view(-1, block), norm)
    if norm == "linf":
        shared = yield from shard.world.max(own, f"{stage}-scale")
    else:
        shared = (yield from shard.world.sum(own, f"{stage}-scale")).sqrt().to(torch.float32)
    if scaling.per == "bucket":
        return shared[0]
    if scaling.per == "block":
        rows = buffers.empty((shared.numel(), block), shared.dtype, shared.device)
        return rows.copy_(shared.unsqueeze(-1)).view(-1)[: shard.d]
    return an_element(shard, shared)


def an_element(shard: Shard, values: Tensor) -> Tensor:
    """One value a tensor -> [d], one an element, in a buffer of the pool."""
    out = buffers.empty(shard.d, values.dtype, values.device)
    for view, value in zip(shard.views, values, strict=True):
        out[view.part] = value
    return out


def _size_of(x: Tensor, norm: Norm) -> Tensor:
    """[..., k] -> [...]: largest magnitude, or sum of squares in float64 by the fixed tree."""
    if norm == "l2":
        return fixed_sum(x, "wide square")
    return largest(x) if x.shape[-1] else x.new_zeros(x.shape[:-1])
