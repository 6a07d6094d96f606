"""Integers of b bits take b bits each, for every b, and add up as they are."""

from __future__ import annotations

import math

import pytest
import torch

from reference_impls.codecs import packed_integers as packing
from reference_impls.codecs import signs

WIDTHS = range(2, 17)


def integers(*shape, bits, seed=0, dtype=torch.int32):
    values = torch.randint(0, 1 << bits, shape, generator=torch.Generator().manual_seed(seed))
    if values.numel():
        values.view(-1)[-1] = (1 << bits) - 1
    return values.to(dtype)


def packed(values, bits):
    size = packing.wire_bytes(values.shape[-1], bits)
    wire = torch.full((*values.shape[:-1], size), 0xAA, dtype=torch.uint8)
    packing.pack(values, bits, wire)
    return wire


def oracle(values, bits):
    """The documented format with Python integers."""
    columns = len(values) // 32
    words = [0] * (bits * columns)
    for i, value in enumerate(values[: 32 * columns]):
        for k in range(bits):
            words[k * columns + i % columns] |= (value >> k & 1) << (i // columns)
    string = sum(value << (bits * j) for j, value in enumerate(values[32 * columns :]))
    tail = string.to_bytes(math.ceil(bits * (len(values) % 32) / 8), "little")
    return list(b"".join(word.to_bytes(4, "little") for word in words) + tail)


@pytest.mark.parametrize("bits", WIDTHS)
def test_format_and_round_trip(bits):
    for d in (*range(68), 96, 1003):
        values = integers(d, bits=bits, seed=d)
        wire = packed(values, bits)
        assert wire.numel() == packing.wire_bytes(d, bits) == math.ceil(bits * d / 8)
        assert wire.tolist() == oracle(values.tolist(), bits)
        for dtype in (torch.int32, torch.int64) if bits > 7 else (torch.int32, torch.int8):
            out = torch.full((d,), 99, dtype=dtype)
            packing.unpack(wire, bits, out)
            assert torch.equal(out, values.to(dtype))


@pytest.mark.parametrize("bits", [17, 24, 30, 31])
def test_wider_integers_still_round_trip(bits):
    values = integers(67, bits=bits)
    wire = packed(values, bits)
    assert wire.tolist() == oracle(values.tolist(), bits)
    out = torch.empty(67, dtype=torch.int32)
    packing.unpack(wire, bits, out)
    assert torch.equal(out, values)


def test_golden_bytes():
    assert packing.WIRE_VERSION == 1
    assert packed(torch.tensor([5, 2, 7]), 3).tolist() == [0b11010101, 0b1]  # 111 010 101, lowest first
    assert packed(torch.tensor([0x234, 0x1FF, 1]), 10).tolist() == [0x34, 0xFE, 0x17, 0x00]
    values = torch.zeros(65, dtype=torch.int32)  # W = 2: four words, then one element
    values[0], values[3], values[63], values[64] = 1, 2, 3, 2
    assert packed(values, 2).tolist() == [1, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 2, 0, 0, 0x80, 2]


@pytest.mark.parametrize("d", [0, 7, 32, 67, 200])
def test_one_bit_is_the_format_of_signs(d):
    bits = integers(d, bits=1, seed=d)
    expected = torch.empty(signs.wire_bytes(d), dtype=torch.uint8)
    signs.pack(bits.bool(), expected)
    assert torch.equal(packed(bits, 1), expected)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("bits", [2, 3, 7, 16])
def test_messages_add_up(n, bits):
    for d in (1, 31, 32, 67, 320):
        values = integers(3, n, d, bits=bits, seed=n + d)
        total = torch.full((3, d), -1, dtype=torch.int32)
        packing.add_up(packed(values, bits), bits, total)
        assert torch.equal(total, values.sum(1, dtype=torch.int32))


@pytest.mark.parametrize("d", [1, 31, 40, 67, 133])
def test_rows_pack_as_they_would_alone(d):
    values = integers(3, 2, d, bits=5, seed=d)
    wire = packed(values, 5)
    assert torch.equal(wire, torch.stack([torch.stack([packed(v, 5) for v in rows]) for rows in values]))
    out = torch.empty_like(values)
    packing.unpack(wire, 5, out)
    assert torch.equal(out, values)


def test_a_wire_that_starts_anywhere():
    values = integers(100, bits=6)
    for offset in range(5):
        buffer = torch.zeros(offset + packing.wire_bytes(100, 6), dtype=torch.uint8)
        packing.pack(values, 6, buffer[offset:])
        out = torch.empty_like(values)
        packing.unpack(buffer[offset:], 6, out)
        assert torch.equal(out, values)
        assert not buffer[:offset].any()


def test_bits_that_a_largest_value_takes():
    assert [packing.width(v) for v in (0, 1, 2, 3, 4, 254, 255, 256)] == [1, 1, 2, 2, 3, 8, 8, 9]
    for n, exact in ((2, 2), (4, 3), (8, 4), (16, 5), (32, 6), (64, 7), (128, 8)):  # counts 0 .. n
        assert packing.width(n) == exact == math.ceil(math.log2(n + 1))


def test_what_is_refused():
    with pytest.raises(ValueError, match="4 bytes"):
        packing.pack(integers(9, bits=3), 3, torch.empty(3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="1 to 31"):
        packing.unpack(torch.empty(4, dtype=torch.uint8), 32, torch.empty(1, dtype=torch.int32))
    with pytest.raises(ValueError, match="1 to 31"):
        packing.add_up(torch.empty(1, 0, dtype=torch.uint8), 0, torch.empty(1, dtype=torch.int32))
