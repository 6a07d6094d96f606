"""The frame of unbiased codecs that round to levels of a norm a block: message, norms, options; not where the levels lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reference_impls.codecs import packed_integers
from reference_impls.codecs.blocks import NORMS, BlockMessage, Norm, norms
from reference_impls.errors import UnsupportedError, one_of
from reference_impls.randomness import Key

__all__ = ["BlockLevels"]


@dataclass(frozen=True)
class BlockLevels(ABC):
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

    @abstractmethod
    def round(self, x: Tensor, norm: Tensor, key: Key, codes: Tensor) -> None:
        """x float32 [..., d] under `norm` ([..., d] or [..., 1]) -> codes int32 [..., d]."""

    @abstractmethod
    def restore(self, codes: Tensor, norm: Tensor, out: Tensor) -> None:
        """The inverse; may consume `codes`."""

    @property
    def unbiased(self) -> bool:
        return True

    def message(self) -> BlockMessage:
        """The layout on the wire."""
        return BlockMessage(packed_integers.width(2 * self.levels), self.block_size)

    def wire_bytes(self, numel: int) -> int:
        return self.message().wire_bytes(numel)

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        numel, message = x.shape[-1], self.message()
        if numel == 0:
            return
        norm = norms(x, message.block(numel), self.norm)
        codes = torch.empty(x.shape, dtype=torch.int32, device=x.device)
        self.round(x, message.spread(norm, numel), key, codes)
        message.write(codes, norm.unsqueeze(-1), wire)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        numel, message = out.shape[-1], self.message()
        if numel == 0:
            return
        codes, norm = message.read(wire, numel)
        self.restore(codes, message.spread(norm.squeeze(-1), numel), out)
