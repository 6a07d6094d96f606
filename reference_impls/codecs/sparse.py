"""The k largest coordinates of a vector as indices and values, packed. Wire format version 1.

Message of d elements, of which k = max(1, floor(ratio d)) are sent: the places, then the k values in ascending order of
their places, little-endian. Places: k integers of ceil(log2 d) bits, ascending (`codecs.packed_integers`); with k = d they
are known and not sent. Values: float32.

Which: the largest magnitudes, ties to the lowest index, NaN and inf before all else (`codecs.selection`). A contraction:
|x - C(x)|^2 <= (1 - k/d) |x|^2. Biased: use error feedback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.codecs import packed_integers, selection
from reference_impls.errors import UnsupportedError
from reference_impls.randomness import Key

__all__ = ["WIRE_VERSION", "TopK", "pack_pairs", "unpack_pairs"]

WIRE_VERSION: Final = 1


def _place_bytes(numel: int, k: int) -> int:
    return 0 if k == numel else packed_integers.wire_bytes(k, packed_integers.width(numel - 1))


def pack_pairs(places: Tensor, values: Tensor, numel: int, wire: Tensor) -> None:
    """Ascending places int64 [..., k] and float32 values [..., k] of a vector of `numel` -> the message."""
    split = _place_bytes(numel, places.shape[-1])
    if split:
        narrow = buffers.empty_like(places, torch.int32).copy_(places)
        packed_integers.pack(narrow, packed_integers.width(numel - 1), wire[..., :split])
    wire[..., split:].copy_(values.contiguous().view(torch.uint8))


def unpack_pairs(wire: Tensor, numel: int, k: int) -> tuple[Tensor, Tensor]:
    """The message -> places, int64 [..., k], ascending, and values, float32 [..., k]."""
    split = _place_bytes(numel, k)
    shape = (*wire.shape[:-1], k)
    if not split:
        places = torch.arange(k, device=wire.device).expand(shape)
    else:
        found = buffers.empty(shape, torch.int32, wire.device)
        packed_integers.unpack(wire[..., :split], packed_integers.width(numel - 1), found)
        places = buffers.empty_like(found, torch.int64).copy_(found)
    values = buffers.empty(shape, torch.float32, wire.device)
    values.view(torch.uint8).copy_(wire[..., split:])
    return places, values


@dataclass(frozen=True)
class TopK:
    """Codec: the largest coordinates, the others 0."""

    ratio: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise UnsupportedError(f"ratio must be in (0, 1], got {self.ratio}")

    @property
    def unbiased(self) -> bool:
        return self.ratio == 1  # nothing is lost then

    def wire_bytes(self, numel: int) -> int:
        k = selection.kept(self.ratio, numel)
        return _place_bytes(numel, k) + 4 * k

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        if not x.shape[-1]:
            return
        places = selection.largest_magnitudes(x, selection.kept(self.ratio, x.shape[-1]))
        pack_pairs(places, selection.taken(x, places), x.shape[-1], wire)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        k = selection.kept(self.ratio, out.shape[-1])
        if k:
            places, values = unpack_pairs(wire, out.shape[-1], k)
            out.zero_().scatter_(-1, places, values)
