"""All-reduce of the gradient in 16-bit floats, and the compressor of such floats.

Two bytes an element: bf16 or fp16, rounded to nearest, ties to even, little-endian in order. Wire format version 1. Biased
(deterministic), with a relative error of 2^-8 (bf16) or 2^-11 (fp16) at most for normal numbers. fp16 overflows to infinity
from 65520 on, and loses precision below 2^-14: who sends it scales first (`power_for`). NaN and infinities pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.aggregators.coded_mean import two_phase_mean
from reference_impls.compressors.sums import largest
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket, option
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.compute import Key, compiled
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.optimizers import WithLocalOptimizer

WIRE_VERSION: Final = 1
FORMATS: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
_ROOM: Final = 15  # 2^15 is within fp16, whose largest number is 65504


def power_for(most: Tensor, n: int) -> Tensor:
    """k such that n numbers of magnitude `most` times 2^k add up to at most 2^15, and to more than 2^13 if they can.

    Args:
        most: float32 [...].
        n: Ranks.

    Returns:
        int32 [...], from -126 to 126; 0 for zero and what is not finite.
    """
    power = (_ROOM - (n - 1).bit_length() - torch.frexp(most).exponent).clamp(max=126)
    return torch.where(most.isfinite() & (most != 0), power, 0)


def two_to(power: Tensor) -> Tensor:
    """2^k, exactly: int32 from -126 to 127 -> float32."""
    return ((power + 127) << 23).view(torch.float32)


@compiled
def _accumulate(numbers: Tensor, out: Tensor) -> None:
    out.copy_(out + numbers.to(out.dtype))


@dataclass(frozen=True)
class Halves:
    """Compressor: the elements in a 16-bit format."""

    format: Literal["bf16", "fp16"] = "bf16"

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
        room = wire if own else compute.empty_like(wire)
        return room.view(FORMATS[self.format]), own


@dataclass(frozen=True)
class HalfPrecision(WithLocalOptimizer):
    """All-reduce of the gradient in 16-bit floats: bf16 as it is, or fp16 under a shared power of two.

    g <- mean over workers of g, through 16-bit floats.

    ``all-reduce``: the collective adds the 16-bit numbers, and rounds each partial sum. ``two-phase``: the owner of a piece
    adds what it receives in fp32 in the order of ranks, divides, and rounds once more: 2 roundings whatever n is, at the same
    2 (n-1)/n x 16 bits, and the same bits on every backend.

    fp16: all numbers are first multiplied by 2^k, k such that the largest magnitude over all ranks (4 bytes in a max
    all-reduce) times n stays within 2^15, so no sum can overflow; multiplying by powers of two loses nothing. Numbers below
    n 2^-29 of the largest lose precision, and below about n 2^-40 they are lost.

    Differences from torch's DDP hooks: those divide by n before the sum and do not scale, so fp16 overflows from 65520 on
    and gradients under 6e-8 are lost. The power of two is a bucket's. Biased, as rounding to nearest is. One worker rounds
    nothing.
    """

    format: Literal["bf16", "fp16"] = option("bf16", "bf16 or fp16 (scaled)")
    form: Literal["all-reduce", "two-phase"] = option(
        "all-reduce", "all-reduce (sums in 16 bits) or two-phase (sums in fp32)"
    )

    def check(self, world: Group) -> None:
        if self.format == "fp16" and world.size > 1 << 10:
            raise UnsupportedError("fp16 has room for sums over 1024 ranks: use bf16")

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if bucket.world.size == 1:
            return bucket.grads
        x = bucket.grads.to(torch.float32)
        power = (yield from self._power(bucket, x)) if self.format == "fp16" else None
        scaled = x if power is None else torch.mul(x, two_to(power), out=compute.empty_like(x))
        if self.form == "two-phase":
            mean = yield from two_phase_mean(bucket, scaled, Halves(self.format), "gradient")
        else:
            message = compute.empty_like(scaled, FORMATS[self.format]).copy_(scaled)
            total = yield from bucket.world.sum(message, "gradient")
            mean = compute.empty_like(x).copy_(total).div_(bucket.world.size)
        return mean if power is None else mean.mul_(two_to(-power))

    def _power(self, bucket: Bucket, x: Tensor) -> Exchange[Tensor]:
        shared = yield from bucket.world.max(largest(x).view(1), "scale")
        return power_for(shared, bucket.world.size)
