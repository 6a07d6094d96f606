"""The largest coordinates of a vector: which they are, and how they travel as places and values. Wire format version 1.

Which: by a rule that leaves nothing open, exactly k, ties to the lowest index. Magnitudes are compared as the bits of a float
without its sign, which order like numbers: 0 < denormals < ... < inf < NaN. So what is not finite comes first and cannot be
passed over in silence. All functions work on the last axis. A full selection costs fifty times a copy; on the CPU, where little
is wanted of a large vector, a bound leaves few candidates (`_by_groups`). On other devices keys of value and index select in one
call, and no number is brought to the host.

Both compressors are biased: use error feedback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reference_impls.compressors import bins, packing
from reference_impls.compressors.sums import fixed_mean
from reference_impls.core import compute
from reference_impls.core.compute import THRESHOLD, Key, compiled
from reference_impls.core.errors import UnsupportedError

WIRE_VERSION: Final = 1

_WITHOUT_SIGN: Final = 0x7FFFFFFF
_ALL_BITS: Final = -1
_FEW: Final = 16
_SHORTEST: Final = 1024  # elements of a row from which on groups are made
_GROUP: Final = 16  # elements, a stride apart


def kept(ratio: float, numel: int) -> int:
    """How many of `numel` coordinates a ratio keeps: max(1, floor(ratio numel)); 0 of none."""
    return max(1, min(numel, int(round(ratio * numel, 6)))) if numel else 0  # 0.29 x 100 is 29


def magnitude(x: Tensor) -> Tensor:
    """float32 [..., d] -> int32 [..., d], >= 0, in the order of |x|; NaN above inf."""
    bits = x.contiguous().view(torch.int32)
    return torch.bitwise_and(bits, _WITHOUT_SIGN, out=compute.empty_like(bits))


def largest(order: Tensor, k: int) -> Tensor:
    """Indices of the k largest integers, 1 <= k <= d, among equal ones the first: int64 [..., k], ascending."""
    return _places(order, _ALL_BITS, k)


def largest_magnitudes(x: Tensor, k: int) -> Tensor:
    """`largest(magnitude(x), k)` of float32 [..., d], without storing the magnitudes."""
    return _places((x if x.stride(-1) == 1 else x.contiguous()).view(torch.int32), _WITHOUT_SIGN, k)


def taken(x: Tensor, places: Tensor) -> Tensor:
    """x.gather(-1, places), [..., d] and int64 [..., k] -> [..., k], in memory from the pool."""
    out = compute.empty(places.shape, x.dtype, x.device)
    if x.dim() == 1:
        return torch.index_select(x, 0, places, out=out)  # on one thread: two would wait for a busy core
    return torch.gather(x, -1, places, out=out)


def _places(order: Tensor, mask: int, k: int) -> Tensor:
    """Of the integers ``order & mask``."""
    *lead, numel = order.shape
    if k == numel:
        return torch.arange(k, device=order.device).expand(order.shape)
    if not order.is_contiguous():
        order = compute.empty_like(order).copy_(order)
    rows = order.view(-1, numel)
    if _suits_a_kernel(rows, k) and compute.takes("sparse.largest", rows):
        from reference_impls.kernels import selection as on_gpu

        found = torch.stack([on_gpu.largest(row, mask, k) for row in rows])
    elif order.dtype == torch.int32 and not compute.at_hand(order):
        found = _by_keys(rows & mask, k)
    elif order.dtype == torch.int32 and numel >= _SHORTEST:
        found = _by_groups(rows, mask, k)
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


def _by_groups(order: Tensor, mask: int, k: int) -> Tensor:
    """int32 [r, d] -> int64 [r, k], row by row; numpy's partition is several times faster than torch's, and in place.

    A row is cut into groups. The k-th largest of their maxima is at most the k-th largest element, so what is as large as that
    are candidates. Of their keys, value above index, no two are equal.
    """
    numel = order.shape[-1]
    groups = numel // _GROUP
    found = compute.empty((len(order), k), torch.int64)
    values, tops = (compute.empty(size, torch.int32).numpy() for size in (numel, groups))
    flags = compute.empty(numel, torch.bool).numpy()
    for row, out in zip(order.numpy(), found.numpy(), strict=True):
        np.bitwise_and(row, np.int32(mask), out=values)
        places: npt.NDArray[np.int64]
        if 2 * k <= groups:
            np.maximum.reduce(values[: groups * _GROUP].reshape(_GROUP, groups), axis=0, out=tops)
            tops.partition(groups - k)
            places = np.flatnonzero(np.greater_equal(values, tops[groups - k], out=flags))
        else:
            places = np.arange(numel)
        keys = compute.empty(len(places), torch.int64).numpy()
        np.left_shift(values[places], 32, out=keys, dtype=np.int64)
        keys += numel - 1
        keys -= places
        keys.partition(len(keys) - k)
        np.subtract(numel - 1, keys[-k:] & 0xFFFFFFFF, out=out)
        out.sort()
    return found


def _by_keys(order: Tensor, k: int) -> Tensor:
    """By int64 keys, all different: the value in the upper half, below it how far the index is from the end."""
    keys = (order.long() << 32) + torch.arange(order.shape[-1] - 1, -1, -1, device=order.device)
    return keys.topk(k, dim=-1, sorted=False).indices.sort(dim=-1).values


def _place_bytes(numel: int, k: int) -> int:
    return 0 if k == numel else packing.wire_bytes(k, packing.width(numel - 1))


def pack_pairs(places: Tensor, values: Tensor, numel: int, wire: Tensor) -> None:
    """Ascending places int64 [..., k] and float32 values [..., k] of a vector of `numel` -> the message."""
    split = _place_bytes(numel, places.shape[-1])
    if split:
        narrow = compute.empty_like(places, torch.int32).copy_(places)
        packing.pack(narrow, packing.width(numel - 1), wire[..., :split])
    wire[..., split:].copy_(values.contiguous().view(torch.uint8))


def unpack_pairs(wire: Tensor, numel: int, k: int) -> tuple[Tensor, Tensor]:
    """The message -> places, int64 [..., k], ascending, and values, float32 [..., k]."""
    split = _place_bytes(numel, k)
    shape = (*wire.shape[:-1], k)
    if not split:
        places = torch.arange(k, device=wire.device).expand(shape)
    else:
        found = compute.empty(shape, torch.int32, wire.device)
        packing.unpack(wire[..., :split], packing.width(numel - 1), found)
        places = compute.empty_like(found, torch.int64).copy_(found)
    values = compute.empty(shape, torch.float32, wire.device)
    values.view(torch.uint8).copy_(wire[..., split:])
    return places, values


@dataclass(frozen=True)
class TopK:
    """Compressor: the k = max(1, floor(ratio d)) largest coordinates of d, the others 0.

    The message: the places, then the k values in ascending order of their places, float32, little-endian. Places: k integers of
    ceil(log2 d) bits, ascending (`compressors.packing`); with k = d they are known and not sent. A contraction:
    |x - C(x)|^2 <= (1 - k/d) |x|^2.
    """

    ratio: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise UnsupportedError(f"ratio must be in (0, 1], got {self.ratio}")

    def wire_bytes(self, numel: int) -> int:
        k = kept(self.ratio, numel)
        return _place_bytes(numel, k) + 4 * k

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        if x.shape[-1]:
            places = largest_magnitudes(x, kept(self.ratio, x.shape[-1]))
            pack_pairs(places, taken(x, places), x.shape[-1], wire)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        if k := kept(self.ratio, out.shape[-1]):
            places, values = unpack_pairs(wire, out.shape[-1], k)
            out.zero_().scatter_(-1, places, values)


@compiled
def _by_sign_and_magnitude(values: Tensor, mean: Tensor, bins: Tensor) -> None:
    bins.copy_((values < 0).to(torch.int32) * 2 + (values.abs() > mean).to(torch.int32))


@dataclass(frozen=True)
class ChunkTopK:
    """Compressor: the k largest of every `chunk` neighbours, the others 0; of the last r < chunk elements ceil(k r / chunk).

    Message: the places within their chunks, ascending, `packing.width(chunk - 1)` bits each, all full chunks in one string; the
    places in the last short chunk in a string of their own; then the values in the order of their places. Where a chunk is kept
    whole its places are not sent. Values: ``32`` bits: little-endian float32. ``2`` bits: the bin of each value (bit 1:
    negative, bit 0: magnitude above the mean magnitude of all values sent), and behind them the mean of each bin, four
    little-endian float32 (0 for an empty bin), to which its values decode. With 2 bits a value that is not finite makes its
    whole bin so. Sums by the fixed tree.
    """

    k: int = 64
    chunk: int = 4096
    value_bits: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.chunk or self.value_bits not in (2, 32):
            raise UnsupportedError(
                f"top-k of chunks wants 1 <= k <= chunk and values of 2 or 32 bits, got {self.k} of {self.chunk} in "
                f"{self.value_bits} bits"
            )

    def kept(self, numel: int) -> int:
        """Values that are sent of `numel` elements."""
        return sum(count * k for count, _, k in self._parts(numel))

    def wire_bytes(self, numel: int) -> int:
        if not numel:
            return 0
        places = sum(self._place_bytes(count, size, k) for count, size, k in self._parts(numel))
        return places + self._value_bytes(self.kept(numel))

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        numel, first, at, filled = x.shape[-1], 0, 0, 0
        if not numel:
            return
        values = compute.empty((*x.shape[:-1], self.kept(numel)), x.dtype, x.device)
        for count, size, k in self._parts(numel):
            rows = x[..., first : first + count * size].unflatten(-1, (count, size))  # type: ignore[no-untyped-call]
            places = largest_magnitudes(rows, k)
            values[..., filled : filled + count * k] = taken(rows, places).flatten(-2)
            length = self._place_bytes(count, size, k)
            if length:
                packing.pack(places.flatten(-2), packing.width(size - 1), wire[..., at : at + length])
            first, at, filled = first + count * size, at + length, filled + count * k
        self._write_values(values, wire[..., at:])

    def decode(self, wire: Tensor, out: Tensor) -> None:
        numel = out.shape[-1]
        if not numel or out.is_meta:
            return
        parts = self._parts(numel)
        start = sum(self._place_bytes(*part) for part in parts)
        values = self._read_values(wire[..., start:], self.kept(numel))
        out.zero_()
        first, at, taken = 0, 0, 0
        for count, size, k in parts:
            length, shape = self._place_bytes(count, size, k), (*wire.shape[:-1], count, k)
            if length:
                found = compute.empty((*wire.shape[:-1], count * k), torch.int32, wire.device)
                packing.unpack(wire[..., at : at + length], packing.width(size - 1), found)
                places = compute.empty(shape, torch.int64, wire.device).copy_(found.view(shape))
            else:
                kept = torch.arange(k, device=wire.device)
                places = compute.empty(shape, torch.int64, wire.device).copy_(kept)
            places.add_(first + size * torch.arange(count, device=wire.device).unsqueeze(-1))
            own = values[..., taken : taken + count * k]
            out.scatter_(-1, places.flatten(-2), own)
            first, at, taken = first + count * size, at + length, taken + count * k

    def _parts(self, numel: int) -> list[tuple[int, int, int]]:
        """(chunks, elements a chunk, kept a chunk): the full ones, then the short one, where there are such."""
        full, rest = divmod(numel, self.chunk)
        parts = [(full, self.chunk, self.k)] if full else []
        return [*parts, (1, rest, -(-self.k * rest // self.chunk))] if rest else parts

    @staticmethod
    def _place_bytes(count: int, size: int, k: int) -> int:
        return 0 if k == size else packing.wire_bytes(count * k, packing.width(size - 1))

    def _value_bytes(self, kept: int) -> int:
        return 4 * kept if self.value_bits == 32 else bins.wire_bytes(kept, 2)

    def _write_values(self, values: Tensor, wire: Tensor) -> None:
        if self.value_bits == 32:
            wire.copy_(values.contiguous().view(torch.uint8))
            return
        numbers = compute.empty_like(values, torch.int32)
        _by_sign_and_magnitude(values, fixed_mean(values, "abs").unsqueeze(-1), numbers)
        bins.write(values, numbers, 2, wire)

    def _read_values(self, wire: Tensor, kept: int) -> Tensor:
        if self.value_bits == 2:
            return bins.read(wire, 2, kept)
        values = compute.empty((*wire.shape[:-1], kept), torch.float32, wire.device)
        values.view(torch.uint8).copy_(wire)
        return values
