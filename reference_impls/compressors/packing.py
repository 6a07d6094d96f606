"""Small integers as bytes: of any width (`pack`), two counters a byte (`pack_nibbles`).

Every function works on the last axis and accepts any leading ones; a row packs as it would alone. Signed codes in -s .. s
travel as q + s.

Any width b from 1 to 31 bits, without a gap. Wire format version 2
--------------------------------------------------------------------
d integers in 0 .. 2^b - 1 take exactly ceil(b d / 8) bytes. Elements 0 .. 512 T - 1, T = d // 512, are in *tiles*
(`compressors.tiles`): tile t is the 16 b little-endian 32-bit words from byte 64 b t on. b is the sum of different powers of
two, its *fields*; the largest field holds an element's lowest bits, the next one the bits above it, and so on. In a tile
the words of the largest field come first, 16 f of them for a field of f bits: row r's lane l has its field in word
``16 (r // m) + l`` of these, m = 32 / f, at bit ``f (r % m)`` (bit 0 is the least significant). The remaining
t = d - 512 T < 512 elements follow in order as one string of b t bits: bit k of element 512 T + j is bit
``(b j + k) % 8`` of byte ``64 b T + (b j + k) // 8``. Unused bits of the last byte are 0. Integers beyond b bits lose their
upper bits: the caller keeps the range.

Nibbles, whose bytes may be added. Wire format version 1
---------------------------------------------------------
d counters in 0 .. 15 take exactly B = ceil(d / 2) bytes: counter i < B is the low nibble (bits 0-3) of byte i, counter
B + i is the high nibble (bits 4-7) of byte i. For odd d the last high nibble is 0. The bytes of several ranks may be summed as
uint8 as long as every sum of counters stays at or below 15, since then no nibble carries into its neighbour;
`aggregators.integer_sum` proves that before it sends.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from reference_impls.compressors.tiles import LANES, ROWS, TILE, numbers, rows, whole
from reference_impls.core import compute
from reference_impls.core.compute import Compiled, compiled
from reference_impls.core.errors import UnsupportedError
from reference_impls.kernels import INTEGERS

WIRE_VERSION: Final = 2
NIBBLES_VERSION: Final = 1
WIDEST: Final = 31


def width(largest: int) -> int:
    """Bits that hold 0 .. `largest`; at least 1."""
    return max(1, largest.bit_length())


def wire_bytes(numel: int, bits: int) -> int:
    """Bytes on the wire for `numel` integers of `bits` bits: ceil(bits numel / 8)."""
    return -(-bits * numel // 8)


@functools.cache
def fields(bits: int) -> tuple[tuple[int, int], ...]:
    """(bits, lowest bit) of each field of an integer of `bits` bits, in the order of the format."""
    found, lowest = [], 0
    for size in (16, 8, 4, 2, 1):
        if bits & size:
            found.append((size, lowest))
            lowest += size
    return tuple(found)


def join(values: Tensor, field: int, lowest: int) -> Tensor:
    """Integers [..., T, field, 32 / field, 16] -> words of one field, int32 [..., T, field, 16]."""
    if (
        not torch.compiler.is_compiling()
    ):  # a loop over rows is what compiles well, and slow where it is carried out
        shifts = numbers(ROWS // field, field, 1, values.device)
        return (((values.to(torch.int32) >> lowest) & ((1 << field) - 1)) << shifts).sum(
            -2, dtype=torch.int32
        )
    packed = None
    for row in range(ROWS // field):
        part = ((values[..., row, :].to(torch.int32) >> lowest) & ((1 << field) - 1)) << (field * row)
        packed = part if packed is None else packed | part
    assert packed is not None
    return packed


def split(words: Tensor, cut: Sequence[tuple[int, int]]) -> Tensor:
    """Words of tiles, int32 [..., T, bits, 16] -> integers, int32 [..., T, 32, 16]. cut: their `fields`."""
    found, start = None, 0
    for field, lowest in cut:
        members = ROWS // field
        own = words[..., start : start + field, :].unsqueeze(-2)
        part = (own >> numbers(members, field, 1, words.device)) & ((1 << field) - 1)
        part = part.reshape(*words.shape[:-2], ROWS, LANES) << lowest
        found, start = part if found is None else found | part, start + field
    assert found is not None
    return found


@functools.cache
def _packer(field: int, lowest: int) -> Compiled[[Tensor, Tensor], None]:
    def pack_tiles(values: Tensor, words: Tensor) -> None:
        words.copy_(join(values, field, lowest))

    return Compiled(pack_tiles, tiles=True)


@functools.cache
def _unpacker(bits: int, add: bool) -> Compiled[[Tensor, Tensor], None]:
    cut = fields(bits)

    def unpack_tiles(out: Tensor, words: Tensor) -> None:
        out.copy_(out + split(words, cut) if add else split(words, cut))

    return Compiled(unpack_tiles, tiles=True)


def tiles_of(wire: Tensor, bits: int, numel: int) -> tuple[Tensor, bool]:
    """The words of the whole tiles of a message of `numel`: int32 [..., T, bits, 16], and whether they are the wire's own.

    Where the bytes lie so that they cannot be read as words, it is a copy.
    """
    body = wire[..., : bits * whole(numel) // 8]
    own = body.stride(-1) == 1 and not any(step % 4 for step in (body.storage_offset(), *body.stride()[:-1]))
    if not own:
        body = compute.empty_like(body).copy_(body)
    words = body.view(torch.int32)
    return words.view(*words.shape[:-1], words.shape[-1] // (bits * LANES), bits, LANES), own


def pack_tail(values: Tensor, bits: int, wire: Tensor) -> None:
    """Integers [..., t] behind the tiles -> the last bytes of `wire`."""
    count = values.shape[-1]
    if not count:
        return
    places = torch.arange(bits, dtype=torch.int32, device=values.device)
    string = ((values.to(torch.int32).unsqueeze(-1) >> places) & 1).flatten(-2)
    string = functional.pad(string, (0, -bits * count % 8))
    eight = torch.arange(8, dtype=torch.int32, device=values.device)
    packed = (string.view(*string.shape[:-1], -1, 8) << eight).sum(-1, dtype=torch.int32)
    wire[..., wire.shape[-1] - packed.shape[-1] :].copy_(packed)


def unpack_tail(wire: Tensor, bits: int, count: int) -> Tensor:
    """The last `count` integers of a message, which lie behind its tiles: int32 [..., count]."""
    eight = torch.arange(8, dtype=torch.int32, device=wire.device)
    own = wire[..., wire.shape[-1] - wire_bytes(count, bits) :].to(torch.int32)
    string = ((own.unsqueeze(-1) >> eight) & 1).flatten(-2)[..., : bits * count]
    places = torch.arange(bits, dtype=torch.int32, device=wire.device)
    return (string.view(*string.shape[:-1], count, bits) << places).sum(-1, dtype=torch.int32)


def pack_tiles(values: Tensor, bits: int, words: Tensor) -> None:
    """Integers [..., T, 32, 16] -> words int32 [..., T, bits, 16].

    The words of one of several fields lie apart from tile to tile, and compilers write them faster in one piece first.
    """
    start = 0
    for field, lowest in fields(bits):
        folded = values.view(*values.shape[:-2], field, ROWS // field, LANES)
        own = words[..., start : start + field, :]
        part = own if field == bits else compute.empty_like(own, torch.int32)
        _packer(field, lowest)(folded, part)
        if part is not own:
            own.copy_(part)
        start += field


def pack(values: Tensor, bits: int, wire: Tensor) -> None:
    """Integers [..., d] of any integer dtype -> wire, uint8 [..., ceil(bits d / 8)]."""
    numel = values.shape[-1]
    _check(wire, numel, bits)
    if compute.takes("packing.pack", values, wire):
        from reference_impls.kernels import tiles

        none = torch.empty(3, dtype=torch.int32, device=wire.device)
        tiles.encode(values, INTEGERS, bits, 0, values, none, wire)
        return
    inside = whole(numel)
    if inside:
        for own, target in rows(values[..., :inside], wire):
            words, direct = tiles_of(target, bits, numel)
            pack_tiles(_tiled(own), bits, words)
            if not direct:
                target[..., : bits * inside // 8].copy_(words.flatten(-3).view(torch.uint8))
    pack_tail(values[..., inside:], bits, wire)


def unpack(wire: Tensor, bits: int, out: Tensor) -> None:
    """Wire -> `out` [..., d], in an integer dtype that holds `bits` bits."""
    numel = out.shape[-1]
    _check(wire, numel, bits)
    if compute.takes("packing.unpack", wire, out):
        from reference_impls.kernels import tiles

        tiles.decode(wire, INTEGERS, bits, 0, wire, out)
        return
    inside = whole(numel)
    if inside:
        for own, target in rows(wire, out[..., :inside]):
            _unpacker(bits, False)(_tiled(target), tiles_of(own, bits, numel)[0])
    if inside < numel:
        out[..., inside:].copy_(unpack_tail(wire, bits, numel - inside))


def add_up(wire: Tensor, bits: int, total: Tensor) -> None:
    """Sum of n messages: wire uint8 [..., n, ceil(bits d / 8)] -> `total`, int32 [..., d]. The sum must fit int32."""
    numel = total.shape[-1]
    _check(wire, numel, bits)
    if compute.takes("packing.add_up", wire, total):
        from reference_impls.kernels import tiles

        for rank in range(wire.shape[-2]):
            own = wire[..., rank, :]
            tiles.decode(own, INTEGERS, bits, 0, own, total, add=rank > 0)
        return
    inside = whole(numel)
    for rank in range(wire.shape[-2]) if inside else ():
        for own, target in rows(wire[..., rank, :], total[..., :inside]):
            _unpacker(bits, rank > 0)(_tiled(target), tiles_of(own, bits, numel)[0])
    if inside < numel:
        total[..., inside:].copy_(unpack_tail(wire, bits, numel - inside).sum(-2, dtype=torch.int32))


def _tiled(x: Tensor) -> Tensor:
    """[..., 512 T] -> [..., T, 32, 16], a view."""
    return x.view(*x.shape[:-1], x.shape[-1] // TILE, ROWS, LANES)


def _check(wire: Tensor, numel: int, bits: int) -> None:
    if not 1 <= bits <= WIDEST:
        raise UnsupportedError(f"integers are packed in 1 to {WIDEST} bits, not in {bits}")
    holds(wire, f"{numel} integers of {bits} bits", wire_bytes(numel, bits))


def holds(wire: Tensor, what: str, length: int) -> None:
    """Raise `ValueError` unless `wire` has so many bytes for `what`."""
    if wire.dtype != torch.uint8 or wire.shape[-1] != length:
        raise ValueError(
            f"{what} need a uint8 wire of {length} bytes on its last axis, not {wire.dtype} {tuple(wire.shape)}"
        )


def nibble_bytes(numel: int) -> int:
    """Bytes on the wire for `numel` counters: ceil(numel / 2)."""
    return -(-numel // 2)


@compiled
def _join_nibbles(low: Tensor, high: Tensor, lowest: int, wire: Tensor) -> None:
    wire.copy_((low.to(torch.int32) - lowest) | ((high.to(torch.int32) - lowest) << 4))


@compiled
def _split_nibbles(wire: Tensor, lowest: int, low: Tensor, high: Tensor) -> None:
    both = wire.to(torch.int32)
    low.copy_((both & 15) + lowest)
    high.copy_((both >> 4) + lowest)


def pack_nibbles(counters: Tensor, wire: Tensor, lowest: int = 0) -> None:
    """Integers [..., d] of any integer dtype -> wire, uint8 [..., ceil(d / 2)].

    lowest: what counter 0 stands for. The integers are in lowest .. lowest + 15; the caller keeps the range.
    """
    half, first = counters.shape[-1] // 2, wire.shape[-1]
    holds(wire, f"{counters.shape[-1]} counters", nibble_bytes(counters.shape[-1]))
    if half:
        _join_nibbles(counters[..., :half], counters[..., first:], lowest, wire[..., :half])
    if half < first:
        wire[..., half].copy_(counters[..., half].to(torch.int32) - lowest)


def unpack_nibbles(wire: Tensor, out: Tensor, lowest: int = 0) -> None:
    """Wire -> `out` [..., d], counters plus `lowest` in the integer dtype of `out`."""
    half, first = out.shape[-1] // 2, wire.shape[-1]
    holds(wire, f"{out.shape[-1]} counters", nibble_bytes(out.shape[-1]))
    if half:
        _split_nibbles(wire[..., :half], lowest, out[..., :half], out[..., first:])
    if half < first:
        out[..., half].copy_((wire[..., half] & 15).to(torch.int32) + lowest)
