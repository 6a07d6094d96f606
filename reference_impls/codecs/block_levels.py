"""What unbiased codecs share that round to levels of a norm a block: norms, options; not where the levels lie."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from reference_impls.codecs import packed_integers
from reference_impls.codecs.block_codec import BlockCodec
from reference_impls.codecs.blocks import NORMS, BlockMessage, Norm, norms
from reference_impls.errors import UnsupportedError, one_of

__all__ = ["BlockLevels"]


@dataclass(frozen=True)
class BlockLevels(BlockCodec):
    """Codec. levels: those on either side of 0, at most `most`. block_size: elements that share a norm; 0 = all of them.

    A subclass rounds to codes 0 .. 2 levels, of which `levels` means 0, and back.
    """

    levels: int = 7
    norm: Norm = "l2"
    block_size: int = 512

    most: ClassVar[int]

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= self.most:
            raise UnsupportedError(f"levels must be 1 to {self.most}, got {self.levels}")
        one_of("norm", self.norm, NORMS)
        self.message()

    @property
    def unbiased(self) -> bool:
        return True

    def message(self) -> BlockMessage:
        return BlockMessage(packed_integers.width(2 * self.levels), self.block_size)

    def without_blocks(self) -> Self:
        return dataclasses.replace(self, norm="l2", block_size=512)

    def measure(self, x: Tensor, size: int) -> Tensor:
        return norms(x, size, self.norm).unsqueeze(-1)
