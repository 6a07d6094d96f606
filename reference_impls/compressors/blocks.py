"""Messages of small integers with a few float32 numbers a block, and the frame of compressors that send them. Wire version 2.

Message of d elements in blocks of `size` consecutive ones (the last one shorter; size 0: all d are one block): the codes
as `compressors.packing` packs them, in `bits` bits, ceil(bits d / 8) bytes; then, block by block, `numbers`
little-endian float32. Norms run over a block's own elements: ``linf`` = largest magnitude; ``l2`` = square root of the
sum of squares by the fixed tree of `compressors.sums` in float64, so that no square over- or underflows, rounded to float32.

A `BlockCompressor` says what a block's numbers are, how an element becomes a code and how a code becomes a value, all by
element-wise formulas. Large vectors are read once, made into codes and packed in one compiled pass where the width of a code
divides a word, else in two.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Self

import torch
from torch import Tensor

from reference_impls.compressors import packing
from reference_impls.compressors.packing import fields, split, tiles_of
from reference_impls.compressors.sums import fixed_sum, largest
from reference_impls.compressors.tiles import LANES, ROWS, TILE, Draw, lanes, numbers, rows, whole
from reference_impls.core import compute
from reference_impls.core.compute import Compiled, Key, bits_at
from reference_impls.core.errors import UnsupportedError
from reference_impls.kernels import Formula

WIRE_VERSION: Final = 2
_FLOAT: Final = 4  # bytes
Norm = Literal["linf", "l2"]
NORMS: Final[tuple[Norm, ...]] = ("linf", "l2")


@dataclass(frozen=True)
class BlockMessage:
    """The layout. bits: of a code. size: elements of a block, 0 = all. numbers: float32 a block."""

    bits: int
    size: int
    numbers: int = 1

    def __post_init__(self) -> None:
        if self.size < 0:
            raise UnsupportedError(f"a block has 1 or more elements, or 0 for one block; got {self.size}")
        if not 1 <= self.bits <= 16:
            raise UnsupportedError(f"codes have 1 to 16 bits, not {self.bits}")

    def block(self, numel: int) -> int:
        """Elements of a block of a message of `numel`."""
        return self.size or max(numel, 1)

    def blocks(self, numel: int) -> int:
        return -(-numel // self.block(numel))

    def code_bytes(self, numel: int) -> int:
        return packing.wire_bytes(numel, self.bits)

    def wire_bytes(self, numel: int) -> int:
        return self.code_bytes(numel) + _FLOAT * self.numbers * self.blocks(numel)

    def fits_tiles(self) -> bool:
        """Whether every row of a tile has the numbers of one block."""
        return self.size % TILE == 0 or (TILE % self.size == 0 and self.size % LANES == 0)

    def write(self, found: Tensor, wire: Tensor) -> None:
        """float32 [..., blocks, numbers] -> the end of the message."""
        if self.numbers:
            own = compute.empty(found.shape, torch.float32, found.device).copy_(found).flatten(-2)
            wire[..., wire.shape[-1] - _FLOAT * own.shape[-1] :].copy_(own.view(torch.uint8))

    def read(self, wire: Tensor, numel: int) -> Tensor:
        """The end of the message -> float32 [..., blocks, numbers]; a copy, since floats want to be aligned."""
        shape = (*wire.shape[:-1], self.blocks(numel), self.numbers)
        found = compute.empty(shape, torch.float32, wire.device)
        found.view(*wire.shape[:-1], -1).view(torch.uint8).copy_(wire[..., self.code_bytes(numel) :])
        return found

    def by_row(self, found: Tensor, tiles: int) -> Tensor:
        """[..., blocks, numbers] -> float32 [..., tiles, numbers, 32]: those of each row of the first `tiles` tiles."""
        across = max(self.size // TILE, 1) if self.size else max(tiles, 1)  # tiles that share a block
        down = TILE // self.size if 0 < self.size < TILE else 1  # blocks of a tile
        count, lead = -(-tiles // across), found.shape[:-2]
        shape = (*lead, count, across, self.numbers, down, ROWS // down)
        spread = compute.empty(shape, torch.float32, found.device)
        source = found[..., : count * down, :].unflatten(-2, (count, down)).movedim(-1, -2)  # type: ignore[no-untyped-call]
        spread.copy_(source.unsqueeze(-1).unsqueeze(-4).expand(shape))
        return spread.view(*lead, count * across, self.numbers, ROWS)[..., :tiles, :, :]

    def by_element(self, found: Tensor, first: int, numel: int) -> Tensor:
        """[..., blocks, numbers] -> float32 [numbers, ..., d - first]: those of each element from `first` on."""
        place = torch.arange(first, numel, device=found.device) // self.block(numel)
        return found.index_select(-2, place).movedim(-1, 0)


def per_block(x: Tensor, size: int) -> list[Tensor]:
    """[..., d], d >= 1 -> the full blocks [..., blocks, size] and the short one [..., 1, rest], where there are such."""
    full = x.shape[-1] // size * size
    parts = [x[..., :full].view(*x.shape[:-1], -1, size)] if full else []
    return [*parts, x[..., full:].unsqueeze(-2)] if full < x.shape[-1] else parts


def norms(x: Tensor, size: int, norm: Norm) -> Tensor:
    """float32 [..., d], d >= 1 -> the norm of each block, float32 [..., blocks]; not finite where an element is not."""
    out = compute.empty((*x.shape[:-1], -(-x.shape[-1] // size)), torch.float32, x.device)
    start = 0
    for part in per_block(x, size):
        own = out[..., start : start + part.shape[-2]]
        own.copy_(fixed_sum(part, "wide square").sqrt_() if norm == "l2" else largest(part))
        start += part.shape[-2]
    return out


_PASS: Final = 1 << 14  # tiles whose codes are kept at a time where two passes are needed: 32 MiB of them


@dataclass(frozen=True)
class BlockCompressor(ABC):
    """Compressor (`compressors.compressor.Compressor`) of codes of `message().bits` bits and numbers a block."""

    @abstractmethod
    def message(self) -> BlockMessage:
        """The layout on the wire."""

    @abstractmethod
    def measure(self, x: Tensor, size: int) -> Tensor:
        """float32 [..., d], d >= 1, in blocks of `size` -> what each block sends, float32 [..., blocks, numbers]."""

    @abstractmethod
    def code(self, x: Tensor, found: Sequence[Tensor], draw: Draw) -> Tensor:
        """float32 (but see `by_pattern`) -> integers, element by element.

        found: the block's numbers, broadcast. draw: random int32.
        """

    @abstractmethod
    def value(self, codes: Tensor, found: Sequence[Tensor]) -> Tensor:
        """int32 -> float32, element by element."""

    def without_blocks(self) -> Self:
        """The compressor of the same `code` and `value` that stands for all that differ in their blocks alone.

        What is compiled is compiled for it, and so once for all of them.
        """
        return self

    apart: ClassVar[bool] = False
    """Whether `field` costs less for each field than `code` and a second pass over the codes."""

    by_pattern: ClassVar[bool] = False
    """Whether `code` and `field` get the elements' bits, int32, instead of the elements."""

    def field(self, x: Tensor, found: Sequence[Tensor], draw: Draw, size: int, lowest: int) -> Tensor:
        """`size` bits of the code from bit `lowest` on."""
        return (self.code(x, found, draw) >> lowest) & ((1 << size) - 1)

    def formula(self) -> Formula | None:
        """`code` and `value` as a kernel for GPUs has them; None: there is none, they are compiled there too."""
        return None

    def wire_bytes(self, numel: int) -> int:
        return self.message().wire_bytes(numel)

    def encode(self, x: Tensor, key: Key, wire: Tensor) -> None:
        if x.shape[-1] and not self._encode_on_gpu(x, None, key, wire):
            self.encode_by(x, self.measure(x, self.message().block(x.shape[-1])), key, wire)

    def encode_by(self, x: Tensor, found: Tensor, key: Key, wire: Tensor) -> None:
        """`encode` with what `measure` found."""
        if self._encode_on_gpu(x, found, key, wire):
            return
        message, numel = self.message(), x.shape[-1]
        inside = whole(numel) if message.fits_tiles() else 0
        message.write(found, wire)
        x = x.view(torch.int32) if self.by_pattern else x
        body = wire[..., : message.code_bytes(numel)]
        words = key.on(x.device)
        streams = words.expand(*x.shape[:-1], 3)
        if inside:
            for own, part, stream, target in rows(x[..., :inside], found, streams, body):
                _encode_tiles(self, own, message.by_row(part, inside // TILE), stream, target, numel)
        if inside < numel:
            index = torch.arange(inside, numel, dtype=torch.int32, device=x.device)
            spread = message.by_element(found, inside, numel)
            codes = self.code(x[..., inside:], spread.unbind(0), lambda: bits_at(streams, index))
            if inside:
                packing.pack_tail(codes, message.bits, body)
            else:
                packing.pack(codes, message.bits, body)

    def decode(self, wire: Tensor, out: Tensor, *, add: bool = False) -> None:
        """As in the protocol; add: `out` += what is decoded."""
        message, numel = self.message(), out.shape[-1]
        if numel == 0:
            return
        formula = self.formula()
        if formula is not None and compute.takes("blocks.decode", out, wire):
            from reference_impls.kernels import tiles

            numbers = message.read(wire, numel).flatten(-2) if message.numbers else wire
            body = wire[..., : message.code_bytes(numel)]
            tiles.decode(body, formula, message.bits, message.size, numbers, out, add=add)
            return
        inside = whole(numel) if message.fits_tiles() else 0
        found, body = message.read(wire, numel), wire[..., : message.code_bytes(numel)]
        if inside:
            for own, part, target in rows(body, found, out[..., :inside]):
                spread = message.by_row(part, inside // TILE)
                tiled = target.view(*target.shape[:-1], inside // TILE, ROWS, LANES)
                _decoder(self.without_blocks(), add)(tiled, tiles_of(own, message.bits, numel)[0], spread)
        if inside < numel:
            if inside:
                codes = packing.unpack_tail(body, message.bits, numel - inside)
            else:
                codes = compute.empty(out.shape, torch.int32, out.device)
                packing.unpack(body, message.bits, codes)
            value = self.value(codes, message.by_element(found, inside, numel).unbind(0))
            last = out[..., inside:]
            last.add_(value) if add else last.copy_(value)

    def _encode_on_gpu(self, x: Tensor, found: Tensor | None, key: Key, wire: Tensor) -> bool:
        """`encode`, or `encode_by` with what was found, if a kernel can do it."""
        message, numel, formula = self.message(), x.shape[-1], self.formula()
        if formula is None or x.dtype != torch.float32 or not compute.takes("blocks.encode", x, wire):
            return False
        from reference_impls.kernels import tiles

        measures = found is None and tiles.fuses(formula, message.size, message.bits)
        if measures:
            found = torch.empty(
                (*x.shape[:-1], message.blocks(numel), message.numbers), dtype=x.dtype, device=x.device
            )
        elif found is None:
            found = self.measure(x, message.block(numel))
        words = key.on(x.device)
        numbers = found.flatten(-2).contiguous() if message.numbers else x  # of one block it is a view
        body = wire[..., : message.code_bytes(numel)]
        tiles.encode(x, formula, message.bits, message.size, numbers, words, body, measure=measures)
        message.write(found, wire)
        return True


def _encode_tiles(
    compressor: BlockCompressor, x: Tensor, spread: Tensor, stream: Tensor, wire: Tensor, numel: int
) -> None:
    """Whole tiles float32 [..., 512 T] under `spread`, [..., T, numbers, 32], into the front of a message."""
    width, lead, tiles = compressor.message().bits, x.shape[:-1], x.shape[-1] // TILE
    words, own = tiles_of(wire, width, numel)
    if len(fields(width)) == 1:
        folded = x.view(*lead, tiles, width, ROWS // width, LANES)
        _encoder(compressor.without_blocks(), width, 0)(folded, stream, lanes(x.device), words, spread)
    else:
        tiled = x.view(*lead, tiles, ROWS, LANES)
        for first in range(0, tiles, _PASS):
            some = slice(first, first + _PASS)
            moved = Key(stream).at(first * TILE).words
            pieces = (tiled[..., some, :, :], moved, words[..., some, :, :], spread[..., some, :, :])
            (_encode_fields if compressor.apart else _encode_codes)(compressor, *pieces)
    if not own:
        wire[..., : width * TILE * tiles // 8].copy_(words.flatten(-3).view(torch.uint8))


def _encode_codes(
    compressor: BlockCompressor, x: Tensor, stream: Tensor, words: Tensor, spread: Tensor
) -> None:
    """All fields at once, then packed. x [..., T, 32, 16], words [..., T, bits, 16], spread [..., T, numbers, 32]."""
    codes = compute.empty(x.shape, torch.int32, x.device)
    _coder(compressor.without_blocks())(x, stream, lanes(x.device), codes, spread)
    packing.pack_tiles(codes, compressor.message().bits, words)


def _encode_fields(
    compressor: BlockCompressor, x: Tensor, stream: Tensor, words: Tensor, spread: Tensor
) -> None:
    """Field by field. A field's words lie apart from tile to tile, and compilers write them faster in one piece first."""
    start = 0
    for size, lowest in fields(compressor.message().bits):
        folded = x.unflatten(-2, (size, ROWS // size))  # type: ignore[no-untyped-call]
        part = compute.empty((*x.shape[:-2], size, LANES), torch.int32, x.device)
        _encoder(compressor.without_blocks(), size, lowest)(folded, stream, lanes(x.device), part, spread)
        words[..., start : start + size, :].copy_(part)
        start += size


@functools.lru_cache(maxsize=256)
def _encoder(
    compressor: BlockCompressor, size: int, lowest: int
) -> Compiled[[Tensor, Tensor, Tensor, Tensor, Tensor], None]:
    """A field of the codes and its words in one pass.

    x [..., T, size, m, 16], spread [..., T, numbers, 32] -> [..., T, size, 16].
    """
    members = ROWS // size
    alone = size == compressor.message().bits

    def encode_tiles(x: Tensor, stream: Tensor, lane: Tensor, words: Tensor, spread: Tensor) -> None:
        first = numbers(x.shape[-4], TILE, 2, x.device) + numbers(size, members * LANES, 1, x.device) + lane
        by_word = spread.view(*spread.shape[:-1], size, members)
        packed = None
        for row in range(members):
            index = first + row * LANES
            found = by_word[..., row].unsqueeze(-1).unbind(-3)
            draw = functools.partial(bits_at, stream, index)
            own = x[..., row, :]
            codes = (
                compressor.code(own, found, draw)
                if alone
                else compressor.field(own, found, draw, size, lowest)
            )
            codes = codes << (size * row)
            packed = codes if packed is None else packed | codes
        assert packed is not None
        words.copy_(packed)

    return Compiled(encode_tiles, tiles=True)


@functools.lru_cache(maxsize=256)
def _coder(compressor: BlockCompressor) -> Compiled[[Tensor, Tensor, Tensor, Tensor, Tensor], None]:
    """Codes alone: x [..., T, 32, 16], spread [..., T, numbers, 32] -> int32 [..., T, 32, 16]."""

    def make_codes(x: Tensor, stream: Tensor, lane: Tensor, codes: Tensor, spread: Tensor) -> None:
        index = numbers(x.shape[-3], TILE, 2, x.device) + numbers(ROWS, LANES, 1, x.device) + lane
        codes.copy_(compressor.code(x, spread.unsqueeze(-1).unbind(-3), lambda: bits_at(stream, index)))

    return Compiled(make_codes, tiles=True)


@functools.lru_cache(maxsize=256)
def _decoder(compressor: BlockCompressor, add: bool) -> Compiled[[Tensor, Tensor, Tensor], None]:
    """Words [..., T, bits, 16] and spread [..., T, numbers, 32] -> float32 [..., T, 32, 16]."""
    width = compressor.message().bits
    cut = fields(width)

    def decode_tiles(out: Tensor, words: Tensor, spread: Tensor) -> None:
        value = compressor.value(split(words, cut), spread.unsqueeze(-1).unbind(-3))
        out.copy_(out + value if add else value)

    return Compiled(decode_tiles, tiles=True)
