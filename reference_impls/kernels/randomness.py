"""The streams of `reference_impls.core.compute` inside kernels, to the bit."""

from __future__ import annotations

import triton
import triton.language as tl


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
