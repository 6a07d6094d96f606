"""`compressors.signs` in one pass: all 32 planes of a word at once, the bits behind the planes in the last program."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from reference_impls.kernels import IEEE, aligned, rows

ABOVE: Final = 0
NOT_BELOW: Final = 1
SET: Final = 2
"""What counts as 1: x > 0, x >= 0, x != 0."""

_BLOCK: Final = 512
_FEW: Final = (
    1024  # words that are added to, and of how many planes at a time: more would not stay in registers
)
_PLANES: Final = 8


@triton.jit
def _flag(x, OF: tl.constexpr):
    if OF == 0:
        found = x > 0
    elif OF == 1:
        found = x >= 0
    else:
        found = x != 0
    return found.to(tl.int32)


@triton.jit
def load_words(wire, words, place, inside, ALIGNED: tl.constexpr):
    """int32 words at `place` of a row of bytes, `wire`, which are the words `words` where ALIGNED."""
    if ALIGNED:
        found = tl.load(words + place, mask=inside, other=0)
    else:
        found = tl.load(wire + 4 * place, mask=inside, other=0).to(tl.int32)
        for byte in tl.static_range(1, 4):
            found |= tl.load(wire + 4 * place + byte, mask=inside, other=0).to(tl.int32) << (8 * byte)
    return found


@triton.jit
def store_words(wire, words, place, packed, inside, ALIGNED: tl.constexpr):
    """As `load_words`, the other way."""
    if ALIGNED:
        tl.store(words + place, packed, mask=inside)
    else:
        for byte in tl.static_range(4):
            tl.store(wire + 4 * place + byte, ((packed >> (8 * byte)) & 255).to(tl.uint8), mask=inside)


@triton.jit
def _last(wire, full, rest):
    """The bits behind `full` words: int32 [32] of 0 and 1, of which `rest` count."""
    place = tl.arange(0, 32)
    return (tl.load(wire + 4 * full + place // 8, mask=place < rest, other=0).to(tl.int32) >> (place % 8)) & 1


@triton.jit
def _pack(x, wire, words, x_step, wire_step, d, full, blocks, OF: tl.constexpr, ALIGNED: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks).to(tl.int64)
    x += row * x_step
    wire += row * wire_step
    words += row * (wire_step // 4)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < full
    packed = tl.zeros([BLOCK], tl.int32)
    for plane in tl.static_range(32):
        packed |= _flag(tl.load(x + plane * full + place, mask=inside, other=0), OF) << plane
    store_words(wire, words, place, packed, inside, ALIGNED)
    rest = d - 32 * full
    if (block == blocks - 1) & (rest > 0):
        byte = tl.arange(0, 4)
        last = tl.zeros([4], tl.int32)
        for bit in tl.static_range(8):
            k = 8 * byte + bit
            own = _flag(tl.load(x + 32 * full + k, mask=k < rest, other=0), OF)
            last |= tl.where(k < rest, own, 0) << bit
        tl.store(wire + 4 * full + byte, last.to(tl.uint8), mask=8 * byte < rest)


@triton.jit
def _unpack(out, wire, words, out_step, wire_step, d, full, blocks, SIGNS: tl.constexpr, ALIGNED: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks).to(tl.int64)
    out += row * out_step
    wire += row * wire_step
    words += row * (wire_step // 4)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < full
    packed = load_words(wire, words, place, inside, ALIGNED)
    for plane in tl.static_range(32):
        own = (packed >> plane) & 1
        if SIGNS:
            own = own * 2 - 1
        tl.store(out + plane * full + place, own.to(out.dtype.element_ty), mask=inside)
    rest = d - 32 * full
    if (block == blocks - 1) & (rest > 0):
        k = tl.arange(0, 32)
        last = _last(wire, full, rest)
        if SIGNS:
            last = last * 2 - 1
        tl.store(out + 32 * full + k, last.to(out.dtype.element_ty), mask=k < rest)


@triton.jit
def _vote(bit, scale, SCALED: tl.constexpr):
    if SCALED:
        own = tl.load(scale)
        bit = tl.where(bit == 1, own, -own)
    return bit


@triton.jit
def _accumulate(out, wire, words, scales, out_step, wire_step, wires_step, scale_step, scales_step, d, n, full, blocks,
                SCALED: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr, PLANES: tl.constexpr):  # fmt: skip
    """SCALED: signs times scales are added to `out`; else it is filled with counts of ones."""
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks).to(tl.int64)
    out += row * out_step
    wire += row * wires_step
    words += row * (wires_step // 4)
    scales += row * scales_step
    place = (block * BLOCK + tl.arange(0, BLOCK))[None, :]
    for first in tl.static_range(0, 32, PLANES):
        plane = first + tl.arange(0, PLANES)[:, None]
        inside = (place < full) & (plane < 32)
        at = out + plane * full + place
        total = tl.load(at, mask=inside, other=0) if SCALED else tl.zeros([PLANES, BLOCK], tl.int32)
        message, own_words = wire, words
        for r in range(n):
            bit = (load_words(message, own_words, place + 0 * plane, inside, ALIGNED) >> plane) & 1
            total += _vote(bit, scales + r * scale_step, SCALED)
            message += wire_step
            own_words += wire_step // 4
        tl.store(at, total, mask=inside)
    rest = d - 32 * full
    if (block == blocks - 1) & (rest > 0):
        k = tl.arange(0, 32)
        ending = out + 32 * full + k
        last = tl.load(ending, mask=k < rest, other=0) if SCALED else tl.zeros([32], tl.int32)
        behind = wire
        for r in range(n):
            last += _vote(_last(behind, full, rest), scales + r * scale_step, SCALED)
            behind += wire_step
        tl.store(ending, last, mask=k < rest)


def words_of(wire: Tensor) -> object:
    """The bytes as words, for a kernel; meaningless where they are not `aligned`."""
    return triton.reinterpret(wire, tl.int32)


def _blocks(d: int, block: int) -> int:
    return max(1, -(-(d // 32) // block))


def pack(x: Tensor, wire: Tensor, of: int) -> None:
    """[..., d] -> wire, uint8 [..., ceil(d / 8)]; `of`: what counts as 1."""
    for own, target in rows(x, wire):
        d, blocks = own.shape[1], _blocks(own.shape[1], _BLOCK)
        _pack[(blocks * len(own),)](
            own,
            target,
            words_of(target),
            own.stride(0),
            target.stride(0),
            d,
            d // 32,
            blocks,
            of,
            aligned(target),
            _BLOCK,
        )


def unpack(wire: Tensor, out: Tensor, signs: bool) -> None:
    """Wire -> `out` [..., d], 0 and 1, or -1 and 1."""
    for target, own in rows(out, wire):
        d, blocks = target.shape[1], _blocks(target.shape[1], _BLOCK)
        _unpack[(blocks * len(own),)](
            target,
            own,
            words_of(own),
            target.stride(0),
            own.stride(0),
            d,
            d // 32,
            blocks,
            signs,
            aligned(own),
            _BLOCK,
        )


def decode_accumulate(wire: Tensor, scales: Tensor, out: Tensor) -> None:
    """``out += sum_r scales[r] * sign[r]``: wire [..., n, bytes], scales [..., n], out [..., d], both float32."""
    for target, factors, messages in rows(out, scales, wire):
        _add_up(target, messages, factors, True)


def count(wire: Tensor, votes: Tensor) -> None:
    """wire [..., n, bytes] -> votes, int32 [..., d]."""
    for target, messages in rows(votes, wire):
        _add_up(target, messages, target, False)


def _add_up(out: Tensor, messages: Tensor, scales: Tensor, scaled: bool) -> None:
    d, (lead, n, _), blocks = out.shape[1], messages.shape, _blocks(out.shape[1], _FEW)
    _accumulate[(blocks * lead,)](
        out, messages, words_of(messages), scales, out.stride(0), messages.stride(1), messages.stride(0), scales.stride(1),
        scales.stride(0), d, n, d // 32, blocks, scaled, aligned(messages), _FEW, _PLANES, num_warps=8, **IEEE,
    )  # fmt: skip
