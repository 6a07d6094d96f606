"""Compressors that make an integer of every element by what its block shares: levels of a norm, steps between ends, powers of
two.

All are `compressors.blocks.BlockCompressor`s: codes in b bits, then a few float32 a block. Wire format version 2. Draws are
those of the stream's element of the same index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Self

import torch
from torch import Tensor

from reference_impls.compressors import dithering, packing
from reference_impls.compressors.blocks import NORMS, BlockCompressor, BlockMessage, Norm, norms, per_block
from reference_impls.compressors.sums import few_rows
from reference_impls.compressors.tiles import Draw, rows
from reference_impls.core import compute
from reference_impls.core.compute import as_uniform, compiled
from reference_impls.core.errors import UnsupportedError, one_of
from reference_impls.kernels import Formula

WIRE_VERSION: Final = 2
Rounding = Literal["nearest", "stochastic"]
ROUNDINGS: Final[tuple[Rounding, ...]] = ("nearest", "stochastic")


@dataclass(frozen=True)
class BlockLevels(BlockCompressor):
    """Compressor. levels: those on either side of 0, at most `most`. block_size: elements that share a norm; 0 = all of them.

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

    def message(self) -> BlockMessage:
        return BlockMessage(packing.width(2 * self.levels), self.block_size)

    def without_blocks(self) -> Self:
        return dataclasses.replace(self, norm="l2", block_size=512)

    def measure(self, x: Tensor, size: int) -> Tensor:
        return norms(x, size, self.norm).unsqueeze(-1)


@dataclass(frozen=True)
class UniformLevels(BlockLevels):
    """Compressor: QSGD's quantiser, equal levels of a norm of each block. arXiv 1610.02132. levels: s, 1 .. 32767.

    With N the norm of the element's block, ``q = sign(x) sr(s |x| / N)`` in -s .. s, decoded as ``q N / s``.
    E|Q(x) - x|^2 <= min(B / s^2, sqrt(B) / s) |x|^2 for l2 and blocks of B elements, B N^2 / (4 s^2) for linf. The message: q + s
    in `packing.width(2 s)` bits, and N. Rounding is `compressors.dithering`'s; its policies for zero, for a norm that was
    rounded down and for what is not finite hold, block by block.

    divisor: x is divided by it before it is rounded, and what is decoded is multiplied by it: s / divisor levels are in use.
    It is there for measuring what that costs; unbiased all the same. rounding: ``nearest`` is biased, ties go towards 0.
    """

    divisor: int = 1
    rounding: Rounding = "stochastic"

    most: ClassVar[int] = (1 << 15) - 1

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("rounding", self.rounding, ROUNDINGS)

    def formula(self) -> Formula | None:
        if self.rounding == "nearest":
            return None
        return Formula("uniform", self.levels, self.divisor, "linf" if self.norm == "linf" else None)

    def code(self, x: Tensor, found: Sequence[Tensor], draw: Draw) -> Tensor:
        drawn = as_uniform(draw()) if self.rounding == "stochastic" else 0.5
        return dithering.rounded(x, found[0] * self.divisor, self.levels, drawn) + self.levels

    def value(self, codes: Tensor, found: Sequence[Tensor]) -> Tensor:
        return dithering.restored(codes - self.levels, found[0] * self.divisor, self.levels)


@dataclass(frozen=True)
class GeometricLevels(BlockLevels):
    """Compressor: powers of two of a norm of each block, and zero. levels: k, those above zero, 1 .. 100.

    Spec: natural dithering, arXiv 1905.10988, and NUQSGD, arXiv 1908.06077. With N the norm of the element's block, |x| / N goes
    to one of 1, 1/2, .. 2^(1-k), 0, to the upper neighbour with the probability that keeps its expectation. The message: q + k
    in `packing.width(2 k)` bits, where q = 0 is zero and |q| in 1 .. k is 2^(|q| - k), then N.
    E|Q(x) - x|^2 <= (1/8 + t min(1, t)) |x|^2, t = sqrt(B) 2^(1-k), for l2 and blocks of B.

    Up where the draw is below the mantissa's fraction, or, under the lowest level, below |x| / N 2^(k-1). |x| / N is cut at 1. A
    block of zeros is sent as zeros. Not finite: N is not finite then, codes are 0 where |x| / N is 0 or NaN, and the whole block
    decodes to what is not finite.
    """

    most: ClassVar[int] = 100  # 2^(1-k) times a norm is then a normal number for norms from 2^-27 on

    def formula(self) -> Formula:
        return Formula("geometric", self.levels, measure="linf" if self.norm == "linf" else None)

    def code(self, x: Tensor, found: Sequence[Tensor], draw: Draw) -> Tensor:
        y = (x.abs() / found[0]).clamp(max=1.0)
        y = torch.where(y != y, 0.0, y)  # NaN: 0 / 0, or something that is not finite
        pattern = y.view(torch.int32)
        below = (pattern >> 23) - 127 + self.levels
        inner = (pattern & 0x7FFFFF).to(torch.float32) * 2.0**-23
        fraction = torch.where(below >= 1, inner, y * 2.0 ** (self.levels - 1))
        code = below.clamp(min=0) + (as_uniform(draw()) < fraction).to(torch.int32)
        return torch.where(x < 0, -code, code) + self.levels

    def value(self, codes: Tensor, found: Sequence[Tensor]) -> Tensor:
        q = codes - self.levels
        magnitude = ((q.abs() - self.levels + 127) << 23).view(torch.float32)
        return torch.where(q == 0, 0.0, torch.where(q < 0, -magnitude, magnitude)) * found[0]


@compiled
def _ends(x: Tensor, low: Tensor, high: Tensor) -> None:
    low.copy_(x.amin(-1))  # least and greatest are the same in every order
    high.copy_(x.amax(-1))


@dataclass(frozen=True)
class MinMax(BlockCompressor):
    """Compressor: equal steps between the least and the greatest value of each block, as CGX's code has it. arXiv 2111.08617.

    With b bits, step = (max - min) / (2^b - 1); the code is ``min(floor((x - min) / step + r), 2^b - 1)``, decoded as
    ``min + step code``. r is 1/2 (``nearest``, biased) or uniform (``stochastic``, unbiased: up where the draw is below the
    fraction). The message: codes in b bits, then min and step of each block. Equal values have step 0, code 0, and are exact. Not
    finite, or a range beyond float32's: min or step is not finite, and all of the block decodes to NaN or infinities.

    bits: 1 .. 16 of a code. block_size: elements that share min and step; 0 = the whole message.
    """

    bits: int = 4
    block_size: int = 512
    rounding: Rounding = "stochastic"

    def __post_init__(self) -> None:
        one_of("rounding", self.rounding, ROUNDINGS)
        self.message()

    def message(self) -> BlockMessage:
        return BlockMessage(self.bits, self.block_size, numbers=2)

    def without_blocks(self) -> Self:
        return dataclasses.replace(self, block_size=512)

    def measure(self, x: Tensor, size: int) -> Tensor:
        """Least value and step of each block."""
        found = compute.empty((2, *x.shape[:-1], -(-x.shape[-1] // size)), torch.float32, x.device)
        start = 0
        for part in per_block(x, size):
            own = found[..., start : start + part.shape[-2]]
            for blocks, low, high in rows(part.flatten(-2), *own.unbind(0)):
                by_block = blocks.view(*low.shape, part.shape[-1])
                for some, least, most in few_rows(by_block, low, high):
                    _ends(some, least, most)
            start += part.shape[-2]
        low, high = found.unbind(0)
        # a tensor as divisor: by a number, a GPU multiplies by its reciprocal
        high.sub_(low).div_(torch.full_like(high, self._most))
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


_MANTISSA: Final = 0x7FFFFF


@dataclass(frozen=True)
class Natural(BlockCompressor):
    """Compressor: natural compression, a sign and a power of two, 9 bits, without bias. arXiv 1905.10988.

    The 23 bits of the mantissa, m, are replaced by one draw: the exponent goes up by one with probability m / 2^23, that is
    where the lowest 23 bits of the draw are below m. The message is ``sign * 256 + exponent`` (the biased one of IEEE 754) of
    each element; there are no numbers a block. E|C(x) - x|^2 <= |x|^2 / 8.

    * Exponent 0 is zero. Subnormal numbers are rounded without bias to zero or 2^-126, which is 1 / 8 no more.
    * From 2^127 on there is no power of two above: magnitudes are rounded down to 2^127, which is biased.
    * Infinities and NaN have exponent 255, are sent as such and decode to infinities of their sign.
    * A zero of either sign decodes to 0.
    """

    apart: ClassVar[bool] = True
    by_pattern: ClassVar[bool] = True

    def message(self) -> BlockMessage:
        return BlockMessage(9, 0, numbers=0)

    def measure(self, x: Tensor, size: int) -> Tensor:
        return x.new_empty(*x.shape[:-1], 1, 0)

    def formula(self) -> Formula:
        return Formula("natural")

    def code(self, x: Tensor, found: Sequence[Tensor], draw: Draw) -> Tensor:
        return self.field(x, found, draw, 8, 0) | (((x >> 31) & 1) << 8)

    def field(self, x: Tensor, found: Sequence[Tensor], draw: Draw, size: int, lowest: int) -> Tensor:
        if lowest == 8:  # the sign, which needs no draw
            return (x >> 31) & 1
        exponent = (x >> 23) & 255
        up = ((draw() & _MANTISSA) - (x & _MANTISSA)) >> 31  # -1 where the draw is below
        return (exponent - up).minimum(exponent.clamp(min=254))  # 254 and 255 stay

    def value(self, codes: Tensor, found: Sequence[Tensor]) -> Tensor:
        exponent = codes & 255
        magnitude = (exponent << 23).view(torch.float32)  # exponent 0: zero; 255: infinity
        return torch.where(exponent == 0, 0.0, torch.where(codes > 255, -magnitude, magnitude))
