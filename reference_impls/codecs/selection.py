"""Which coordinates are the largest, by a rule that leaves nothing open: exactly k, ties to the lowest index.

Magnitudes are compared as the bits of a float without its sign, which order like numbers: 0 < denormals < ... < inf <
NaN. So what is not finite comes first and cannot be passed over in silence. All functions work on the last axis.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["kept", "largest", "magnitude"]

_WITHOUT_SIGN = 0x7FFFFFFF


def kept(ratio: float, numel: int) -> int:
    """How many of `numel` coordinates a ratio keeps: max(1, floor(ratio numel)); 0 of none."""
    return max(1, min(numel, int(ratio * numel))) if numel else 0


def magnitude(x: Tensor) -> Tensor:
    """float32 [..., d] -> int32 [..., d], >= 0, in the order of |x|; NaN above inf."""
    return x.contiguous().view(torch.int32) & _WITHOUT_SIGN


def largest(order: Tensor, k: int) -> Tensor:
    """Indices of the k largest integers, 1 <= k <= d, among equal ones the first: int64 [..., k], ascending."""
    numel = order.shape[-1]
    least = torch.kthvalue(order, numel - k + 1, dim=-1, keepdim=True).values
    above = order > least
    equal = order == least
    room = k - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= room))
    return chosen.nonzero()[:, -1].view(*order.shape[:-1], k)
