"""Which coordinates are the largest, by a rule that leaves nothing open: exactly k, ties to the lowest index.

Magnitudes are compared as the bits of a float without its sign, which order like numbers: 0 < denormals < ... < inf <
NaN. So what is not finite comes first and cannot be passed over in silence. All functions work on the last axis.

Large vectors on the CPU go through `codecs.candidates`. On other devices keys of value and index select in one call, and
no number is brought to the host.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from reference_impls import buffers, kernels
from reference_impls.codecs import candidates
from reference_impls.compilation import THRESHOLD

__all__ = ["kept", "largest", "largest_magnitudes", "magnitude", "taken"]

_WITHOUT_SIGN: Final = 0x7FFFFFFF
_ALL_BITS: Final = -1
_FEW: Final = 16


def kept(ratio: float, numel: int) -> int:
    """How many of `numel` coordinates a ratio keeps: max(1, floor(ratio numel)); 0 of none."""
    return max(1, min(numel, int(ratio * numel))) if numel else 0


def magnitude(x: Tensor) -> Tensor:
    """float32 [..., d] -> int32 [..., d], >= 0, in the order of |x|; NaN above inf."""
    bits = x.contiguous().view(torch.int32)
    return torch.bitwise_and(bits, _WITHOUT_SIGN, out=buffers.empty_like(bits))


def largest(order: Tensor, k: int) -> Tensor:
    """Indices of the k largest integers, 1 <= k <= d, among equal ones the first: int64 [..., k], ascending."""
    return _places(order, _ALL_BITS, k)


def largest_magnitudes(x: Tensor, k: int) -> Tensor:
    """`largest(magnitude(x), k)` of float32 [..., d], without storing the magnitudes."""
    return _places((x if x.stride(-1) == 1 else x.contiguous()).view(torch.int32), _WITHOUT_SIGN, k)


def taken(x: Tensor, places: Tensor) -> Tensor:
    """x.gather(-1, places), [..., d] and int64 [..., k] -> [..., k], in memory from `buffers`."""
    out = buffers.empty(places.shape, x.dtype, x.device)
    if x.dim() == 1:
        return torch.index_select(x, 0, places, out=out)  # on one thread, see `codecs.candidates`
    return torch.gather(x, -1, places, out=out)


def _places(order: Tensor, mask: int, k: int) -> Tensor:
    """Of the integers ``order & mask``."""
    *lead, numel = order.shape
    if k == numel:
        return torch.arange(k, device=order.device).expand(order.shape)
    if not order.is_contiguous():
        order = buffers.empty_like(order).copy_(order)
    rows = order.view(-1, numel)
    if _suits_a_kernel(rows, k) and kernels.takes("selection.largest", rows):
        from reference_impls.kernels import selection as on_gpu

        found = torch.stack([on_gpu.largest(row, mask, k) for row in rows])
    elif order.device.type == "cpu" and candidates.suits(rows):
        found = candidates.largest(rows, mask, k)
    elif order.device.type != "cpu" and order.dtype == torch.int32:
        found = _by_keys(rows & mask, k)
    else:
        found = _by_counting(rows & mask, k)
    return found.view(*lead, k)


def _suits_a_kernel(rows: Tensor, k: int) -> bool:
    """Few long rows of which little is wanted."""
    return (
        rows.dtype == torch.int32
        and len(rows) <= _FEW
        and rows.shape[-1] >= THRESHOLD
        and 64 * k <= rows.shape[-1]
    )


def _by_counting(order: Tensor, k: int) -> Tensor:
    """The definition: what is above the k-th largest, and the first of those that equal it."""
    least = torch.kthvalue(order, order.shape[-1] - k + 1, dim=-1, keepdim=True).values
    above = order > least
    equal = order == least
    room = k - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1, dtype=torch.int32) <= room))
    return chosen.nonzero()[:, -1]


def _by_keys(order: Tensor, k: int) -> Tensor:
    """By int64 keys, all different: the value in the upper half, below it how far the index is from the end."""
    keys = (order.long() << 32) + torch.arange(order.shape[-1] - 1, -1, -1, device=order.device)
    return keys.topk(k, dim=-1, sorted=False).indices.sort(dim=-1).values
