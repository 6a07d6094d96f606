"""The k largest of every chunk of c elements, as packed places and 2-bit or full values. Wire format version 1.

Chunks are c neighbouring elements; of the last r < c elements ceil(k r / c) are kept. Message: the places within their
chunks, ascending, `packed_integers.width(c - 1)` bits each, all full chunks in one string; the places in the last short
chunk in a string of their own; then the values in the order of their places. Where a chunk is kept whole (k = c) its places
are not sent. Values: ``32`` bits: little-endian float32. ``2`` bits: the bin of each value (bit 1: negative, bit 0:
magnitude above the mean magnitude of all values sent), and behind them the mean of each bin, four little-endian float32
(0 for an empty bin), to which its values decode.

Which: largest magnitudes, ties to the lowest place, what is not finite first (`codecs.selection`). Biased: use error
feedback. Not finite: with 2 bits a value that is not finite makes its whole bin so. Sums by the fixed tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.codecs import packed_integers, selection
from reference_impls.codecs.sums import fixed_mean, fixed_sum
from reference_impls.compilation import compiled
from reference_impls.errors import UnsupportedError
from reference_impls.randomness import Key

__all__ = ["VALUE_BITS", "WIRE_VERSION", "ChunkTopK"]

WIRE_VERSION: Final = 1
VALUE_BITS: Final = (2, 32)
_BINS: Final = 4


@compiled
def _into_bins(values: Tensor, mean: Tensor, bins: Tensor) -> None:
    bins.copy_((values < 0).to(torch.int32) * 2 + (values.abs() > mean).to(torch.int32))


@dataclass(frozen=True)
class ChunkTopK:
    """Codec: k of every `chunk` elements, the others 0."""

    k: int = 64
    chunk: int = 4096
    value_bits: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.chunk or self.value_bits not in VALUE_BITS:
            raise UnsupportedError(
                f"top-k of chunks wants 1 <= k <= chunk and values of 2 or 32 bits, got {self.k} of {self.chunk} in "
                f"{self.value_bits} bits"
            )

    @property
    def unbiased(self) -> bool:
        return False

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
        values = buffers.empty((*x.shape[:-1], self.kept(numel)), x.dtype, x.device)
        for count, size, k in self._parts(numel):
            rows = x[..., first : first + count * size].unflatten(-1, (count, size))  # type: ignore[no-untyped-call]
            places = selection.largest_magnitudes(rows, k)
            values[..., filled : filled + count * k] = selection.taken(rows, places).flatten(-2)
            length = self._place_bytes(count, size, k)
            if length:
                packed_integers.pack(
                    places.flatten(-2), packed_integers.width(size - 1), wire[..., at : at + length]
                )
            first, at, filled = first + count * size, at + length, filled + count * k
        self._write_values(values, wire[..., at:])

    def decode(self, wire: Tensor, out: Tensor) -> None:
        numel = out.shape[-1]
        if not numel:
            return
        parts = self._parts(numel)
        start = sum(self._place_bytes(*part) for part in parts)
        values = self._read_values(wire[..., start:], self.kept(numel))
        out.zero_()
        first, at, taken = 0, 0, 0
        for count, size, k in parts:
            length, shape = self._place_bytes(count, size, k), (*wire.shape[:-1], count, k)
            if length:
                found = buffers.empty((*wire.shape[:-1], count * k), torch.int32, wire.device)
                packed_integers.unpack(wire[..., at : at + length], packed_integers.width(size - 1), found)
                places = buffers.empty(shape, torch.int64, wire.device).copy_(found.view(shape))
            else:
                kept = torch.arange(k, device=wire.device)
                places = buffers.empty(shape, torch.int64, wire.device).copy_(kept)
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
        return 0 if k == size else packed_integers.wire_bytes(count * k, packed_integers.width(size - 1))

    def _value_bytes(self, kept: int) -> int:
        return 4 * kept if self.value_bits == 32 else packed_integers.wire_bytes(kept, 2) + 4 * _BINS

    def _write_values(self, values: Tensor, wire: Tensor) -> None:
        if self.value_bits == 32:
            wire.copy_(values.contiguous().view(torch.uint8))
            return
        bins = buffers.empty_like(values, torch.int32)
        _into_bins(values, fixed_mean(values, "abs").unsqueeze(-1), bins)
        means = []
        own, inside = buffers.empty_like(values), buffers.empty_like(values, torch.bool)
        for number in range(_BINS):
            torch.eq(bins, number, out=inside)
            counts = [torch.count_nonzero(row) for row in inside.view(-1, inside.shape[-1])]
            count = torch.stack(counts).view(inside.shape[:-1]).clamp(min=1)
            means.append(fixed_sum(own.copy_(values).masked_fill_(inside.logical_not_(), 0.0)) / count)
        packed_integers.pack(bins, 2, wire[..., : -4 * _BINS])
        wire[..., -4 * _BINS :].copy_(torch.stack(means, dim=-1).to(torch.float32).view(torch.uint8))

    def _read_values(self, wire: Tensor, kept: int) -> Tensor:
        if self.value_bits == 32:
            values = buffers.empty((*wire.shape[:-1], kept), torch.float32, wire.device)
            values.view(torch.uint8).copy_(wire)
            return values
        bins = buffers.empty((*wire.shape[:-1], kept), torch.int32, wire.device)
        packed_integers.unpack(wire[..., : -4 * _BINS], 2, bins)
        means = wire[..., -4 * _BINS :].clone(memory_format=torch.contiguous_format).view(torch.float32)
        return selection.taken(means, buffers.empty_like(bins, torch.int64).copy_(bins))
