"""Cosine transforms of the blocks of a matrix, and its k largest coefficients a block. Wire format version 1.

The matrix [R, C] is cut into blocks of at most `side` x `side`: rows and columns are cut every `side`, and what is left
over at the lower and right edges makes smaller blocks. Blocks of one shape are a *region*, of which there are at most four:
(full, full), (full, rest), (rest, full), (rest, rest). A block B of h x w becomes D_h B D_w^T with the orthonormal DCT-II
D_m[i, j] = sqrt((2 - [i = 0]) / m) cos(pi i (2 j + 1) / (2 m)), so nothing is lost and norms are kept.

Message of a tensor: its regions' messages behind one another, each `codecs.chunk_top_k` with float32 values on the
coefficients, block by block, min(k, h w) of each block. The transforms are float32 matrix products: their last bits may
differ between machines, never between ranks of one kind. What is not finite makes its whole block not finite.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from reference_impls.codecs.chunk_top_k import ChunkTopK
from reference_impls.randomness import Key

__all__ = ["WIRE_VERSION", "BlockDCT", "dct_matrix"]

WIRE_VERSION: Final = 1
_NO_DRAWS: Final = Key(torch.zeros(3, dtype=torch.int32))


@functools.cache
def dct_matrix(size: int) -> Tensor:
    """The orthonormal DCT-II, float32 [size, size]; its transpose is its inverse."""
    i = torch.arange(size, dtype=torch.float64).unsqueeze(-1)
    j = torch.arange(size, dtype=torch.float64)
    matrix = torch.cos(math.pi * i * (2 * j + 1) / (2 * size)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.to(torch.float32)


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
        return sum(self._codec(region).wire_bytes(region.numel) for region in self.regions())

    def transform(self, x: Tensor) -> list[Tensor]:
        """float32 [numel] -> coefficients [blocks * h * w] of each region."""
        matrix = self._matrix(x)
        return [
            (dct_matrix(r.h).to(x.device) @ self._blocks(matrix, r) @ dct_matrix(r.w).to(x.device).T).reshape(
                -1
            )
            for r in self.regions()
        ]

    def inverse(self, coefficients: Sequence[Tensor]) -> Tensor:
        """Coefficients of each region -> float32 [numel]."""
        out = torch.empty(math.prod(self.shape), dtype=torch.float32, device=coefficients[0].device)
        matrix = self._matrix(out)
        for r, own in zip(self.regions(), coefficients, strict=True):
            blocks = own.view(r.rows, r.columns, r.h, r.w)
            back = dct_matrix(r.h).to(own.device).T @ blocks @ dct_matrix(r.w).to(own.device)
            self._blocks(matrix, r).copy_(back)
        return out

    def encode(self, x: Tensor, wire: Tensor) -> None:
        """float32 [numel] -> uint8 [wire_bytes]: the largest coefficients of every block."""
        at = 0
        for region, own in zip(self.regions(), self.transform(x), strict=True):
            codec = self._codec(region)
            length = codec.wire_bytes(region.numel)
            codec.encode(own, _NO_DRAWS, wire[at : at + length])
            at += length

    def coefficients(self, wire: Tensor) -> list[Tensor]:
        """Messages uint8 [..., wire_bytes] -> coefficients [..., blocks * h * w] of each region, 0 where none was sent."""
        found, at = [], 0
        for region in self.regions():
            codec = self._codec(region)
            length = codec.wire_bytes(region.numel)
            out = torch.empty(*wire.shape[:-1], region.numel, dtype=torch.float32, device=wire.device)
            codec.decode(wire[..., at : at + length], out)
            found.append(out)
            at += length
        return found

    def _codec(self, region: Region) -> ChunkTopK:
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
