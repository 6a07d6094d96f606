"""Unsigned integers of any width b from 1 to 31 bits, packed without a gap. Wire format version 1.

The format, to the bit
----------------------
d integers in 0 .. 2^b - 1 take exactly ceil(b d / 8) bytes. Let W = d // 32. Elements 0 .. 32 W - 1 are in *planes*: bit k
of element i is bit ``i // W`` of the 32-bit word ``k W + i % W`` (bit 0 is the least significant), and the b W words come
first, little-endian. The remaining t = d - 32 W < 32 elements follow in order as one string of b t bits: bit k of
element 32 W + j is bit ``(b j + k) % 8`` of byte ``4 b W + (b j + k) // 8``. Unused bits of the last byte are 0. With
b = 1 this is the format of `codecs.signs`.

Signed codes in -s .. s travel as q + s, in `width(2 s)` bits. Integers beyond b bits lose their upper bits: the caller
keeps the range. Every function works on the last axis and accepts any leading ones; a row packs as it would alone.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from reference_impls.compilation import compiled

__all__ = ["WIDEST", "WIRE_VERSION", "add_up", "pack", "unpack", "width", "wire_bytes"]

WIRE_VERSION: Final = 1
WIDEST: Final = 31
PLANES: Final = 32


def width(largest: int) -> int:
    """Bits that hold 0 .. `largest`; at least 1."""
    return max(1, largest.bit_length())


def wire_bytes(numel: int, bits: int) -> int:
    """Bytes on the wire for `numel` integers of `bits` bits: ceil(bits numel / 8)."""
    return -(-bits * numel // 8)


@compiled
def _pack_planes(values: Tensor, planes: Tensor, words: Tensor) -> None:
    """Integers [..., 32, W] and the numbers of the planes, int32 [b, 1] -> words, int32 [..., b, W]."""
    spread = values.unsqueeze(-3)
    packed = (spread[..., 0, :].to(torch.int32) >> planes) & 1
    for row in range(1, PLANES):
        packed = packed | (((spread[..., row, :].to(torch.int32) >> planes) & 1) << row)
    words.copy_(packed)


def _planes(words: Tensor) -> Tensor:
    """int32 [..., b, W] -> int32 [..., b, 32, W]: bit k of every element, at its place."""
    rows = torch.arange(PLANES, dtype=torch.int32, device=words.device).unsqueeze(-1)
    places = torch.arange(words.shape[-2], dtype=torch.int32, device=words.device).view(-1, 1, 1)
    return ((words.unsqueeze(-2) >> rows) & 1) << places


@compiled
def _unpack_planes(out: Tensor, words: Tensor) -> None:
    out.copy_(_planes(words).sum(-3, dtype=torch.int32))


@compiled
def _add_planes(out: Tensor, words: Tensor) -> None:
    """int32 [..., n, b, W] -> [..., 32, W]."""
    out.copy_(_planes(words).sum((-4, -3), dtype=torch.int32))


def _folded(x: Tensor, rows: int, columns: int) -> Tensor:
    """[..., rows columns] -> [..., rows, columns], a view."""
    return x.view(*x.shape[:-1], rows, columns)


def _check(wire: Tensor, numel: int, bits: int) -> None:
    if not 1 <= bits <= WIDEST:
        raise ValueError(f"integers are packed in 1 to {WIDEST} bits, not in {bits}")
    if wire.dtype != torch.uint8 or wire.shape[-1] != wire_bytes(numel, bits):
        raise ValueError(
            f"{numel} integers of {bits} bits need a uint8 wire of {wire_bytes(numel, bits)} bytes on its last axis, "
            f"not {wire.dtype} {tuple(wire.shape)}"
        )


def _words(wire: Tensor, bits: int, columns: int) -> Tensor:
    """The planes of each row as int32 [..., b, W]; a copy only where the bytes lie badly."""
    body = wire[..., : 4 * bits * columns]
    if body.stride(-1) != 1 or any(step % 4 for step in (body.storage_offset(), *body.stride()[:-1])):
        body = torch.empty(body.shape, dtype=torch.uint8, device=body.device).copy_(body)
    return _folded(body.view(torch.int32), bits, columns)


def _tail(wire: Tensor, numel: int, bits: int) -> Tensor:
    """The elements after the planes, int32 [..., t]."""
    columns, count = numel // PLANES, numel % PLANES
    eight = torch.arange(8, dtype=torch.int32, device=wire.device)
    string = ((wire[..., 4 * bits * columns :].to(torch.int32).unsqueeze(-1) >> eight) & 1).flatten(-2)
    places = torch.arange(bits, dtype=torch.int32, device=wire.device)
    return (_folded(string[..., : bits * count], count, bits) << places).sum(-1, dtype=torch.int32)


def pack(values: Tensor, bits: int, wire: Tensor) -> None:
    """Integers [..., d] of any integer dtype -> wire, uint8 [..., ceil(bits d / 8)]."""
    numel = values.shape[-1]
    _check(wire, numel, bits)
    columns, count = numel // PLANES, numel % PLANES
    places = torch.arange(bits, dtype=torch.int32, device=values.device)
    body = 4 * bits * columns
    if columns:
        rows = _folded(values[..., : PLANES * columns], PLANES, columns)
        words = torch.empty((*values.shape[:-1], bits, columns), dtype=torch.int32, device=values.device)
        _pack_planes(rows, places.unsqueeze(-1), words)
        wire[..., :body].copy_(words.flatten(-2).view(torch.uint8))
    if count:
        last = values[..., PLANES * columns :].to(torch.int32)
        string = functional.pad(((last.unsqueeze(-1) >> places) & 1).flatten(-2), (0, -bits * count % 8))
        eight = torch.arange(8, dtype=torch.int32, device=values.device)
        wire[..., body:].copy_((_folded(string, -1, 8) << eight).sum(-1))


def unpack(wire: Tensor, bits: int, out: Tensor) -> None:
    """Wire -> `out` [..., d], in an integer dtype that holds `bits` bits."""
    numel = out.shape[-1]
    _check(wire, numel, bits)
    columns = numel // PLANES
    if columns:
        target = _folded(out[..., : PLANES * columns], PLANES, columns)
        _unpack_planes(target, _words(wire, bits, columns))
    if numel % PLANES:
        out[..., PLANES * columns :].copy_(_tail(wire, numel, bits))


def add_up(wire: Tensor, bits: int, total: Tensor) -> None:
    """Sum of n messages: wire uint8 [..., n, ceil(bits d / 8)] -> `total`, int32 [..., d]. The sum must fit int32."""
    numel = total.shape[-1]
    _check(wire, numel, bits)
    columns = numel // PLANES
    if columns:
        target = _folded(total[..., : PLANES * columns], PLANES, columns)
        _add_planes(target, _words(wire, bits, columns))
    if numel % PLANES:
        total[..., PLANES * columns :].copy_(_tail(wire, numel, bits).sum(-2, dtype=torch.int32))
