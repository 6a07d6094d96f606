"""Integers of b bits take b bits each; two counters a byte; integers from numbers."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from reference_impls.algorithms import intsgd
from reference_impls.algorithms.intsgd import Rounding
from reference_impls.compressors import packing
from reference_impls.core.compute import Key
from reference_impls.core.errors import UnsupportedError
from tests.support import each

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
    for d in (0, 1, 31, 67, 511, 512, 513, 1603):
        values = integers(d, bits=bits, seed=d)
        wire = packed(values, bits)
        assert wire.numel() == packing.wire_bytes(d, bits) == math.ceil(bits * d / 8)
        assert wire.tolist() == oracle(values.tolist(), bits)
        for dtype in (torch.int32, torch.int64) if bits > 7 else (torch.int32, torch.int8):
            out = torch.full((d,), 99, dtype=dtype)
            packing.unpack(wire, bits, out)
            assert torch.equal(out, values.to(dtype))


# ---- two counters a byte ---------------------------------------------------------------------------------------------------


def counters(*shape, high=16, seed=0, dtype=torch.int32):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def packed_nibbles(values):
    wire = torch.full((*values.shape[:-1], packing.nibble_bytes(values.shape[-1])), 0xAA, dtype=torch.uint8)
    packing.pack_nibbles(values, wire)
    return wire


@each("d", (0, 1, 2, 31, 67))
@each("dtype", [torch.uint8, torch.int32])
def test_round_trip(d, dtype):
    values = counters(d, seed=d, dtype=dtype)
    wire = packed_nibbles(values)
    assert wire.numel() == packing.nibble_bytes(d) == math.ceil(d / 2)
    size = wire.numel()
    halves = [*values.tolist(), *([0] * (d % 2))]
    assert wire.tolist() == [halves[i] | halves[size + i] << 4 for i in range(size)]
    out = torch.full((d,), 99, dtype=dtype)
    packing.unpack_nibbles(wire, out)
    assert torch.equal(out, values)


# ---- integers from numbers times a factor ----------------------------------------------------------------------------------


KEY = Key.of(seed=1, step=2, stage="round", rank=0)


def rounded(x: Tensor, factor: float, limit: int, rounding: Rounding = "stochastic") -> tuple[Tensor, int]:
    codes = torch.full(x.shape, 99, dtype=torch.int32)
    flag = intsgd.encode(x, torch.tensor([factor]), limit, rounding, KEY, codes)
    return codes, int(flag)


@each("bits", [4, 8, 32])
@each("n", [1, 7, 8])
def test_no_sum_overflows(bits: int, n: int) -> None:
    largest = 2 ** (bits - 1) - 1
    if n > largest:
        with pytest.raises(UnsupportedError, match="more bits"):
            intsgd.room(bits, n)
        return
    limit = intsgd.room(bits, n)
    assert n * limit <= largest
    assert limit > largest // n * (1 - 2**-23)
    for rounding in get_args(Rounding):
        codes, flag = rounded(torch.tensor([1.0, -1.0, 0.5]), 3e12, limit, rounding)
        assert codes.tolist() == [limit, -limit, limit]
        assert flag == 0


def test_rounding_is_unbiased() -> None:
    draws = 40_000
    for value in (0.3, -0.3, 2.75, -7.01):
        codes, _ = rounded(torch.full((draws,), value / 10), 10.0, 31)
        assert set(codes.tolist()) == {math.floor(value), math.ceil(value)}
        p = value - math.floor(value)
        assert abs(float(codes.double().mean()) - value) <= 5 * math.sqrt(p * (1 - p) / draws) + 1e-6
