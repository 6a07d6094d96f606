"""QSGD's quantiser: equal levels of a norm of each block, rounded at random without bias. Wire format version 1.

Spec: QSGD, arXiv 1610.02132. With N the norm of the element's block, ``q = sign(x) sr(s |x| / N)`` in -s .. s, decoded
as ``q N / s``. E|Q(x) - x|^2 <= min(B / s^2, sqrt(B) / s) |x|^2 for l2 and blocks of B elements, B N^2 / (4 s^2) for linf.
The message (`codecs.blocks`): q + s in `packed_integers.width(2 s)` bits, and N. Rounding is `codecs.dithering`'s, on the
stream's element of the same index; its policies for zero, for a norm that was rounded down and for what is not finite
hold, block by block.

divisor: x is divided by it before it is rounded, and what is decoded is multiplied by it: s / divisor levels are in use.
It is there for measuring what that costs; unbiased all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from reference_impls.codecs import blocks, dithering, packed_integers
from reference_impls.codecs.blocks import BlockMessage, Norm
from reference_impls.errors import UnsupportedError, one_of
from reference_impls.randomness import Key

__all__ = ["WIRE_VERSION", "UniformLevels"]

WIRE_VERSION: Final = 1
_MOST: Final = (1 << 15) - 1


@dataclass(frozen=True)
class UniformLevels:
    """Codec. levels: s, 1 .. 32767. block_size: elements that share a norm; 0 = the whole message."""

    levels: int = 7
    norm: Norm = "l2"
    block_size: int = 512
    divisor: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= _MOST:
            raise UnsupportedError(f"levels must be 1 to {_MOST}, got {self.levels}")
        one_of("norm", self.norm, blocks.NORMS)
        self._message()

    @property
    def unbiased(self) -> bool:
        return True

    def wire_bytes(self, numel: int) -> int:
        return self._message().wire_bytes(numel)

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        numel, message = x.shape[-1], self._message()
        if numel == 0:
            return
        norm = blocks.norms(x, message.block(numel), self.norm)
        codes = torch.empty(x.shape, dtype=torch.int32, device=x.device)
        dithering.encode(x, message.spread(norm, numel) * self.divisor, self.levels, key, codes)
        message.write(codes + self.levels, norm.unsqueeze(-1), wire)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        numel, message = out.shape[-1], self._message()
        if numel == 0:
            return
        codes, norm = message.read(wire, numel)
        scale = message.spread(norm.squeeze(-1), numel) * self.divisor
        dithering.decode(codes.sub_(self.levels), scale, self.levels, 1, out)

    def _message(self) -> BlockMessage:
        return BlockMessage(packed_integers.width(2 * self.levels), self.block_size)
