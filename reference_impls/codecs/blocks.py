"""Messages of small integers with a few float32 numbers a block: what bucketed quantisers send. Wire format version 2.

Message of d elements in blocks of `size` consecutive ones (the last one shorter; size 0: all d are one block): the codes
as `codecs.packed_integers` packs them, in `bits` bits, ceil(bits d / 8) bytes; then, block by block, `numbers`
little-endian float32. Norms run over a block's own elements: ``linf`` = largest magnitude; ``l2`` = square root of the
sum of squares by the fixed tree of `codecs.sums` in float64, so that no square over- or underflows, rounded to float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.codecs import packed_integers
from reference_impls.codecs.sums import fixed_sum, largest
from reference_impls.codecs.tiles import LANES, ROWS, TILE
from reference_impls.errors import UnsupportedError

__all__ = ["NORMS", "WIRE_VERSION", "BlockMessage", "Norm", "norms", "per_block"]

WIRE_VERSION: Final = 2
_FLOAT: Final = 4  # bytes

Norm = Literal["linf", "l2"]
NORMS: Final[tuple[Norm, ...]] = ("linf", "l2")


@dataclass(frozen=True)
class BlockMessage:
    """The layout. bits: of a code. size: elements of a block, 0 = all. numbers: float32 a block."""

    bits: int
    size: int
    numbers: int = 1

    def __post_init__(self) -> None:
        if self.size < 0:
            raise UnsupportedError(f"a block has 1 or more elements, or 0 for one block; got {self.size}")
        if not 1 <= self.bits <= 16:
            raise UnsupportedError(f"codes have 1 to 16 bits, not {self.bits}")

    def block(self, numel: int) -> int:
        """Elements of a block of a message of `numel`."""
        return self.size or max(numel, 1)

    def blocks(self, numel: int) -> int:
        return -(-numel // self.block(numel))

    def code_bytes(self, numel: int) -> int:
        return packed_integers.wire_bytes(numel, self.bits)

    def wire_bytes(self, numel: int) -> int:
        return self.code_bytes(numel) + _FLOAT * self.numbers * self.blocks(numel)

    def fits_tiles(self) -> bool:
        """Whether every row of a tile has the numbers of one block."""
        return self.size % TILE == 0 or (TILE % self.size == 0 and self.size % LANES == 0)

    def write(self, found: Tensor, wire: Tensor) -> None:
        """float32 [..., blocks, numbers] -> the end of the message."""
        if self.numbers:
            own = buffers.empty(found.shape, torch.float32, found.device).copy_(found).flatten(-2)
            wire[..., wire.shape[-1] - _FLOAT * own.shape[-1] :].copy_(own.view(torch.uint8))

    def read(self, wire: Tensor, numel: int) -> Tensor:
        """The end of the message -> float32 [..., blocks, numbers]; a copy, since floats want to be aligned."""
        shape = (*wire.shape[:-1], self.blocks(numel), self.numbers)
        found = buffers.empty(shape, torch.float32, wire.device)
        found.view(*wire.shape[:-1], -1).view(torch.uint8).copy_(wire[..., self.code_bytes(numel) :])
        return found

    def by_row(self, found: Tensor, tiles: int) -> Tensor:
        """[..., blocks, numbers] -> float32 [..., tiles, numbers, 32]: those of each row of the first `tiles` tiles."""
        across = max(self.size // TILE, 1) if self.size else max(tiles, 1)  # tiles that share a block
        down = TILE // self.size if 0 < self.size < TILE else 1  # blocks of a tile
        count, lead = -(-tiles // across), found.shape[:-2]
        shape = (*lead, count, across, self.numbers, down, ROWS // down)
        spread = buffers.empty(shape, torch.float32, found.device)
        source = found[..., : count * down, :].unflatten(-2, (count, down)).movedim(-1, -2)  # type: ignore[no-untyped-call]
        spread.copy_(source.unsqueeze(-1).unsqueeze(-4).expand(shape))
        return spread.view(*lead, count * across, self.numbers, ROWS)[..., :tiles, :, :]

    def by_element(self, found: Tensor, first: int, numel: int) -> Tensor:
        """[..., blocks, numbers] -> float32 [numbers, ..., d - first]: those of each element from `first` on."""
        place = torch.arange(first, numel, device=found.device) // self.block(numel)
        return found.index_select(-2, place).movedim(-1, 0)


def per_block(x: Tensor, size: int) -> list[Tensor]:
    """[..., d], d >= 1 -> the full blocks [..., blocks, size] and the short one [..., 1, rest], where there are such."""
    full = x.shape[-1] // size * size
    parts = [x[..., :full].view(*x.shape[:-1], -1, size)] if full else []
    return [*parts, x[..., full:].unsqueeze(-2)] if full < x.shape[-1] else parts


def norms(x: Tensor, size: int, norm: Norm) -> Tensor:
    """float32 [..., d], d >= 1 -> the norm of each block, float32 [..., blocks]; not finite where an element is not."""
    out = buffers.empty((*x.shape[:-1], -(-x.shape[-1] // size)), torch.float32, x.device)
    start = 0
    for part in per_block(x, size):
        own = out[..., start : start + part.shape[-2]]
        own.copy_(fixed_sum(part, "wide square").sqrt_() if norm == "l2" else largest(part))
        start += part.shape[-2]
    return out
