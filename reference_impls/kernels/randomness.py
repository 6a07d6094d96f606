"""The streams of `reference_impls.core.compute`, to the bit: inside kernels, and alone."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

_DRAWN: Final = 1024  # elements of a program


@triton.jit
def _mix(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def bits_at(k0, k1, start, index):
    """uint32 at the places `index`, int32, of the stream; its words as uint32."""
    return _mix(_mix((start + index.to(tl.uint32)) ^ k0) + k1)


@triton.jit
def uniform_at(k0, k1, start, index):
    """float32 in [0, 1), multiples of 2**-24."""
    return (bits_at(k0, k1, start, index) >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def stream(words):
    """The three words of a key as uint32."""
    return (
        tl.load(words).to(tl.uint32, bitcast=True),
        tl.load(words + 1).to(tl.uint32, bitcast=True),
        tl.load(words + 2).to(tl.uint32, bitcast=True),
    )


@triton.jit
def _fill(words, out, d, blocks, UNIFORM: tl.constexpr, N: tl.constexpr):
    row = (tl.program_id(0) // blocks).to(tl.int64)
    place = tl.program_id(0) % blocks * N + tl.arange(0, N)
    k0, k1, start = stream(words + 3 * row)
    if UNIFORM:
        drawn = uniform_at(k0, k1, start, place)
    else:
        drawn = bits_at(k0, k1, start, place).to(tl.int32, bitcast=True)
    tl.store(out + row * d + place, drawn, mask=place < d)


def fill(out: Tensor, words: Tensor) -> None:
    """int32 [..., d]: bits; float32 [..., d]: uniform. Contiguous; words: int32 [..., 3]."""
    d = out.shape[-1]
    blocks = triton.cdiv(d, _DRAWN)
    grid = (out.numel() // max(d, 1) * blocks,)
    if out.numel():
        _fill[grid](words.contiguous(), out, d, blocks, out.dtype == torch.float32, _DRAWN)
