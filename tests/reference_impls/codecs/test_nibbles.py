"""Two counters a byte; bytes of several ranks add up without a carry."""

from __future__ import annotations

import math

import torch

from reference_impls.codecs import nibbles
from tests.support import each


def counters(*shape, high=16, seed=0, dtype=torch.int32):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def packed(values):
    wire = torch.full((*values.shape[:-1], nibbles.wire_bytes(values.shape[-1])), 0xAA, dtype=torch.uint8)
    nibbles.pack(values, wire)
    return wire


@each("d", range(68))
@each("dtype", [torch.uint8, torch.int32])
def test_round_trip(d, dtype):
    values = counters(d, seed=d, dtype=dtype)
    wire = packed(values)
    assert wire.numel() == nibbles.wire_bytes(d) == math.ceil(d / 2)
    size = wire.numel()
    halves = [*values.tolist(), *([0] * (d % 2))]
    assert wire.tolist() == [halves[i] | halves[size + i] << 4 for i in range(size)]
    out = torch.full((d,), 99, dtype=dtype)
    nibbles.unpack(wire, out)
    assert torch.equal(out, values)


def test_golden_bytes():
    assert nibbles.WIRE_VERSION == 1
    assert packed(torch.tensor([1, 2, 3, 4, 5])).tolist() == [0x41, 0x52, 0x03]


@each("n", [1, 2, 3, 5, 7])
def test_bytes_add_up(n):
    values = counters(n, 67, high=15 // n + 1, seed=n)
    wire = torch.zeros(34, dtype=torch.uint8)
    for row in packed(values):
        wire += row
    out = torch.empty(67, dtype=torch.int32)
    nibbles.unpack(wire, out)
    assert torch.equal(out, values.sum(0, dtype=torch.int32))
