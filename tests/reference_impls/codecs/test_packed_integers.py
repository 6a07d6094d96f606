"""Integers of b bits take b bits each, for every b, and add up as they are."""

from __future__ import annotations

import math

import pytest
import torch

from reference_impls.codecs import packed_integers as packing
from tests.support import each, require_compiler

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
    tiles = len(values) // 512
    words = [0] * (16 * bits * tiles)
    for i, value in enumerate(values[: 512 * tiles]):
        row, lane, lowest, first = i % 512 // 16, i % 16, 0, 16 * bits * (i // 512)
        for field in (16, 8, 4, 2, 1):
            if bits & field:
                members = 32 // field
                part = value >> lowest & ((1 << field) - 1)
                words[first + 16 * (row // members) + lane] |= part << (field * (row % members))
                lowest, first = lowest + field, first + 16 * field
    string = sum(value << (bits * j) for j, value in enumerate(values[512 * tiles :]))
    tail = string.to_bytes(math.ceil(bits * (len(values) % 512) / 8), "little")
    return list(b"".join(word.to_bytes(4, "little") for word in words) + tail)


@each("bits", WIDTHS)
def test_format_and_round_trip(bits):
    for d in (*range(36), 67, 511, 512, 513, 1024, 1603):
        values = integers(d, bits=bits, seed=d)
        wire = packed(values, bits)
        assert wire.numel() == packing.wire_bytes(d, bits) == math.ceil(bits * d / 8)
        assert wire.tolist() == oracle(values.tolist(), bits)
        for dtype in (torch.int32, torch.int64) if bits > 7 else (torch.int32, torch.int8):
            out = torch.full((d,), 99, dtype=dtype)
            packing.unpack(wire, bits, out)
            assert torch.equal(out, values.to(dtype))


def test_golden_bytes():
    assert packing.WIRE_VERSION == 2
    assert packed(torch.tensor([5, 2, 7]), 3).tolist() == [0b11010101, 0b1]  # 111 010 101, lowest first
    assert packed(torch.tensor([0x234, 0x1FF, 1]), 10).tolist() == [0x34, 0xFE, 0x17, 0x00]
    values = torch.zeros(513, dtype=torch.int32)  # a tile of 3 * 64 bytes, then one element
    values[0], values[17], values[511], values[512] = 0b101, 0b110, 0b011, 0b100
    wire = packed(values, 3).tolist()
    assert {i: byte for i, byte in enumerate(wire) if byte} == {
        0: 0b01,  # row 0, lane 0: the low two bits
        4: 0b10 << 2,  # row 1, lane 1
        127: 0b11 << 6,  # row 31, lane 15: the last word of the field of two bits
        128: 0b1,  # row 0, lane 0: the third bit
        132: 0b1 << 1,  # row 1, lane 1
        192: 0b100,
    }


@each("n", [1, 2, 3, 8])
@each("bits", [2, 3, 7, 16])
def test_messages_add_up(n, bits):
    for d in (1, 31, 512, 1100):
        values = integers(3, n, d, bits=bits, seed=n + d)
        total = torch.full((3, d), -1, dtype=torch.int32)
        packing.add_up(packed(values, bits), bits, total)
        assert torch.equal(total, values.sum(1, dtype=torch.int32))


@each("d", [1, 31, 512, 700])
def test_rows_pack_as_they_would_alone(d):
    values = integers(3, 2, d, bits=5, seed=d)
    wire = packed(values, 5)
    assert torch.equal(wire, torch.stack([torch.stack([packed(v, 5) for v in rows]) for rows in values]))
    out = torch.empty_like(values)
    packing.unpack(wire, 5, out)
    assert torch.equal(out, values)


def test_a_wire_that_starts_anywhere():
    values = integers(1100, bits=6)
    for offset in range(5):
        buffer = torch.zeros(offset + packing.wire_bytes(1100, 6), dtype=torch.uint8)
        packing.pack(values, 6, buffer[offset:])
        out = torch.empty_like(values)
        packing.unpack(buffer[offset:], 6, out)
        assert torch.equal(out, values)
        assert not buffer[:offset].any()


@pytest.mark.full
@pytest.mark.parametrize("bits", [1, 4, 9, 19])
def test_large_vectors_pack_the_same_compiled(bits, monkeypatch):
    """One row and two of them, with a tail; the eager path is the oracle."""
    require_compiler()
    for shape in ((70_001,), (2, 70_001)):
        values = integers(*shape, bits=bits, seed=bits)
        outs = []
        for compile_ in ("1", "0"):
            monkeypatch.setenv("BANDWISE_COMPILE", compile_)
            wire = packed(values, bits)
            out = torch.empty_like(values)
            packing.unpack(wire, bits, out)
            total = torch.empty_like(values[..., :])
            packing.add_up(torch.stack([wire, wire], -2), bits, total)
            assert torch.equal(out, values)
            assert torch.equal(total, 2 * values)
            outs.append(wire)
        assert torch.equal(*outs)
