"""Digits in base three, and integers from numbers times a factor: packed exactly, unbiased, cut where they must be."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reference_impls.codecs import scaled_rounding, trits
from reference_impls.codecs.scaled_rounding import Rounding
from reference_impls.errors import UnsupportedError
from reference_impls.randomness import Key
from tests.support import each

KEY = Key.of(seed=1, step=2, stage="round", rank=0)


@each("dtype", [torch.int8, torch.int32, torch.int64])
@each("d", range(68))
def test_trits_of_any_length(d: int, dtype: torch.dtype) -> None:
    digits = torch.randint(0, 3, (2, d), generator=torch.Generator().manual_seed(d)).to(dtype)
    wire = torch.full((2, trits.wire_bytes(d)), 255, dtype=torch.uint8)
    trits.pack(digits, wire)
    back = torch.full_like(digits, 9)
    trits.unpack(wire, back)
    assert torch.equal(back, digits)
    assert wire.shape[-1] == math.ceil(d / 5)
    assert d == 0 or int(wire.max()) <= 242
    for row in range(2):
        alone = torch.empty_like(wire[row])
        trits.pack(digits[row], alone)
        assert torch.equal(alone, wire[row])


def test_golden_trits() -> None:
    assert trits.WIRE_VERSION == 1
    wire = torch.empty(2, dtype=torch.uint8)
    trits.pack(torch.tensor([2, 0, 1, 2, 0, 1, 2]), wire)  # bytes: digits 0, 2, 4, 6 and 1, 3, 5
    assert wire.tolist() == [2 + 1 * 3 + 0 * 9 + 2 * 27, 0 + 2 * 3 + 1 * 9]
    with pytest.raises(ValueError, match="uint8 wire of 2 bytes"):
        trits.pack(torch.zeros(7, dtype=torch.int8), wire[:1])


def rounded(x: Tensor, factor: float, limit: int, rounding: Rounding = "stochastic") -> tuple[Tensor, int]:
    codes = torch.full(x.shape, 99, dtype=torch.int32)
    flag = scaled_rounding.encode(x, torch.tensor([factor]), limit, rounding, KEY, codes)
    return codes, int(flag)


@each("bits", [4, 8, 16, 32])
@each("n", [1, 2, 3, 7, 8, 64])
def test_no_sum_overflows(bits: int, n: int) -> None:
    largest = 2 ** (bits - 1) - 1
    if n > largest:
        with pytest.raises(UnsupportedError, match="more bits"):
            scaled_rounding.room(bits, n)
        return
    limit = scaled_rounding.room(bits, n)
    assert n * limit <= largest
    assert limit > largest // n * (1 - 2**-23)
    for rounding in scaled_rounding.ROUNDINGS:
        codes, flag = rounded(torch.tensor([1.0, -1.0, 0.5]), 3e12, limit, rounding)
        assert codes.tolist() == [limit, -limit, limit]
        assert flag == 0


def test_rounding_is_unbiased_until_it_is_cut() -> None:
    draws = 40_000
    for value in (0.3, -0.3, 2.75, -7.01):
        codes, _ = rounded(torch.full((draws,), value / 10), 10.0, 31)
        assert set(codes.tolist()) == {math.floor(value), math.ceil(value)}
        p = value - math.floor(value)
        assert abs(float(codes.double().mean()) - value) <= 5 * math.sqrt(p * (1 - p) / draws) + 1e-6
    codes, _ = rounded(torch.full((draws,), 5.5), 1.0, 5)
    assert set(codes.tolist()) == {5}
