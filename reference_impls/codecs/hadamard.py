"""The randomised Hadamard transform in chunks: random signs, then all sums and differences. Spreads what is uneven.

A vector of d elements is cut into chunks of `size` consecutive ones (a power of two); what is left is padded with zeros to
the next power of two. `rotate` multiplies by the signs and by the matrix H of +1 and -1 with H H = size; `rotate_back`
by H and by the signs, so that together they are multiplication by the size of each chunk. Every output is made of IEEE
additions and subtractions in a fixed order, element-wise, and is exact on integers while they stay below 2^24 (float32).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impls.codecs.sums import fixed_sum
from reference_impls.errors import UnsupportedError

__all__ = ["Chunks", "butterflies"]


def butterflies(x: Tensor) -> Tensor:
    """H x over the last axis, a power of two long (natural order). A new tensor."""
    size = x.shape[-1]
    inner = 1 << (size.bit_length() // 2)  # so that every pass runs over neighbours
    out = x.reshape(*x.shape[:-1], size // inner, inner).clone()
    _over_rows(out)
    turned = out.transpose(-1, -2).contiguous()
    _over_rows(turned)
    return turned.transpose(-1, -2).reshape(x.shape)


def _over_rows(x: Tensor) -> None:
    """H over the last axis but one of a contiguous tensor, in place."""
    *lead, rows, width = x.shape
    half = 1
    while half < rows:
        pairs = x.view(*lead, rows // (2 * half), 2, half * width)
        upper, lower = pairs.select(-2, 0), pairs.select(-2, 1)
        total = upper + lower
        torch.sub(upper, lower, out=lower)
        upper.copy_(total)
        half *= 2


@dataclass(frozen=True)
class Chunks:
    """d elements in chunks of `size`, a power of two; the last one is the least power of two that holds the rest."""

    d: int
    size: int

    def __post_init__(self) -> None:
        if self.size < 1 or self.size & (self.size - 1):
            raise UnsupportedError(f"a chunk must be a power of two, got {self.size}")

    @property
    def full(self) -> int:
        """Chunks of full size."""
        return self.d // self.size

    @property
    def last(self) -> int:
        """Length of the last chunk, padding included; 0 if none is shorter."""
        rest = self.d % self.size
        return 1 << (rest - 1).bit_length() if rest else 0

    @property
    def count(self) -> int:
        return self.full + (self.last > 0)

    @property
    def padded(self) -> int:
        return self.full * self.size + self.last

    def cut(self, x: Tensor) -> list[Tensor]:
        """[padded] -> [full, size] and [1, last], where there are such; views."""
        edge = self.full * self.size
        parts = [x[:edge].view(self.full, self.size)] if self.full else []
        return [*parts, x[edge:].view(1, self.last)] if self.last else parts

    def norms(self, x: Tensor) -> Tensor:
        """float32 [d] -> 2-norm of every chunk, float32 [count]; squares are summed in float64."""
        squares = self.pad(x).to(torch.float64).square()
        return torch.cat([fixed_sum(part) for part in self.cut(squares)]).sqrt().to(torch.float32)

    def spread(self, per_chunk: Tensor) -> Tensor:
        """[count] -> [padded], each element its chunk's."""
        sizes = [self.size] * self.full + ([self.last] if self.last else [])
        return per_chunk.repeat_interleave(torch.tensor(sizes, device=per_chunk.device))

    def pad(self, x: Tensor) -> Tensor:
        """[d] -> [padded]."""
        return torch.nn.functional.pad(x, (0, self.padded - self.d))

    def rotate(self, x: Tensor, signs: Tensor) -> Tensor:
        """[padded] -> H (signs x), [padded]."""
        return self._transformed(x * signs)

    def rotate_back(self, x: Tensor, signs: Tensor) -> Tensor:
        """[padded] -> signs (H x), [d]: `rotate` undone but for the factor `size` of each chunk."""
        return (self._transformed(x) * signs)[: self.d]

    def sizes(self, device: torch.device) -> Tensor:
        """float32 [count]: length of each chunk."""
        found = torch.full((self.count,), float(self.size), device=device)
        if self.last:
            found[-1] = self.last
        return found

    def _transformed(self, x: Tensor) -> Tensor:
        parts = [butterflies(part).view(-1) for part in self.cut(x)]
        return torch.cat(parts) if parts else x
