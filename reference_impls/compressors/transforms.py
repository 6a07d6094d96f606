"""Transforms after which numbers are easier to send: the randomised Hadamard transform, and cosines of a matrix's blocks.

*Hadamard* in chunks: random signs, then all sums and differences, which spreads what is uneven. A vector of d elements is cut
into chunks of `size` consecutive ones (a power of two); what is left is padded with zeros to the next power of two. `rotate`
multiplies by the signs and by the matrix H of +1 and -1 with H H = size; `rotate_back` by H and by the signs, so that
together they are multiplication by the size of each chunk. Every output is made of IEEE additions and subtractions in a
fixed order, element-wise, and is exact on integers while they stay below 2^24 (float32). `Rotated` compresses what was
transformed without signs.

*Cosines*, and the k largest coefficients a block. Wire format version 1. The matrix [R, C] is cut into blocks of at most
`side` x `side`: rows and columns are cut every `side`, and what is left over at the lower and right edges makes smaller
blocks. Blocks of one shape are a *region*, of which there are at most four: (full, full), (full, rest), (rest, full), (rest,
rest). A block B of h x w becomes D_h B D_w^T with the orthonormal DCT-II
D_m[i, j] = sqrt((2 - [i = 0]) / m) cos(pi i (2 j + 1) / (2 m)), so nothing is lost and norms are kept. Message of a tensor:
its regions' messages behind one another, each `compressors.sparse.ChunkTopK` with float32 values on the coefficients, block by
block, min(k, h w) of each block. The transforms are float32 matrix products: their last bits may differ between machines,
never between ranks of one kind. What is not finite makes its whole block not finite.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from reference_impls.compressors.compressor import Compressor
from reference_impls.compressors.sparse import ChunkTopK
from reference_impls.compressors.sums import fixed_sum
from reference_impls.core import compute
from reference_impls.core.compute import Key, compiled
from reference_impls.core.errors import UnsupportedError

_HELD: Final = 4096  # elements of a chunk that a kernel keeps in registers


def butterflies(x: Tensor) -> Tensor:
    """H x over the last axis, a power of two long (natural order). A new tensor."""
    size = x.shape[-1]
    inner = 1 << (size.bit_length() // 2)  # so that every pass runs over neighbours
    out = _over_rows(x.reshape(-1, size // inner, inner))
    turned = compute.empty((out.shape[0], inner, size // inner), x.dtype, x.device).copy_(
        out.transpose(-1, -2)
    )
    turned = _over_rows(turned)
    return compute.empty(out.shape, x.dtype, x.device).copy_(turned.transpose(-1, -2)).view(x.shape)


def _over_rows(x: Tensor) -> Tensor:
    """H over the last axis but one of a contiguous tensor, [n, rows, width]; up to three of its levels in a pass."""
    _, rows, width = x.shape
    half = 1
    while half < rows:
        radix = min(rows // half, 8)
        out = compute.empty(x.shape, x.dtype, x.device)
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
        out = compute.empty(self.padded, per_chunk.dtype, per_chunk.device)
        start = 0
        for part in self.cut(out):
            part.copy_(per_chunk[start : start + len(part)].unsqueeze(-1))
            start += len(part)
        return out

    def pad(self, x: Tensor) -> Tensor:
        """[d] -> [padded]; `x` itself where nothing is missing."""
        if self.padded == self.d:
            return x
        out = compute.empty(self.padded, x.dtype, x.device)
        out[: self.d].copy_(x)
        out[self.d :].zero_()
        return out

    def rotate(self, x: Tensor, signs: Tensor | None = None) -> Tensor:
        """[padded] -> H (signs x), [padded]. signs: None are all +1."""
        if self._suits(x):
            return self._on_gpu(x, torch.ones_like(x) if signs is None else signs, before=True)
        return self._transformed(x if signs is None else torch.mul(x, signs, out=compute.empty_like(x)))

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
        return held and x.dtype == torch.float32 and compute.takes("transforms.transform", x)

    def _on_gpu(self, x: Tensor, signs: Tensor, *, before: bool) -> Tensor:
        from reference_impls.kernels import hadamard

        out = torch.empty_like(x)
        edge = self.full * self.size
        for part, size in ((slice(0, edge), self.size), (slice(edge, self.padded), self.last)):
            if part.start < part.stop:
                hadamard.transform(x[part], signs[part], out[part], size, before=before)
        return out

    def _transformed(self, x: Tensor) -> Tensor:
        out = compute.empty_like(x)
        for part, target in zip(self.cut(x), self.cut(out), strict=True):
            target.copy_(butterflies(part))
        return out


@dataclass(frozen=True)
class Rotated:
    """Compressor: the message of another one, of the Hadamard transform in chunks of `size`, without signs.

    With a scale a block, an element that stands out is spread over its chunk before it can coarsen the levels of its block.
    The transform of a chunk of m elements is decoded, transformed again and divided by m. The last chunk is padded as in
    `Chunks`, and its padding is in the message. Sums beyond float32's range make their block not finite.
    """

    compressor: Compressor
    size: int = 32

    def __post_init__(self) -> None:
        Chunks(0, self.size)

    def wire_bytes(self, numel: int) -> int:
        return self.compressor.wire_bytes(Chunks(numel, self.size).padded)

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        chunks = Chunks(x.shape[-1], self.size)
        turned = compute.empty((*x.shape[:-1], chunks.padded), x.dtype, x.device)
        if chunks.d:
            for own, out in zip(_each_row(x), _each_row(turned), strict=True):
                out.copy_(chunks.rotate(chunks.pad(own)))
        self.compressor.encode(turned, key, wire)

    def decode(self, wire: Tensor, out: Tensor) -> None:
        chunks = Chunks(out.shape[-1], self.size)
        turned = compute.empty((*out.shape[:-1], chunks.padded), out.dtype, out.device)
        self.compressor.decode(wire, turned)
        if chunks.d:
            for own, target in zip(_each_row(turned), _each_row(out), strict=True):
                target.copy_(chunks.rotate(own)[: chunks.d])
        edge = chunks.full * self.size
        out[..., :edge].div_(self.size)
        out[..., edge:].div_(max(chunks.last, 1))


def _each_row(x: Tensor) -> list[Tensor]:
    """[..., d] -> views [d]."""
    return [x] if x.dim() == 1 else [row for part in x for row in _each_row(part)]


WIRE_VERSION: Final = 1
_NO_DRAWS: Final = Key(torch.zeros(3, dtype=torch.int32))


@functools.cache
def dct_matrix(size: int, device: torch.device | str = "cpu") -> Tensor:
    """The orthonormal DCT-II, float32 [size, size]; its transpose is its inverse."""
    i = torch.arange(size, dtype=torch.float64).unsqueeze(-1)
    j = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi * i * (2 * j + 1) / (2 * size)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.to(device, torch.float32)


@dataclass(frozen=True)
class Region:
    """Blocks of one shape: `rows` x `columns` of them, each h x w, from element (top, left) of the matrix on."""

    top: int
    left: int
    rows: int
    columns: int
    h: int
    w: int

    @property
    def numel(self) -> int:
        return self.rows * self.columns * self.h * self.w


def _cuts(length: int, side: int) -> list[tuple[int, int, int]]:
    """(first element, pieces, elements a piece) of the full pieces and of the rest, where there are such."""
    full, rest = divmod(length, side)
    return [(0, full, side)] * bool(full) + [(full * side, 1, rest)] * bool(rest)


@dataclass(frozen=True)
class BlockDCT:
    """The largest coefficients of a tensor of `shape`, seen as a matrix [first axis, all others]."""

    shape: tuple[int, ...]
    side: int = 64
    k: int = 32

    def regions(self) -> list[Region]:
        """The regions of the matrix, in the order of the message."""
        columns = math.prod(self.shape[1:]) if len(self.shape) > 1 else math.prod(self.shape)
        rows = self.shape[0] if len(self.shape) > 1 else 1
        return [
            Region(top, left, down, across, h, w)
            for top, down, h in _cuts(rows, self.side)
            for left, across, w in _cuts(columns, self.side)
        ]

    def wire_bytes(self) -> int:
        """Bytes of the tensor's message."""
        return sum(self._compressor(region).wire_bytes(region.numel) for region in self.regions())

    def transform(self, x: Tensor) -> list[Tensor]:
        """float32 [numel] -> coefficients [blocks * h * w] of each region."""
        matrix = self._matrix(x)
        return [
            (dct_matrix(r.h, x.device) @ self._blocks(matrix, r) @ dct_matrix(r.w, x.device).T).reshape(-1)
            for r in self.regions()
        ]

    def inverse(self, coefficients: Sequence[Tensor]) -> Tensor:
        """Coefficients of each region -> float32 [numel]."""
        out = torch.empty(math.prod(self.shape), dtype=torch.float32, device=coefficients[0].device)
        matrix = self._matrix(out)
        for r, own in zip(self.regions(), coefficients, strict=True):
            blocks = own.view(r.rows, r.columns, r.h, r.w)
            back = dct_matrix(r.h, own.device).T @ blocks @ dct_matrix(r.w, own.device)
            self._blocks(matrix, r).copy_(back)
        return out

    def encode(self, x: Tensor, wire: Tensor) -> None:
        """float32 [numel] -> uint8 [wire_bytes]: the largest coefficients of every block."""
        at = 0
        for region, own in zip(self.regions(), self.transform(x), strict=True):
            compressor = self._compressor(region)
            length = compressor.wire_bytes(region.numel)
            compressor.encode(own, _NO_DRAWS, wire[at : at + length])
            at += length

    def coefficients(self, wire: Tensor) -> list[Tensor]:
        """Messages uint8 [..., wire_bytes] -> coefficients [..., blocks * h * w] of each region, 0 where none was sent."""
        found, at = [], 0
        for region in self.regions():
            compressor = self._compressor(region)
            length = compressor.wire_bytes(region.numel)
            out = torch.empty(*wire.shape[:-1], region.numel, dtype=torch.float32, device=wire.device)
            compressor.decode(wire[..., at : at + length], out)
            found.append(out)
            at += length
        return found

    def _compressor(self, region: Region) -> ChunkTopK:
        area = region.h * region.w
        return ChunkTopK(min(self.k, area), area, value_bits=32)

    def _matrix(self, x: Tensor) -> Tensor:
        return x.view(self.shape[0], -1) if len(self.shape) > 1 else x.view(1, -1)

    @staticmethod
    def _blocks(matrix: Tensor, r: Region) -> Tensor:
        """The region's blocks, a view [rows, columns, h, w] of the matrix."""
        part = matrix[r.top : r.top + r.rows * r.h, r.left : r.left + r.columns * r.w]
        down, across = matrix.stride()
        return part.as_strided(
            (r.rows, r.columns, r.h, r.w), (r.h * down, r.w * across, down, across), part.storage_offset()
        )
