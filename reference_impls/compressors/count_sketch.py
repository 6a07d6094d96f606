"""Count-Sketch: a small linear table from which large coordinates of a vector can be read. Charikar, Chen, Farach-Colton.

T[row, h_row(j)] += s_row(j) x_j; coordinate j is estimated by the median over rows of s_row(j) T[row, h_row(j)]. Linear: the
table of a sum is the sum of the tables. Tables are float32 [rows, columns]; rows is odd, so that the median is a value.

Hashes, to the bit (version 1)
------------------------------
For each row four coefficients a_0 .. a_3 in 0 .. p-1, p = 2^31 - 1: the i-th little-endian unsigned 64-bit integer of the
32-byte BLAKE2b digest (personalised with ``b"bandwise-sketch1"``) of seed and row as little-endian signed 64-bit integers,
modulo p. Coordinate j has the value H = (a_3 j^3 + a_2 j^2 + a_1 j + a_0) mod p, exact in 64-bit integers for j < 2^30; its
sign is + where H is odd, else -; its column is floor(floor(H / 2) columns / 2^30).

Polynomials of degree 3 with random coefficients are 4-wise independent, so any four coordinates have independent pairs of
column and sign. What theory asks for (columns 2-wise, signs 4-wise independent, and both independent of one another for a
coordinate) holds up to deviations from equal probabilities of about columns / p, since p is no multiple of what H is cut into.

Determinism: on the CPU additions into a cell are made in the order of coordinates. On CUDA their order is not fixed, and a
table may differ in its last bits from one call to the next; what is read from a given table never does. Not finite: a
coordinate makes the cells it falls into not finite, and the median of numbers of which one is NaN is NaN.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from reference_impls.compressors.sums import fixed_sum
from reference_impls.core import compute
from reference_impls.core.compute import compiled
from reference_impls.core.errors import UnsupportedError

HASH_VERSION: Final = 1
LONGEST: Final = 1 << 30
_PRIME: Final = (1 << 31) - 1
_PERSON: Final = b"bandwise-sketch1"
_CHUNK: Final = 1 << 22  # coordinates hashed at once
_MEDIANS: Final = 5  # rows of which a kernel makes medians


def coefficients(seed: int, row: int) -> tuple[int, ...]:
    digest = hashlib.blake2b(struct.pack("<qq", seed, row), digest_size=32, person=_PERSON).digest()
    return tuple(word % _PRIME for word in struct.unpack("<4Q", digest))


@functools.cache
def _coefficients(seed: int, rows: int, device: torch.device) -> Tensor:
    """int64 [rows, 4]."""
    return torch.tensor([coefficients(seed, row) for row in range(rows)], device=device)


def _fold(v: Tensor) -> Tensor:
    """A number that is v modulo p: (v >> 31) + (v mod 2^31)."""
    return (v & _PRIME) + (v >> 31)


def _polynomial(words: Tensor, numel: int) -> Tensor:
    """H of `numel` coordinates, int64 [numel]; the remarks bound what is folded for j < 2^30: nothing overflows."""
    j = torch.arange(numel, dtype=torch.int64, device=words.device) + words[5]
    v = _fold(j * words[3] + words[2])  # from < 2^61 + 2^31 to < 2^31 + 2^30 + 2
    v = _fold(v * j + words[1])  # from < 1.5 * 2^61 + 2^33 to < 2^31 + 1.5 * 2^30 + 4
    v = _fold(v * j + words[0]) - _PRIME  # from < 1.75 * 2^61 + 2^34 to < 2^31 + 1.75 * 2^30 + 8 < 2 p
    return v + ((v >> 63) & _PRIME)


@compiled
def _hash(columns: Tensor, signs: Tensor, words: Tensor) -> None:
    """Fill int32 [d] and float [d]; words int64 [6]: a_0 .. a_3, number of columns, first coordinate."""
    v = _polynomial(words, columns.shape[-1])
    signs.copy_((v & 1) * 2 - 1)
    columns.copy_(((v >> 1) * words[4]) >> 30)


@compiled
def _signed(columns: Tensor, values: Tensor, x: Tensor, words: Tensor) -> None:
    """As `_hash`, with the signs in `values`, [..., d], as factors of x."""
    v = _polynomial(words, columns.shape[-1])
    values.copy_(x * ((v & 1) * 2 - 1).to(x.dtype))
    columns.copy_(((v >> 1) * words[4]) >> 30)


@compiled
def _median(out: Tensor, rows: Tensor) -> None:
    """Median over the axis before the last, odd in length: float [..., r, d] -> [..., d]; NaN where one of them is."""
    values = list(rows.unbind(-2))
    for turn in range(len(values)):
        for i in range(turn % 2, len(values) - 1, 2):
            low, high = torch.minimum(values[i], values[i + 1]), torch.maximum(values[i], values[i + 1])
            values[i], values[i + 1] = low, high
    out.copy_(values[len(values) // 2])


@dataclass(frozen=True)
class CountSketch:
    """rows: odd. columns: cells a row. seed: of the hashes, the same on all ranks. start: coordinate of element 0."""

    rows: int
    columns: int
    seed: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        if self.rows < 1 or self.rows % 2 == 0:
            raise UnsupportedError(
                f"rows must be odd, got {self.rows}: the median of an even number of rows is no value among them"
            )
        if not 1 <= self.columns <= LONGEST:
            raise UnsupportedError(f"columns must be in 1 .. 2^30, got {self.columns}")

    def encode(self, x: Tensor, table: Tensor) -> None:
        """float [..., d] -> its table, float [..., rows, columns], in the dtype of x."""
        table.zero_()
        parts = self._parts(x.shape[-1])
        if self._suits("encode", x, table):
            from reference_impls.kernels import count_sketch as on_gpu

            on_gpu.encode(x, table, _coefficients(self.seed, self.rows, x.device), self.start)
            return
        for part in parts:
            own = x[..., part]
            columns = compute.empty(own.shape[-1], torch.int32, x.device)
            values = compute.empty_like(own)
            for row in range(self.rows):
                _signed(columns, values, own, self._words(row, part, x.device))
                table[..., row, :].index_add_(-1, columns, values)

    def decode(self, table: Tensor, out: Tensor) -> None:
        """Table [..., rows, columns] -> estimates of all coordinates, [..., d]."""
        parts = self._parts(out.shape[-1])
        if self._suits("decode", out, table):
            from reference_impls.kernels import count_sketch as on_gpu

            on_gpu.decode(table, _coefficients(self.seed, self.rows, out.device), out, self.start)
            return
        lead = out.shape[:-1]
        for part in parts:
            numel = part.stop - part.start
            columns = compute.empty(numel, torch.int32, table.device)
            signs = compute.empty(numel, table.dtype, table.device)
            read = compute.empty((self.rows, *lead, numel), table.dtype, table.device)
            for row in range(self.rows):
                _hash(columns, signs, self._words(row, part, table.device))
                torch.index_select(table[..., row, :], -1, columns, out=read[row]).mul_(signs)
            _median(out[..., part], read.movedim(0, -2))

    def _suits(self, verb: str, x: Tensor, table: Tensor) -> bool:
        """Whether a kernel can do it."""
        plain = x.dim() == 1 and x.dtype == table.dtype == torch.float32 and table.is_contiguous()
        return plain and self.rows <= _MEDIANS and compute.takes(f"count_sketch.{verb}", x, table)

    def _parts(self, numel: int) -> list[slice]:
        if self.start < 0 or self.start + numel > LONGEST:
            raise UnsupportedError(f"the hashes are exact up to coordinate 2^30, not {self.start + numel}")
        return [slice(first, min(first + _CHUNK, numel)) for first in range(0, numel, _CHUNK)]

    def _words(self, row: int, part: slice, device: torch.device) -> Tensor:
        first = self.start + part.start
        return compute.constant((*coefficients(self.seed, row), self.columns, first), torch.int64, device)

    def squared_norm(self, table: Tensor) -> Tensor:
        """Estimate of the squared 2-norm: the median over rows of the sum of squares, [...]."""
        out = torch.empty((*table.shape[:-2], 1), dtype=table.dtype, device=table.device)
        _median(out, fixed_sum(table, "square").unsqueeze(-1))
        return out.squeeze(-1)
