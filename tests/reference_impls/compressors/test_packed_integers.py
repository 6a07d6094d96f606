"""Integers of b bits take b bits each; two counters a byte."""

from __future__ import annotations

import math

import torch

from reference_impls.compressors import packing
from tests.support import each

WIDTHS = range(2, 17)


def integers(d, bits, seed=0, dtype=torch.int32):
    values = torch.randint(0, 1 << bits, (d,), generator=torch.Generator().manual_seed(seed))
    values[-1:] = (1 << bits) - 1
    return values.to(dtype)


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
    for d in (0, 1, 31, 67, 511, 512, 513, 1603):
        values = integers(d, bits=bits, seed=d)
        assert packing.wire_bytes(d, bits) == math.ceil(bits * d / 8)
        wire = torch.full((packing.wire_bytes(d, bits),), 0xAA, dtype=torch.uint8)
        packing.pack(values, bits, wire)
        assert wire.tolist() == oracle(values.tolist(), bits)
        for dtype in (torch.int32, torch.int64) if bits > 7 else (torch.int32, torch.int8):
            out = torch.full((d,), 99, dtype=dtype)
            packing.unpack(wire, bits, out)
            assert torch.equal(out, values.to(dtype))


# ---- two counters a byte ---------------------------------------------------------------------------------------------------


@each("d", (0, 1, 2, 31, 67))
@each("dtype", [torch.uint8, torch.int32])
def test_round_trip(d, dtype):
    values, size = integers(d, bits=4, seed=d, dtype=dtype), math.ceil(d / 2)
    assert packing.nibble_bytes(d) == size
    wire = torch.full((size,), 0xAA, dtype=torch.uint8)
    packing.pack_nibbles(values, wire)
    halves = [*values.tolist(), *([0] * (d % 2))]
    assert wire.tolist() == [halves[i] | halves[size + i] << 4 for i in range(size)]
    out = torch.full((d,), 99, dtype=dtype)
    packing.unpack_nibbles(wire, out)
    assert torch.equal(out, values)
