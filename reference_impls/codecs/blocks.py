"""Messages of small integers with a few float32 numbers a block: what bucketed quantisers send. Wire format version 1.

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
from torch.nn import functional

from reference_impls.codecs import packed_integers
from reference_impls.codecs.sums import fixed_sum
from reference_impls.errors import UnsupportedError

__all__ = ["NORMS", "WIRE_VERSION", "BlockMessage", "Norm", "blocks_of", "norms"]

WIRE_VERSION: Final = 1
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

    def wire_bytes(self, numel: int) -> int:
        return packed_integers.wire_bytes(numel, self.bits) + _FLOAT * self.numbers * self.blocks(numel)

    def spread(self, per_block: Tensor, numel: int) -> Tensor:
        """[..., blocks] -> [..., d]: each element's own number."""
        if per_block.shape[-1] == 1:
            return per_block
        return per_block.repeat_interleave(self.block(numel), -1)[..., :numel].contiguous()

    def write(self, codes: Tensor, numbers: Tensor, wire: Tensor) -> None:
        """Codes 0 .. 2^bits - 1 [..., d] and float32 [..., blocks, numbers] -> wire."""
        body = packed_integers.wire_bytes(codes.shape[-1], self.bits)
        packed_integers.pack(codes, self.bits, wire[..., :body])
        wire[..., body:].copy_(numbers.to(torch.float32).flatten(-2).contiguous().view(torch.uint8))

    def read(self, wire: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Wire -> codes int32 [..., d], numbers float32 [..., blocks, numbers]."""
        body = packed_integers.wire_bytes(numel, self.bits)
        codes = torch.empty(*wire.shape[:-1], numel, dtype=torch.int32, device=wire.device)
        packed_integers.unpack(wire[..., :body], self.bits, codes)
        numbers = wire[..., body:].clone(memory_format=torch.contiguous_format).view(torch.float32)
        return codes, numbers.view(*wire.shape[:-1], self.blocks(numel), self.numbers)


def blocks_of(x: Tensor, size: int) -> Tensor:
    """[..., d] -> [..., blocks, size], the last one filled up with zeros."""
    rest = -x.shape[-1] % size
    return (functional.pad(x, (0, rest)) if rest else x).reshape(*x.shape[:-1], -1, size)


def norms(x: Tensor, size: int, norm: Norm) -> Tensor:
    """float32 [..., d], d >= 1 -> the norm of each block, float32 [..., blocks]; not finite where an element is not."""
    cut = blocks_of(x, size)
    if norm == "l2":
        return fixed_sum(cut.to(torch.float64).square()).sqrt().to(torch.float32)
    return cut.abs().amax(-1)
