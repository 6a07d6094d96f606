"""`compressors.sums.fixed_sum` in two launches: blocks of 1024, read in the order of their tree; then the sums of blocks."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_impls.kernels import IEEE

_BLOCK: Final = 1024
_BLOCKS: Final = 32  # of a program
_MOST: Final = (
    1 << 13
)  # sums of blocks that one program adds; more of them become fewer by launches of torch's
_WIDTH: Final = 1024  # of which it adds so many at a time


@triton.jit
def _row(x, factor, first, place, d, there, OF: tl.constexpr):
    """Terms of one row of 16 of each of so many blocks."""
    inside = there & (place < d)
    own = tl.load(x + first + place, mask=inside, other=0.0) * factor
    if OF == "abs":
        own = tl.abs(own)
    if OF == "wide square":
        own = own.to(tl.float64)
    if OF == "square" or OF == "wide square":
        own = own * own
    return tl.where(inside, own, 0.0)


@triton.jit
def _rows2(x, factor, first, place, d, there, OF: tl.constexpr):
    a = _row(x, factor, first, place, d, there, OF)
    return a + _row(x, factor, first, place + 16, d, there, OF)


@triton.jit
def _rows4(x, factor, first, place, d, there, OF: tl.constexpr):
    a = _rows2(x, factor, first, place, d, there, OF)
    return a + _rows2(x, factor, first, place + 32, d, there, OF)


@triton.jit
def _rows8(x, factor, first, place, d, there, OF: tl.constexpr):
    a = _rows4(x, factor, first, place, d, there, OF)
    return a + _rows4(x, factor, first, place + 64, d, there, OF)


@triton.jit
def _rows16(x, factor, first, place, d, there, OF: tl.constexpr):
    a = _rows8(x, factor, first, place, d, there, OF)
    return a + _rows8(x, factor, first, place + 128, d, there, OF)


@triton.jit
def _rows32(x, factor, first, place, d, there, OF: tl.constexpr):
    a = _rows16(x, factor, first, place, d, there, OF)
    return a + _rows16(x, factor, first, place + 256, d, there, OF)


@triton.jit
def _halves(x, K: tl.constexpr, N: tl.constexpr):
    """[K, N] -> [K, N / 2]: element i + N / 2 added to element i."""
    a, b = tl.split(tl.permute(tl.reshape(x, [K, 2, N // 2]), (0, 2, 1)))
    return a + b


@triton.jit
def _sum_blocks(
    x, factors, out, d, stride, blocks, count, OF: tl.constexpr, SCALED: tl.constexpr, K: tl.constexpr
):
    number = tl.program_id(0) * K + tl.arange(0, K)
    there = (number < count)[:, None]
    row = (number // blocks).to(tl.int64)
    first = (row * stride)[:, None]
    place = (number % blocks * 1024)[:, None] + tl.arange(0, 16)[None, :]
    factor = tl.load(factors + row, mask=number < count, other=0.0)[:, None] if SCALED else 1.0
    a = _rows32(x, factor, first, place, d, there, OF)
    a = a + _rows32(x, factor, first, place + 512, d, there, OF)
    a = _halves(_halves(_halves(_halves(a, K, 16), K, 8), K, 4), K, 2)
    tl.store(out + number, tl.reshape(a, [K]), mask=number < count)


@triton.jit
def _add_blocks(sums, blocks, N: tl.constexpr):
    """Every row of sums, in place: its first element becomes the sum of the row."""
    first = sums + tl.program_id(0).to(tl.int64) * blocks
    count = blocks
    while count > 1:
        half = (count + 1) // 2
        for begin in range(0, half, N):
            i = begin + tl.arange(0, N)
            a = tl.load(first + i, mask=i < half, other=0.0)
            b = tl.load(first + half + i, mask=i < count - half, other=0.0)
            tl.store(first + i, a + b, mask=i < half)
        tl.debug_barrier()  # the next turn reads what other threads wrote
        count = half


def fixed_sum(x: Tensor, of: str, factor: Tensor | None) -> Tensor:
    """float32 or float64 [..., d], d > 0 -> [...]; see there."""
    lead, d = x.shape[:-1], x.shape[-1]
    flat = x.reshape(-1, d)
    scales = x if factor is None else factor.expand(*lead, 1).reshape(-1)
    blocks = triton.cdiv(d, _BLOCK)
    dtype = torch.float64 if of == "wide square" else x.dtype
    sums = torch.empty(len(flat), blocks, dtype=dtype, device=x.device)
    count = sums.numel()
    _sum_blocks[(triton.cdiv(count, _BLOCKS),)](
        flat,
        scales,
        sums,
        d,
        flat.stride(0),
        blocks,
        count,
        of,
        factor is not None,
        _BLOCKS,
        num_warps=4,
        **IEEE,
    )
    while sums.shape[1] > _MOST:
        half = -(-sums.shape[1] // 2)
        halved = sums[:, :half] + 0.0
        halved[:, : sums.shape[1] - half] += sums[:, half:]
        sums = halved
    if sums.shape[1] > 1:
        _add_blocks[(len(sums),)](
            sums, sums.shape[1], min(_WIDTH, triton.next_power_of_2(sums.shape[1])), **IEEE
        )
    return sums[:, 0].view(lead)
