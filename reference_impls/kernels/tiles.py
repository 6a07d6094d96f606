"""`compressors.packing` and the compressors of `compressors.blocks` in one pass: numbers become codes and words at once.

A program makes some tiles of one message. It builds each field's words from the codes of its rows, which are made anew for
every field; the last program writes the bits behind the tiles too. The formulas are those of the compressors, step by step.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from reference_impls.kernels import IEEE, Formula, aligned, rows, turns_of
from reference_impls.kernels.formulas import numerator, ordinary, rounded, scaled, share
from reference_impls.kernels.randomness import bits_at, stream, uniform_at
from reference_impls.kernels.signs import load_words, store_words, words_of

_KINDS: Final = {"integers": 0, "uniform": 1, "geometric": 2, "natural": 3, "nearest": 4, "stochastic": 5}
_MEASURES: Final = {"linf": 1, "ends": 2}


@triton.jit
def _numbers(found, at, there, KIND: tl.constexpr, SIZE: tl.constexpr):
    """The numbers of the blocks `at`; with SIZE 0 those of the one block."""
    NUMBERS: tl.constexpr = 2 if KIND >= 4 else 1
    if SIZE == 0:
        one = tl.load(found)
        two = tl.load(found + NUMBERS - 1)
    else:
        one = tl.load(found + at * NUMBERS, mask=there, other=1)
        two = tl.load(found + at * NUMBERS + NUMBERS - 1, mask=there, other=1)
    return one, two


@triton.jit
def _code(x, found, at, there, k0, k1, start, elem, inside, first, second, KIND: tl.constexpr, SIZE: tl.constexpr,
          SIGNS: tl.constexpr):  # fmt: skip
    """int32: the codes of the elements `elem` of a row, which lie in the blocks `at`. SIGNS: bit 8 of ``natural`` alone."""
    own = tl.load(x + elem, mask=inside, other=0)
    if KIND == 0:
        code = own.to(tl.int32)
    elif KIND == 3:
        bits = own.to(tl.int32, bitcast=True)
        code = ((bits >> 31) & 1) << 8
        if not SIGNS:
            exponent = (bits >> 23) & 255
            draw = bits_at(k0, k1, start, elem).to(tl.int32, bitcast=True)
            up = ((draw & 0x7FFFFF) - (bits & 0x7FFFFF)) >> 31
            code |= tl.minimum(exponent - up, tl.maximum(exponent, 254))
    else:
        one, two = _numbers(found, at, there, KIND, SIZE)
        if KIND == 1:
            z = tl.div_rn(tl.abs(own), one * second.to(tl.float32)) * first.to(tl.float32)
            z = tl.minimum(tl.where(z != z, 0.0, z), first.to(tl.float32))
            low = tl.floor(z)
            q = tl.where(uniform_at(k0, k1, start, elem) < z - low, low + 1.0, low)
            code = tl.where(own < 0, -q, q).to(tl.int32) + first
        elif KIND == 2:
            y = tl.div_rn(tl.abs(own), one)
            y = tl.where(y != y, 0.0, tl.minimum(y, 1.0))
            pattern = y.to(tl.int32, bitcast=True)
            below = (pattern >> 23) - 127 + first
            inner = (pattern & 0x7FFFFF).to(tl.float32) * 1.1920928955078125e-07
            lowest = ((first + 126) << 23).to(tl.float32, bitcast=True)
            fraction = tl.where(below >= 1, inner, y * lowest)
            code = tl.maximum(below, 0) + (uniform_at(k0, k1, start, elem) < fraction).to(tl.int32)
            code = tl.where(own < 0, -code, code) + first
        else:
            z = tl.div_rn(own - one, two)
            most = first.to(tl.float32)
            if KIND == 4:
                q = tl.floor(z + 0.5)
                q = tl.where(q != q, 0.0, q)
                code = tl.minimum(tl.maximum(q, 0.0), most).to(tl.int32)
            else:
                z = tl.minimum(tl.maximum(tl.where(z != z, 0.0, z), 0.0), most)
                low = tl.floor(z)
                code = tl.where(uniform_at(k0, k1, start, elem) < z - low, low + 1.0, low).to(tl.int32)
    return code


@triton.jit
def _field(x, found, k0, k1, start, wire, ints, base, tiles, first, second, F: tl.constexpr, KIND: tl.constexpr,
           BITS: tl.constexpr, SIZE: tl.constexpr, ALIGNED: tl.constexpr, TILES: tl.constexpr):  # fmt: skip
    """The words of the field of F bits of TILES tiles from `base` on."""
    LOWEST: tl.constexpr = BITS - BITS % (2 * F)
    MEMBERS: tl.constexpr = 32 // F
    group = tl.arange(0, TILES * F)[:, None]
    lane = tl.arange(0, 16)[None, :]
    there = group < (tiles - base) * F
    inside = there & (lane < 16)
    packed = tl.zeros([TILES * F, 16], tl.int32)
    for row in tl.static_range(MEMBERS):
        before = base * 512 + (group * MEMBERS + row) * 16
        at = before if SIZE % 16 == 0 else before + lane
        code = _code(
            x, found, at // (SIZE if SIZE else 1), there if SIZE % 16 == 0 else inside, k0, k1, start, before + lane, inside,
            first, second, KIND, SIZE, LOWEST == 8,
        )  # fmt: skip
        packed |= ((code >> LOWEST) & ((1 << F) - 1)) << (F * row)
    word = (base + group // F) * (16 * BITS) + LOWEST * 16 + group % F * 16 + lane
    store_words(wire, ints, word, packed, inside, ALIGNED)


@triton.jit
def _fast_field(x, found, k0, k1, start, wire, ints, base, tiles, first, second, one, two, F: tl.constexpr, KIND: tl.constexpr,
                BITS: tl.constexpr, ALIGNED: tl.constexpr, TILES: tl.constexpr):  # fmt: skip
    """`_field` of ``uniform`` and ``stochastic`` in few bits, with numbers that a word's elements share: they are `ordinary`."""
    MEMBERS: tl.constexpr = 32 // F
    group = tl.arange(0, TILES * F)[:, None]
    lane = tl.arange(0, 16)[None, :]
    inside = (group < (tiles - base) * F) & (lane < 16)
    most = first.to(tl.float32)
    divisor = one * second.to(tl.float32) if KIND == 1 else two
    reciprocal = tl.div_rn(1.0, divisor)
    packed = tl.zeros([TILES * F, 16], tl.int32)
    if KIND == 1:
        for row in tl.static_range(MEMBERS):
            packed += first << (F * row)
    for row in tl.static_range(MEMBERS):
        elem = base * 512 + (group * MEMBERS + row) * 16 + lane
        own = tl.load(x + elem, mask=inside, other=0.0)
        draw = bits_at(k0, k1, start, elem)
        if KIND == 1:
            a = tl.minimum(numerator(tl.abs(own), divisor), scaled(divisor))
            q = rounded(share(a, divisor, reciprocal, most), draw)
            packed += tl.where(own < 0, -q, q) << (F * row)
        else:
            z = tl.minimum(share(numerator(own - one, divisor), divisor, reciprocal, 1.0), most * 16777216.0)
            packed += rounded(z, draw) << (F * row)
    word = (base + group // F) * (16 * BITS) + group % F * 16 + lane
    store_words(wire, ints, word, packed, inside, ALIGNED)


@triton.jit
def _least(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _most(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _measure(x, found, base, d, first, MEASURE: tl.constexpr, SIZE: tl.constexpr, TILES: tl.constexpr):
    """What the blocks of TILES tiles send, each within a row of tiles."""
    COUNT: tl.constexpr = TILES * 512 // SIZE
    block = tl.arange(0, COUNT)
    elem = base * 512 + block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    inside = elem < d
    own = tl.load(x + elem, mask=inside, other=0.0)
    at = base * 512 // SIZE + block
    there = at * SIZE < d
    if MEASURE == 1:
        tl.store(found + at, tl.reduce(tl.where(inside, tl.abs(own), 0.0), 1, _most), mask=there)
    else:
        low = tl.reduce(tl.where(inside, own, float("inf")), 1, _least)
        high = tl.reduce(tl.where(inside, own, float("-inf")), 1, _most)
        tl.store(found + 2 * at, low, mask=there)
        tl.store(found + 2 * at + 1, tl.div_rn(high - low, first.to(tl.float32)), mask=there)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["first", "second"])
def _encode(x, found, words, wire, ints, x_step, found_step, words_step, wire_step, d, blocks, first, second,
            KIND: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr, MEASURE: tl.constexpr, FAST: tl.constexpr,
            ALIGNED: tl.constexpr, WHOLE: tl.constexpr, TILES: tl.constexpr, TURNS: tl.constexpr,
            TAIL: tl.constexpr):  # fmt: skip
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks).to(tl.int64)
    x += row * x_step
    found += row * found_step
    wire += row * wire_step
    ints += row * (wire_step // 4)
    k0, k1, start = stream(words + row * words_step)
    tiles = d // 512
    for turn in range(TURNS):
        base = (block * TURNS + turn) * TILES
        if MEASURE:
            _measure(x, found, base, d, first, MEASURE, SIZE, TILES)
        if FAST:
            group = tl.arange(0, TILES * BITS)[:, None]
            there = group < (tiles - base) * BITS
            own_block = (base * 512 + group * (512 // BITS)) // (SIZE if SIZE else 1)
            one, two = _numbers(found, own_block, there, KIND, SIZE)
            divisor = one * second.to(tl.float32) if KIND == 1 else two
            if SIZE == 0:
                fine = ordinary(divisor)
            else:
                fine = tl.min(tl.min((ordinary(divisor) | (there == 0)).to(tl.int32), 1), 0) == 1
            if fine:
                _fast_field(x, found, k0, k1, start, wire, ints, base, tiles, first, second, one, two, BITS, KIND, BITS,
                            ALIGNED, TILES)  # fmt: skip
            else:
                _field(x, found, k0, k1, start, wire, ints, base, tiles, first, second, BITS, KIND, BITS, SIZE, ALIGNED,
                       TILES)  # fmt: skip
        if not FAST:
            for halvings in tl.static_range(5):
                if BITS & (16 >> halvings):
                    _field(x, found, k0, k1, start, wire, ints, base, tiles, first, second, 16 >> halvings, KIND, BITS, SIZE,
                           ALIGNED, TILES)  # fmt: skip
    if not WHOLE:
        if block == blocks - 1:
            rest = (d - tiles * 512) * BITS
            byte = tl.arange(0, TAIL)
            last = tl.zeros([TAIL], tl.int32)
            for bit in tl.static_range(8):
                place = 8 * byte + bit
                elem = tiles * 512 + place // BITS
                here = place < rest
                at = elem // (SIZE if SIZE else 1)
                code = _code(x, found, at, here, k0, k1, start, elem, here, first, second, KIND, SIZE, False)
                last |= tl.where(here, (code >> (place % BITS)) & 1, 0) << bit
            tl.store(wire + tiles * (64 * BITS) + byte, last.to(tl.uint8), mask=8 * byte < rest)


@triton.jit
def _value(code, found, at, there, first, second, KIND: tl.constexpr, SIZE: tl.constexpr):
    if KIND == 0:
        value = code
    elif KIND == 3:
        exponent = code & 255
        magnitude = (exponent << 23).to(tl.float32, bitcast=True)
        value = tl.where(exponent == 0, 0.0, tl.where(code > 255, -magnitude, magnitude))
    else:
        one, two = _numbers(found, at, there, KIND, SIZE)
        if KIND == 1:
            value = (code - first).to(tl.float32) * tl.div_rn(
                one * second.to(tl.float32), first.to(tl.float32)
            )
        elif KIND == 2:
            q = code - first
            magnitude = ((tl.abs(q) - first + 127) << 23).to(tl.float32, bitcast=True)
            value = tl.where(q == 0, 0.0, tl.where(q < 0, -magnitude, magnitude)) * one
        else:
            value = code.to(tl.float32) * two + one
    return value


@triton.jit
def _part(wire, ints, tile, row, lane, inside, F: tl.constexpr, BITS: tl.constexpr, ALIGNED: tl.constexpr):
    LOWEST: tl.constexpr = BITS - BITS % (2 * F)
    MEMBERS: tl.constexpr = 32 // F
    word = tile * (16 * BITS) + LOWEST * 16 + row % 32 // MEMBERS * 16 + lane
    return (
        (load_words(wire, ints, word, inside, ALIGNED) >> (F * (row % MEMBERS))) & ((1 << F) - 1)
    ) << LOWEST


@triton.jit(do_not_specialize=["first", "second"])
def _decode(out, found, wire, ints, out_step, found_step, wire_step, d, blocks, first, second, KIND: tl.constexpr,
            BITS: tl.constexpr, SIZE: tl.constexpr, ADD: tl.constexpr, ALIGNED: tl.constexpr, WHOLE: tl.constexpr,
            TILES: tl.constexpr):  # fmt: skip
    block = tl.program_id(0) % blocks
    at = (tl.program_id(0) // blocks).to(tl.int64)
    out += at * out_step
    found += at * found_step
    wire += at * wire_step
    ints += at * (wire_step // 4)
    tiles = d // 512
    row = tl.arange(0, TILES * 32)[:, None]
    lane = tl.arange(0, 16)[None, :]
    tile = block * TILES + row // 32
    there = tile < tiles
    inside = there & (lane < 16)
    code = tl.zeros([TILES * 32, 16], tl.int32)
    for halvings in tl.static_range(5):
        if BITS & (16 >> halvings):
            code |= _part(wire, ints, tile, row, lane, inside, 16 >> halvings, BITS, ALIGNED)
    before = block * (TILES * 512) + row * 16
    elem = before + lane
    at = before if SIZE % 16 == 0 else elem
    known = there if SIZE % 16 == 0 else inside
    value = _value(code, found, at // (SIZE if SIZE else 1), known, first, second, KIND, SIZE)
    if ADD:
        value = tl.load(out + elem, mask=inside, other=0) + value
    tl.store(out + elem, value.to(out.dtype.element_ty), mask=inside)
    if not WHOLE:
        if block == blocks - 1:
            j = tl.arange(0, 512)
            here = j < d - tiles * 512
            last = tl.zeros([512], tl.int32)
            for bit in tl.static_range(BITS):
                place = j * BITS + bit
                own = tl.load(wire + tiles * (64 * BITS) + place // 8, mask=here, other=0).to(tl.int32)
                last |= ((own >> (place % 8)) & 1) << bit
            behind = tiles * 512 + j
            ending = _value(last, found, behind // (SIZE if SIZE else 1), here, first, second, KIND, SIZE)
            if ADD:
                ending = tl.load(out + behind, mask=here, other=0) + ending
            tl.store(out + behind, ending.to(out.dtype.element_ty), mask=here)


def _tiles(bits: int) -> int:
    """Tiles of a program's turn."""
    return 4 if bits > 9 else 8


def fuses(formula: Formula, size: int, bits: int) -> bool:
    """Whether blocks of `size` lie within the tiles of a program, so that `encode` can measure them itself."""
    return (
        formula.measure is not None
        and size >= 16
        and (_tiles(bits) * 512) % size == 0
        and size & (size - 1) == 0
    )


def _fast(formula: Formula, bits: int, size: int) -> bool:
    """Whether `_fast_field` can do it: one field, few levels, and one block's numbers for all of a word."""
    one_field = bits in (1, 2, 4, 8, 16)
    return (
        one_field
        and formula.kind in ("uniform", "stochastic")
        and formula.first < 128
        and size % (512 // bits) == 0
    )


def encode(x: Tensor, formula: Formula, bits: int, size: int, found: Tensor, words: Tensor, wire: Tensor, *,
           measure: bool = False) -> None:  # fmt: skip
    """x [..., d] -> the packed codes, uint8 [..., ceil(bits d / 8)].

    Args:
        size: elements of a block; 0: all.
        found: float32 [..., blocks * numbers]; with `measure` it is filled.
        words: int32 [..., 3], of the stream.
    """
    for own, numbers, key, target in rows(x, found, words.expand(*x.shape[:-1], 3), wire):
        d, tiles, turns = own.shape[1], _tiles(bits), turns_of(own.numel())
        blocks = triton.cdiv(d, 512 * tiles * turns)
        fast, measures = _fast(formula, bits, size), measure and formula.measure is not None
        _encode[(blocks * len(own),)](
            own, numbers, key, target, words_of(target), own.stride(0), numbers.stride(0), key.stride(0), target.stride(0), d,
            blocks, formula.first, formula.second, _KINDS[formula.kind], bits, size,
            _MEASURES[str(formula.measure)] if measures else 0, fast, aligned(target), d % 512 == 0, tiles, turns,
            triton.next_power_of_2(64 * bits), num_warps=8 if fast and not measures else 4, **IEEE,
        )  # fmt: skip


def decode(
    wire: Tensor, formula: Formula, bits: int, size: int, found: Tensor, out: Tensor, *, add: bool = False
) -> None:
    """The packed codes -> `out` [..., d]; the others as in `encode`."""
    for target, numbers, own in rows(out, found, wire):
        d, tiles = target.shape[1], 4
        blocks = triton.cdiv(d, 512 * tiles)
        _decode[(blocks * len(own),)](
            target, numbers, own, words_of(own), target.stride(0), numbers.stride(0), own.stride(0), d, blocks, formula.first,
            formula.second, _KINDS[formula.kind], bits, size, add, aligned(own), d % 512 == 0, tiles, **IEEE,
        )  # fmt: skip
