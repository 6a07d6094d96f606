"""The randomised Hadamard transform in chunks: random signs, then all sums and differences. Spreads what is uneven.

A vector of d elements is cut into chunks of `size` consecutive ones (a power of two); what is left is padded with zeros to
the next power of two. `rotate` multiplies by the signs and by the matrix H of +1 and -1 with H H = size; `rotate_back`
by H and by the signs, so that together they are multiplication by the size of each chunk. Every output is made of IEEE
additions and subtractions in a fixed order, element-wise, and is exact on integers while they stay below 2^24 (float32).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from reference_impls import buffers, kernels
from reference_impls.codecs.sums import fixed_sum
from reference_impls.compilation import compiled
from reference_impls.errors import UnsupportedError

__all__ = ["Chunks", "butterflies"]

_HELD: Final = 4096  # elements of a chunk that a kernel keeps in registers


def butterflies(x: Tensor) -> Tensor:
    """H x over the last axis, a power of two long (natural order). A new tensor."""
    size = x.shape[-1]
    inner = 1 << (size.bit_length() // 2)  # so that every pass runs over neighbours
    out = _over_rows(x.reshape(-1, size // inner, inner))
    turned = buffers.empty((out.shape[0], inner, size // inner), x.dtype, x.device).copy_(
        out.transpose(-1, -2)
    )
    turned = _over_rows(turned)
    return buffers.empty(out.shape, x.dtype, x.device).copy_(turned.transpose(-1, -2)).view(x.shape)


def _over_rows(x: Tensor) -> Tensor:
    """H over the last axis but one of a contiguous tensor, [n, rows, width]; up to three of its levels in a pass."""
    _, rows, width = x.shape
    half = 1
    while half < rows:
        radix = min(rows // half, 8)
        out = buffers.empty(x.shape, x.dtype, x.device)
        planes = (-1, radix, half * width)
        _PASSES[radix](x.view(planes), *out.view(planes).unbind(1))
        x, half = out, half * radix
    return x


def _levels(x: Tensor, out: Sequence[Tensor]) -> None:
    """All levels over the middle axis of [n, r, w], the neighbours' first, into r tensors [n, w]."""
    planes, half = list(x.unbind(1)), 1
    while half < len(planes):
        for upper in range(len(planes)):
            if not upper & half:
                one, other = planes[upper], planes[upper + half]
                planes[upper], planes[upper + half] = one + other, one - other
        half *= 2
    for target, plane in zip(out, planes, strict=True):
        target.copy_(plane)


@compiled
def _two(x: Tensor, *out: Tensor) -> None:
    _levels(x, out)


@compiled
def _four(x: Tensor, *out: Tensor) -> None:
    _levels(x, out)


@compiled
def _eight(x: Tensor, *out: Tensor) -> None:
    _levels(x, out)


_PASSES: Final = {
    2: _two,
    4: _four,
    8: _eight,
}  # a function each, since the compiler makes a variant of each radix


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
        sums = [fixed_sum(part, "wide square") for part in self.cut(self.pad(x))]
        return torch.cat(sums).sqrt().to(torch.float32)

    def spread(self, per_chunk: Tensor) -> Tensor:
        """[count] -> [padded], each element its chunk's."""
        out = buffers.empty(self.padded, per_chunk.dtype, per_chunk.device)
        start = 0
        for part in self.cut(out):
            part.copy_(per_chunk[start : start + len(part)].unsqueeze(-1))
            start += len(part)
        return out

    def pad(self, x: Tensor) -> Tensor:
        """[d] -> [padded]; `x` itself where nothing is missing."""
        if self.padded == self.d:
            return x
        out = buffers.empty(self.padded, x.dtype, x.device)
        out[: self.d].copy_(x)
        out[self.d :].zero_()
        return out

    def rotate(self, x: Tensor, signs: Tensor) -> Tensor:
        """[padded] -> H (signs x), [padded]."""
        if self._suits(x):
            return self._on_gpu(x, signs, before=True)
        return self._transformed(torch.mul(x, signs, out=buffers.empty_like(x)))

    def rotate_back(self, x: Tensor, signs: Tensor) -> Tensor:
        """[padded] -> signs (H x), [d]: `rotate` undone but for the factor `size` of each chunk."""
        if self._suits(x):
            return self._on_gpu(x, signs, before=False)[: self.d]
        return self._transformed(x).mul_(signs)[: self.d]

    def sizes(self, device: torch.device) -> Tensor:
        """float32 [count]: length of each chunk."""
        found = torch.full((self.count,), float(self.size), dtype=torch.float32, device=device)
        if self.last:
            found[-1] = self.last
        return found

    def _suits(self, x: Tensor) -> bool:
        """Whether a kernel can do it."""
        held = max(self.size if self.full else 0, self.last) <= _HELD
        return held and x.dtype == torch.float32 and kernels.takes("hadamard.transform", x)

    def _on_gpu(self, x: Tensor, signs: Tensor, *, before: bool) -> Tensor:
        from reference_impls.kernels import hadamard

        out = torch.empty_like(x)
        edge = self.full * self.size
        for part, size in ((slice(0, edge), self.size), (slice(edge, self.padded), self.last)):
            if part.start < part.stop:
                hadamard.transform(x[part], signs[part], out[part], size, before=before)
        return out

    def _transformed(self, x: Tensor) -> Tensor:
        out = buffers.empty_like(x)
        for part, target in zip(self.cut(x), self.cut(out), strict=True):
            target.copy_(butterflies(part))
        return out
