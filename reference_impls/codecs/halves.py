"""Two bytes an element: bf16 or fp16, rounded to nearest, ties to even. Wire format version 1.

The message is the d numbers in order, little-endian. Biased (deterministic), with a relative error of 2^-8 (bf16) or 2^-11
(fp16) at most for normal numbers. fp16 overflows to infinity from 65520 on, and loses precision below 2^-14: who sends it
scales first (`power_for`). NaN and infinities pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.compilation import compiled
from reference_impls.randomness import Key

__all__ = ["FORMATS", "WIRE_VERSION", "Format", "Halves", "power_for"]

WIRE_VERSION: Final = 1
Format = Literal["bf16", "fp16"]
FORMATS: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
_ROOM: Final = 15  # 2^15 is within fp16, whose largest number is 65504


def power_for(largest: float, n: int) -> int:
    """k such that n numbers of magnitude `largest` times 2^k add up to at most 2^15, and to more than 2^13 if they can."""
    if not math.isfinite(largest) or largest == 0:
        return 0
    return min(_ROOM - (n - 1).bit_length() - math.frexp(largest)[1], 126)


@compiled
def _accumulate(numbers: Tensor, out: Tensor) -> None:
    out.copy_(out + numbers.to(out.dtype))


@dataclass(frozen=True)
class Halves:
    """Codec: the elements in a 16-bit format."""

    format: Format = "bf16"

    @property
    def unbiased(self) -> bool:
        return False

    def wire_bytes(self, numel: int) -> int:
        return 2 * numel

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        numbers, own = self._numbers(wire)
        numbers.copy_(x)
        if not own:
            wire.copy_(numbers.view(torch.uint8))

    def decode(self, wire: Tensor, out: Tensor, *, add: bool = False) -> None:
        numbers, own = self._numbers(wire)
        if not own:
            numbers.view(torch.uint8).copy_(wire)
        _accumulate(numbers, out) if add else out.copy_(numbers)

    def _numbers(self, wire: Tensor) -> tuple[Tensor, bool]:
        """The message as numbers, and whether they are the wire's own bytes: else room for as many, where bytes lie badly."""
        own = wire.stride(-1) == 1 and not any(
            step % 2 for step in (wire.storage_offset(), *wire.stride()[:-1])
        )
        room = wire if own else buffers.empty_like(wire)
        return room.view(FORMATS[self.format]), own
