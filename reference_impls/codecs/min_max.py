"""Equal steps between the least and the greatest value of each block, as CGX sends them. Wire format version 2.

Spec: CGX, arXiv 2111.08617, as its code has it. With b bits, step = (max - min) / (2^b - 1); the code is
``min(floor((x - min) / step + r), 2^b - 1)``, decoded as ``min + step code``. r is 1/2 (``nearest``, biased) or uniform
(``stochastic``, unbiased: up where the stream's draw of the element's index is below the fraction). The message
(`codecs.blocks`): codes in b bits, then min and step of each block. Equal values have step 0, code 0, and are exact. Not
finite, or a range beyond float32's: min or step is not finite, and all of the block decodes to NaN or infinities.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.codecs.block_codec import BlockCodec
from reference_impls.codecs.blocks import BlockMessage, per_block
from reference_impls.codecs.passes import Draw
from reference_impls.codecs.sums import few_rows
from reference_impls.codecs.tiles import rows
from reference_impls.compilation import compiled
from reference_impls.errors import one_of
from reference_impls.kernels import Formula
from reference_impls.randomness import as_uniform

__all__ = ["ROUNDINGS", "WIRE_VERSION", "MinMax", "Rounding"]

WIRE_VERSION: Final = 2
Rounding = Literal["nearest", "stochastic"]
ROUNDINGS: Final[tuple[Rounding, ...]] = ("nearest", "stochastic")


@compiled
def _ends(x: Tensor, low: Tensor, high: Tensor) -> None:
    low.copy_(x.amin(-1))  # least and greatest are the same in every order
    high.copy_(x.amax(-1))


@dataclass(frozen=True)
class MinMax(BlockCodec):
    """Codec. bits: 1 .. 16 of a code. block_size: elements that share min and step; 0 = the whole message."""

    bits: int = 4
    block_size: int = 512
    rounding: Rounding = "stochastic"

    def __post_init__(self) -> None:
        one_of("rounding", self.rounding, ROUNDINGS)
        self.message()

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic"

    def message(self) -> BlockMessage:
        return BlockMessage(self.bits, self.block_size, numbers=2)

    def without_blocks(self) -> Self:
        return dataclasses.replace(self, block_size=512)

    def measure(self, x: Tensor, size: int) -> Tensor:
        """Least value and step of each block."""
        found = buffers.empty((2, *x.shape[:-1], -(-x.shape[-1] // size)), torch.float32, x.device)
        start = 0
        for part in per_block(x, size):
            own = found[..., start : start + part.shape[-2]]
            for blocks, low, high in rows(part.flatten(-2), *own.unbind(0)):
                by_block = blocks.view(*low.shape, part.shape[-1])
                for some, least, most in few_rows(by_block, low, high):
                    _ends(some, least, most)
            start += part.shape[-2]
        low, high = found.unbind(0)
        high.sub_(low).div_(
            torch.full_like(high, self._most)
        )  # by a number, a GPU multiplies by its reciprocal
        return found.movedim(0, -1)

    def formula(self) -> Formula:
        return Formula(self.rounding, self._most, measure="ends")

    def code(self, x: Tensor, found: Sequence[Tensor], draw: Draw) -> Tensor:
        low, step = found
        z = (x - low) / step
        if self.rounding == "nearest":
            q = (z + 0.5).floor()
            return torch.where(q != q, 0.0, q).clamp(0, self._most).to(torch.int32)
        z = torch.where(z != z, 0.0, z).clamp(0, self._most)
        floor = z.floor()
        return torch.where(as_uniform(draw()) < z - floor, floor + 1, floor).to(torch.int32)

    def value(self, codes: Tensor, found: Sequence[Tensor]) -> Tensor:
        low, step = found
        return codes.to(torch.float32) * step + low

    @property
    def _most(self) -> int:
        return (1 << self.bits) - 1
