"""`compressors.count_sketch`: hashes are made where they are used, in products of 32 bits by 32, for all rows of the table at
once."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

_BLOCK: Final = 1024


@triton.jit
def _fold(v):
    return ((v & 0x7FFFFFFF) + (v >> 31)).to(tl.uint32)


@triton.jit
def _hash(words, row, columns, place):
    """(column int32, factor float32 of 1 or -1) of the coordinates `place`, uint32."""
    a = words + 4 * row
    j = place.to(tl.uint64)
    v = _fold(j * tl.load(a + 3).to(tl.uint64) + tl.load(a + 2).to(tl.uint64))
    v = _fold(v.to(tl.uint64) * j + tl.load(a + 1).to(tl.uint64))
    v = _fold(v.to(tl.uint64) * j + tl.load(a).to(tl.uint64))
    v = tl.where(v >= 0x7FFFFFFF, v - 0x7FFFFFFF, v)
    column = ((v >> 1).to(tl.uint64) * columns) >> 30
    return column.to(tl.int32), ((v & 1).to(tl.int32) * 2 - 1).to(tl.float32)


@triton.jit
def _encode(x, table, words, d, columns, start, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < d
    own = tl.load(x + place, mask=inside, other=0.0)
    for row in tl.static_range(ROWS):
        column, factor = _hash(words, row, columns, (start + place).to(tl.uint32))
        tl.atomic_add(table + row * columns + column, own * factor, mask=inside, sem="relaxed")


@triton.jit
def _read(table, words, row, d, columns, start, place):
    column, factor = _hash(words, row, columns, (start + place).to(tl.uint32))
    return tl.load(table + row * columns + column, mask=place < d, other=0.0) * factor


@triton.jit
def _sorted(a, b):
    return (
        tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL),
        tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL),
    )


@triton.jit
def _decode(out, table, words, d, columns, start, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    middle = _read(table, words, 0, d, columns, start, place)
    if ROWS >= 3:
        a, b = _sorted(middle, _read(table, words, 1, d, columns, start, place))
        c = _read(table, words, 2, d, columns, start, place)
        b, c = _sorted(b, c)
        a, b = _sorted(a, b)
        middle = b
        if ROWS == 5:
            e = _read(table, words, 3, d, columns, start, place)
            f = _read(table, words, 4, d, columns, start, place)
            e, f = _sorted(e, f)
            _, e = _sorted(a, e)  # the least of all five goes, and the greatest
            c, _ = _sorted(c, f)
            c, e = _sorted(c, e)
            _, middle = _sorted(c, _sorted(b, e)[0])
    tl.store(out + place, middle, mask=place < d)


def encode(x: Tensor, table: Tensor, words: Tensor, start: int) -> None:
    """float32 [d] is added to its table, float32 [rows, columns]. words: int64 [rows, 4], coefficients. rows: 1, 3 or 5."""
    rows, columns = table.shape
    if len(x):
        _encode[(triton.cdiv(len(x), _BLOCK),)](x, table, words, len(x), columns, start, rows, _BLOCK)


def decode(table: Tensor, words: Tensor, out: Tensor, start: int) -> None:
    """Estimates of all coordinates, float32 [d]."""
    rows, columns = table.shape
    if len(out):
        _decode[(triton.cdiv(len(out), _BLOCK),)](out, table, words, len(out), columns, start, rows, _BLOCK)
