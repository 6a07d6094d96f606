"""Dithering. Equal levels: unbiased, within their variance, safe at the largest sum. Powers of two: unbiased by enumeration."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from reference_impls.compressors import dithering
from reference_impls.core.compute import Key
from tests.support import each


def key(rank=0, step=0):
    return Key.of(seed=1, step=step, stage="dither", rank=rank)


def encoded(x, scale, s, k, dtype=torch.int8):
    codes = torch.full(x.shape, 77, dtype=dtype)
    dithering.encode(x, torch.as_tensor(scale), s, k, codes)
    return codes


def decoded(total, scale, s, n):
    out = torch.empty(total.shape)
    dithering.decode(total, torch.as_tensor(scale), s, n, out)
    return out


@each(("bits", "n"), [(4, 1), (4, 7), (4, 8), (8, 3), (8, 64), (16, 5)])
def test_no_sum_overflows_even_when_all_ranks_hold_the_maximum(bits, n):
    largest = 2 ** (bits - 1) - 1
    if n > largest:
        return
    s = dithering.levels(bits, n)
    x = torch.tensor([3.7, -3.7] * 50)
    total = sum(encoded(x, 3.7, s, key(r), torch.int16).long() for r in range(n))
    assert total.tolist() == [n * s, -n * s] * 50
    assert n * s <= largest < n * (s + 1)


def test_unbiased_with_the_variance_of_stochastic_rounding():
    draws = 20_000
    for value in (0.3, -0.77, 0.01, 0.999, -0.5):
        codes = encoded(torch.full((draws,), value), 1.0, 5, key()).double() / 5
        fraction = abs(value) * 5 % 1
        sigma = math.sqrt(fraction * (1 - fraction)) / 5
        assert abs(float(codes.mean()) - value) <= 5 * sigma / math.sqrt(draws)
        assert abs(float(codes.std()) - sigma) < 0.01
        assert set((codes * 5).tolist()) <= {
            math.copysign(k, value) for k in (math.floor(abs(value) * 5), math.ceil(abs(value) * 5))
        }


@each("dtype", [torch.int8, torch.int16, torch.int32])
@each("scale", [math.inf, math.nan])
def test_what_is_not_finite_reaches_every_element(scale, dtype):
    x = torch.tensor([1.0, -2.0, 0.0, math.nan, math.inf, -math.inf] * 12)
    codes = encoded(x, scale, 31, key(), dtype)
    assert int(codes.abs().max()) <= 31
    assert not decoded(codes, scale, 31, 2).isfinite().any()
    assert not decoded_powers(encoded_powers(x, scale, 2), scale, 2, 4).isfinite().any()


def test_golden_codes():
    x = torch.tensor([0.1, -0.2, 0.3, -0.4, 0.5, -0.0, 1.0, -1.0])
    u = key().uniform(8).double()
    z = x.double().abs().float() * 31
    expected = [
        int(math.copysign(math.floor(v) + (t < v - math.floor(v)), w))
        for v, t, w in zip(z.tolist(), u.tolist(), x.tolist(), strict=True)
    ]
    assert encoded(x, 1.0, 31, key()).tolist() == expected == [3, -6, 9, -12, 15, 0, 31, -31]


# ---- powers of two ---------------------------------------------------------------------------------------------------


def encoded_powers(x, scale=1.0, head_room=0, k=None):
    wire = torch.full(x.shape, 77, dtype=torch.uint8)
    dithering.encode_powers(x, torch.as_tensor(scale), head_room, k or key(), wire)
    return wire


def decoded_powers(wire, scale=1.0, head_room=0, n=1):
    out = torch.empty(wire.shape)
    dithering.decode_powers(wire, torch.as_tensor(scale), head_room, n, out)
    return out


def value(code):
    """The documented meaning of a byte, in units of the normaliser."""
    c = code & 127
    return Fraction(0) if c == 0 else Fraction(-1 if code > 127 else 1, 2**c)


def outcomes(a, b):
    """All results of adding two bytes with their probabilities: only the trailing zeros of the random word matter."""
    words = torch.tensor([1 << k for k in range(31)] + [-(1 << 31), 0], dtype=torch.int32)
    weights = [Fraction(1, 2 ** (k + 1)) for k in range(32)] + [Fraction(1, 2**32)]
    full = [torch.full(words.shape, v, dtype=torch.uint8) for v in (a, b)]
    return list(zip(dithering._add_words(*full, words).tolist(), weights, strict=True))


CODES = [0, 2, 3, 4, 5, 9, 17, 33, 34, 35, 63, 126, 127]


def test_adding_is_unbiased_exactly():
    """Sum over all outcomes of value times probability is the sum of the values, for every pair within 31 doublings."""
    worst = Fraction(0)
    for ca in CODES:
        for cb in CODES:
            for sign in (0, 128):
                if (ca == 0 and sign) or max(ca, cb) > 100:
                    continue
                a, b = ca | sign, cb
                total = value(a) + value(b)
                results = outcomes(a, b)
                mean = sum(value(code) * p for code, p in results)
                if ca and cb and abs(ca - cb) > 31:
                    assert abs(mean - total) <= abs(total) / 2**31
                    continue
                assert mean == total, (a, b)
                if total:
                    worst = max(worst, sum(value(code) ** 2 * p for code, p in results) / total**2)
    assert worst == Fraction(28, 25) <= Fraction(9, 8)  # worst at 1 + 1/4


def test_encoding_to_the_documented_byte():
    word = key().bits(9)
    x = torch.tensor([1.0, -1.0, 0.5, 0.75, -0.3, 1e-30, 0.0, -0.0, 1e-39])
    expected = []
    for v, r in zip(x.tolist(), word.tolist(), strict=True):
        mantissa, exponent = math.frexp(abs(v))
        if abs(v) < 2.0**-126:
            expected.append(0)
            continue
        fraction = int((2 * mantissa - 1) * 2**23)
        c = min(1 + 3 - (exponent - 1) - ((r & 0x7FFFFF) < fraction), 127)
        expected.append(c | (128 if v < 0 else 0))
    assert encoded_powers(x, 1.0, 3).tolist() == expected
    assert expected == [4, 132, 5, 5, 134, 104, 0, 0, 0]


@each("scale", [3e38, 2.0**-120])
def test_extreme_scales(scale):
    """The normaliser itself would overflow or lose bits; it is never formed."""
    x = torch.tensor([1.0, -0.5, 0.25])
    assert torch.equal(decoded_powers(encoded_powers(x * scale, scale, 6), scale, 6) / scale, x)


@each("head_room", [1, 6])
def test_what_lies_below_the_last_code_is_the_last_code(head_room):
    """Under head-room L the 127 codes end at 2^(L-126) of the scale; smaller magnitudes are rounded up to it, not wrapped."""
    x = torch.cat([s * 2.0 ** -torch.arange(126 - head_room, 127, dtype=torch.float32) for s in (1, -1)])
    wire = encoded_powers(x, 1.0, head_room)
    out = decoded_powers(wire, 1.0, head_room)
    assert (wire & 127).tolist() == [127] * len(x)
    assert out.abs().tolist() == [2.0 ** (head_room - 126)] * len(x)
    assert torch.equal(out.sign(), x.sign())
