"""Equal steps between the least and the greatest value of each block, as CGX sends them. Wire format version 1.

Spec: CGX, arXiv 2111.08617, as its code has it. With b bits, step = (max - min) / (2^b - 1); the code is
``min(floor((x - min) / step + r), 2^b - 1)``, decoded as ``min + step code``. r is 1/2 (``nearest``, biased) or uniform
(``stochastic``, unbiased: up where the stream's draw of the element's index is below the fraction). The message
(`codecs.blocks`): codes in b bits, then min and step of each block. Equal values have step 0, code 0, and are exact. Not
finite, or a range beyond float32's: min or step is not finite, and all of the block decodes to NaN or infinities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.codecs.blocks import BlockMessage
from reference_impls.compilation import compiled
from reference_impls.errors import one_of
from reference_impls.randomness import Key, uniform

__all__ = ["ROUNDINGS", "WIRE_VERSION", "MinMax", "Rounding"]

WIRE_VERSION: Final = 1
Rounding = Literal["nearest", "stochastic"]
ROUNDINGS: Final[tuple[Rounding, ...]] = ("nearest", "stochastic")


@compiled
def _nearest(x: Tensor, low: Tensor, step: Tensor, most: int, codes: Tensor) -> None:
    q = ((x - low) / step + 0.5).floor()
    codes.copy_(torch.where(q != q, 0.0, q).clamp(0, most).to(torch.int32))


@compiled
def _stochastic(x: Tensor, low: Tensor, step: Tensor, most: int, words: Tensor, codes: Tensor) -> None:
    z = (x - low) / step
    z = torch.where(z != z, 0.0, z).clamp(0, most)
    floor = z.floor()
    codes.copy_(torch.where(uniform(words, x.shape[-1]) < z - floor, floor + 1, floor).to(torch.int32))


@dataclass(frozen=True)
class MinMax:
    """Codec. bits: 1 .. 16 of a code. block_size: elements that share min and step; 0 = the whole message."""

    bits: int = 4
    block_size: int = 512
    rounding: Rounding = "stochastic"

    def __post_init__(self) -> None:
        one_of("rounding", self.rounding, ROUNDINGS)
        self._message()

    @property
    def unbiased(self) -> bool:
        return self.rounding == "stochastic"

    def wire_bytes(self, numel: int) -> int:
        return self._message().wire_bytes(numel)

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        numel, message = x.shape[-1], self._message()
        if numel == 0:
            return
        size, most = message.block(numel), (1 << self.bits) - 1
        low, high = _ends(x, size)
        step = (high - low) / most
        codes = torch.empty(x.shape, dtype=torch.int32, device=x.device)
        each = message.spread(low, numel), message.spread(step, numel)
        if self.rounding == "nearest":
            _nearest(x, *each, most, codes)
        else:
            _stochastic(x, *each, most, key.words.to(x.device), codes)
        message.write(codes, torch.stack([low, step], -1), wire)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        numel, message = out.shape[-1], self._message()
        if numel == 0:
            return
        codes, numbers = message.read(wire, numel)
        low, step = (message.spread(numbers[..., i], numel) for i in range(2))
        out.copy_((codes.to(torch.float32) * step).add_(low))

    def _message(self) -> BlockMessage:
        return BlockMessage(self.bits, self.block_size, numbers=2)


def _ends(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Least and greatest element of each block, [..., blocks] each; the filling of the last block is not looked at."""
    full = x.shape[-1] // size * size
    parts = [x[..., :full].reshape(*x.shape[:-1], -1, size)] if full else []
    if full < x.shape[-1]:
        parts.append(x[..., full:].unsqueeze(-2))
    low = torch.cat([part.amin(-1) for part in parts], -1)
    return low, torch.cat([part.amax(-1) for part in parts], -1)
