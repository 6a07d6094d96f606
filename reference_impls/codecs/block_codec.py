"""The frame of codecs that make an integer of every element, by what it shares with its block: how they are carried out.

A codec of this kind says what a block's numbers are, how an element becomes a code and how a code becomes a value, all by
element-wise formulas. Here they meet the layout (`codecs.blocks`) and the tiles (`codecs.tiles`): large vectors are read
once, made into codes and packed in one compiled pass where the width of a code divides a word, else in two.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import torch
from torch import Tensor

from reference_impls import buffers, kernels
from reference_impls.codecs import packed_integers
from reference_impls.codecs.blocks import BlockMessage
from reference_impls.codecs.packed_integers import fields, split, tiles_of
from reference_impls.codecs.passes import Draw
from reference_impls.codecs.tiles import LANES, ROWS, TILE, lanes, numbers, rows, whole
from reference_impls.compilation import CompiledTiles
from reference_impls.kernels import Formula
from reference_impls.randomness import Key, bits_at

__all__ = ["BlockCodec"]

_PASS: Final = 1 << 14  # tiles whose codes are kept at a time where two passes are needed: 32 MiB of them


@dataclass(frozen=True)
class BlockCodec(ABC):
    """Codec (`codecs.codec.Codec`) of codes of `message().bits` bits and numbers a block."""

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
        """The codec of the same `code` and `value` that stands for all that differ in their blocks alone.

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

    @property
    @abstractmethod
    def unbiased(self) -> bool: ...

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
        words = key.words.to(x.device)
        streams = words.expand(*x.shape[:-1], 3)
        if inside:
            for own, part, stream, target in rows(x[..., :inside], found, streams, body):
                _encode_tiles(self, own, message.by_row(part, inside // TILE), stream, target, numel)
        if inside < numel:
            index = torch.arange(inside, numel, dtype=torch.int32, device=x.device)
            spread = message.by_element(found, inside, numel)
            codes = self.code(x[..., inside:], spread.unbind(0), lambda: bits_at(streams, index))
            if inside:
                packed_integers.pack_tail(codes, message.bits, body)
            else:
                packed_integers.pack(codes, message.bits, body)

    def decode(self, wire: Tensor, out: Tensor, *, add: bool = False) -> None:
        """As in the protocol; add: `out` += what is decoded."""
        message, numel = self.message(), out.shape[-1]
        if numel == 0:
            return
        formula = self.formula()
        if formula is not None and kernels.takes("block_codec.decode", out, wire):
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
                codes = packed_integers.unpack_tail(body, message.bits, numel - inside)
            else:
                codes = buffers.empty(out.shape, torch.int32, out.device)
                packed_integers.unpack(body, message.bits, codes)
            value = self.value(codes, message.by_element(found, inside, numel).unbind(0))
            last = out[..., inside:]
            last.add_(value) if add else last.copy_(value)

    def _encode_on_gpu(self, x: Tensor, found: Tensor | None, key: Key, wire: Tensor) -> bool:
        """`encode`, or `encode_by` with what was found, if a kernel can do it."""
        message, numel, formula = self.message(), x.shape[-1], self.formula()
        if formula is None or x.dtype != torch.float32 or not kernels.takes("block_codec.encode", x, wire):
            return False
        from reference_impls.kernels import tiles

        measures = found is None and tiles.fuses(formula, message.size, message.bits)
        if measures:
            found = torch.empty(
                (*x.shape[:-1], message.blocks(numel), message.numbers), dtype=x.dtype, device=x.device
            )
        elif found is None:
            found = self.measure(x, message.block(numel))
        words = key.words.to(x.device)
        numbers = found.flatten(-2).contiguous() if message.numbers else x  # of one block it is a view
        body = wire[..., : message.code_bytes(numel)]
        tiles.encode(x, formula, message.bits, message.size, numbers, words, body, measure=measures)
        message.write(found, wire)
        return True


def _encode_tiles(
    codec: BlockCodec, x: Tensor, spread: Tensor, stream: Tensor, wire: Tensor, numel: int
) -> None:
    """Whole tiles float32 [..., 512 T] under `spread`, [..., T, numbers, 32], into the front of a message."""
    width, lead, tiles = codec.message().bits, x.shape[:-1], x.shape[-1] // TILE
    words, own = tiles_of(wire, width, numel)
    if len(fields(width)) == 1:
        folded = x.view(*lead, tiles, width, ROWS // width, LANES)
        _encoder(codec.without_blocks(), width, 0)(folded, stream, lanes(x.device), words, spread)
    else:
        tiled = x.view(*lead, tiles, ROWS, LANES)
        for first in range(0, tiles, _PASS):
            some = slice(first, first + _PASS)
            moved = Key(stream).at(first * TILE).words
            pieces = (tiled[..., some, :, :], moved, words[..., some, :, :], spread[..., some, :, :])
            (_encode_fields if codec.apart else _encode_codes)(codec, *pieces)
    if not own:
        wire[..., : width * TILE * tiles // 8].copy_(words.flatten(-3).view(torch.uint8))


def _encode_codes(codec: BlockCodec, x: Tensor, stream: Tensor, words: Tensor, spread: Tensor) -> None:
    """All fields at once, then packed. x [..., T, 32, 16], words [..., T, bits, 16], spread [..., T, numbers, 32]."""
    codes = buffers.empty(x.shape, torch.int32, x.device)
    _coder(codec.without_blocks())(x, stream, lanes(x.device), codes, spread)
    packed_integers.pack_tiles(codes, codec.message().bits, words)


def _encode_fields(codec: BlockCodec, x: Tensor, stream: Tensor, words: Tensor, spread: Tensor) -> None:
    """Field by field. A field's words lie apart from tile to tile, and compilers write them faster in one piece first."""
    start = 0
    for size, lowest in fields(codec.message().bits):
        folded = x.unflatten(-2, (size, ROWS // size))  # type: ignore[no-untyped-call]
        part = buffers.empty((*x.shape[:-2], size, LANES), torch.int32, x.device)
        _encoder(codec.without_blocks(), size, lowest)(folded, stream, lanes(x.device), part, spread)
        words[..., start : start + size, :].copy_(part)
        start += size


@functools.lru_cache(maxsize=256)
def _encoder(
    codec: BlockCodec, size: int, lowest: int
) -> CompiledTiles[[Tensor, Tensor, Tensor, Tensor, Tensor], None]:
    """A field of the codes and its words in one pass.

    x [..., T, size, m, 16], spread [..., T, numbers, 32] -> [..., T, size, 16].
    """
    members = ROWS // size
    alone = size == codec.message().bits

    def encode_tiles(x: Tensor, stream: Tensor, lane: Tensor, words: Tensor, spread: Tensor) -> None:
        first = numbers(x.shape[-4], TILE, 2, x.device) + numbers(size, members * LANES, 1, x.device) + lane
        by_word = spread.view(*spread.shape[:-1], size, members)
        packed = None
        for row in range(members):
            index = first + row * LANES
            found = by_word[..., row].unsqueeze(-1).unbind(-3)
            draw = functools.partial(bits_at, stream, index)
            own = x[..., row, :]
            codes = codec.code(own, found, draw) if alone else codec.field(own, found, draw, size, lowest)
            codes = codes << (size * row)
            packed = codes if packed is None else packed | codes
        assert packed is not None
        words.copy_(packed)

    return CompiledTiles(encode_tiles)


@functools.lru_cache(maxsize=256)
def _coder(codec: BlockCodec) -> CompiledTiles[[Tensor, Tensor, Tensor, Tensor, Tensor], None]:
    """Codes alone: x [..., T, 32, 16], spread [..., T, numbers, 32] -> int32 [..., T, 32, 16]."""

    def make_codes(x: Tensor, stream: Tensor, lane: Tensor, codes: Tensor, spread: Tensor) -> None:
        index = numbers(x.shape[-3], TILE, 2, x.device) + numbers(ROWS, LANES, 1, x.device) + lane
        codes.copy_(codec.code(x, spread.unsqueeze(-1).unbind(-3), lambda: bits_at(stream, index)))

    return CompiledTiles(make_codes)


@functools.lru_cache(maxsize=256)
def _decoder(codec: BlockCodec, add: bool) -> CompiledTiles[[Tensor, Tensor, Tensor], None]:
    """Words [..., T, bits, 16] and spread [..., T, numbers, 32] -> float32 [..., T, 32, 16]."""
    width = codec.message().bits
    cut = fields(width)

    def decode_tiles(out: Tensor, words: Tensor, spread: Tensor) -> None:
        value = codec.value(split(words, cut), spread.unsqueeze(-1).unbind(-3))
        out.copy_(out + value if add else value)

    return CompiledTiles(decode_tiles)
