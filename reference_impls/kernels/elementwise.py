"""Compressors of an integer an element: both of `compressors.dithering` under one scale a row, `compressors.lookup`."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from reference_impls.kernels import IEEE, rows, turns_of
from reference_impls.kernels.formulas import numerator, ordinary, quotient, rounded, scaled, share
from reference_impls.kernels.randomness import bits_at, stream, uniform_at

_KINDS: Final = {"dithering": 0, "exponential": 1}
_BLOCK: Final = 1024


@triton.jit
def _dithered(own, scale, reciprocal, count, k0, k1, start, place, FAST: tl.constexpr, SMALL: tl.constexpr):
    steps = count.to(tl.float32)
    if FAST and SMALL:
        a = tl.minimum(numerator(tl.abs(own), scale), scaled(scale))
        q = rounded(share(a, scale, reciprocal, steps), bits_at(k0, k1, start, place))
        code = tl.where(own < 0, -q, q)
    else:
        z = tl.div_rn(tl.abs(own), scale) * steps
        z = tl.minimum(tl.where(z != z, 0.0, z), steps)
        low = tl.floor(z)
        q = tl.where(uniform_at(k0, k1, start, place) < z - low, low + 1.0, low)
        code = tl.where(own < 0, -q, q).to(tl.int32)
    return code


@triton.jit
def _powers(own, scale, reciprocal, head_room, k0, k1, start, place, FAST: tl.constexpr):
    if FAST:
        a = scaled(tl.abs(own))
        least = (scale * 2.168404344971009e-19).to(
            tl.int32, bitcast=True
        )  # 2^-62: what is rounded to 2^-126 or more
        least -= ((least & 0x7FFFFF) == 0).to(tl.int32)
        here = a >= least.to(tl.float32, bitcast=True)
        y = quotient(tl.minimum(a, scaled(scale)), scale, reciprocal).to(tl.int32, bitcast=True)
        exponent = (y >> 23) - 64
    else:
        y = tl.div_rn(tl.abs(own), scale)
        y = tl.where(y != y, 0.0, tl.minimum(y, 1.0)).to(tl.int32, bitcast=True)
        exponent = y >> 23
        here = exponent > 0
    draw = bits_at(k0, k1, start, place).to(tl.int32, bitcast=True)
    up = ((draw & 0x7FFFFF) - (y & 0x7FFFFF)) >> 31
    code = tl.minimum(128 + head_room - exponent + up, 127) | ((own.to(tl.int32, bitcast=True) >> 24) & 128)
    return tl.where(here, code, 0)


@triton.jit
def _codes(
    own,
    scale,
    reciprocal,
    first,
    k0,
    k1,
    start,
    place,
    FAST: tl.constexpr,
    KIND: tl.constexpr,
    SMALL: tl.constexpr,
):
    if KIND == 0:
        code = _dithered(own, scale, reciprocal, first, k0, k1, start, place, FAST, SMALL)
    else:
        code = _powers(own, scale, reciprocal, first, k0, k1, start, place, FAST)
    return code


@triton.jit(do_not_specialize=["first"])
def _encode(x, scales, words, out, x_step, scales_step, words_step, out_step, d, blocks, first, KIND: tl.constexpr,
            SMALL: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr):  # fmt: skip
    row = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    x += row * x_step
    out += row * out_step
    scale = tl.load(scales + row * scales_step)
    reciprocal = tl.div_rn(1.0, scale)
    k0, k1, start = stream(words + row * words_step)
    for turn in range(TURNS):
        place = (block * TURNS + turn) * BLOCK + tl.arange(0, BLOCK)
        inside = place < d
        own = tl.load(x + place, mask=inside, other=0.0)
        if ordinary(scale):
            code = _codes(own, scale, reciprocal, first, k0, k1, start, place, True, KIND, SMALL)
        else:
            code = _codes(own, scale, reciprocal, first, k0, k1, start, place, False, KIND, SMALL)
        tl.store(out + place, code.to(out.dtype.element_ty), mask=inside)


def encode(kind: str, x: Tensor, scale: Tensor, words: Tensor, out: Tensor, first: int) -> None:
    """x float32 [..., d] under scale [..., 1] -> codes [..., d]. first: levels, or head-room."""
    lead = x.shape[:-1]
    for own, one, key, target in rows(x, scale.expand(*lead, 1), words.expand(*lead, 3), out):
        d, turns = own.shape[1], turns_of(own.numel())
        blocks = triton.cdiv(d, _BLOCK * turns)
        _encode[(blocks * len(own),)](
            own, one, key, target, own.stride(0), one.stride(0), key.stride(0), target.stride(0), d, blocks, first,
            _KINDS[kind], first < 128, _BLOCK, turns, **IEEE,
        )  # fmt: skip


@triton.jit
def _look_up(z, table, words, out, d, cells, BLOCK: tl.constexpr):
    limit = tl.load(table + 4 * cells)
    unit = tl.load(table + 4 * cells + 1)
    top = tl.load(table + 4 * cells + 2)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < d
    own = tl.load(z + place, mask=inside, other=0.0)
    own = tl.minimum(tl.maximum(tl.where(own != own, 0.0, own), -limit), limit)
    half = top * 0.5
    y = quotient(scaled(own), unit, tl.div_rn(1.0, unit)) * 5.421010862427522e-20 + half  # 2^-64
    y = tl.minimum(tl.maximum(y, 0.0), top)
    cell = tl.minimum(y.to(tl.int32), cells - 1)
    index = tl.load(table + 4 * cell)
    low = tl.load(table + 4 * cell + 1)
    gap = tl.load(table + 4 * cell + 2)
    part = quotient(scaled(y - low), gap, tl.load(table + 4 * cell + 3)) * 5.421010862427522e-20
    k0, k1, start = stream(words)
    up = uniform_at(k0, k1, start, place) < part
    tl.store(out + place, index.to(tl.int32) + up.to(tl.int32), mask=inside)


def look_up(z: Tensor, table: Tensor, words: Tensor, out: Tensor) -> None:
    """`compressors.lookup.Table.encode`: float32 [d] -> int32 [d].

    table: float32 [g + 1, 4]: of y in k .. k + 1, the index of the value below, that value, the gap above it, and 1 / gap; then
    limit, unit and g.
    """
    d = z.shape[-1]
    if d:
        _look_up[(triton.cdiv(d, _BLOCK),)](z, table, words, out, d, len(table) - 1, _BLOCK, **IEEE)
