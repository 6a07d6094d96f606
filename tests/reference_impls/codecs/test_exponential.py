"""Exponential dithering: unbiased in encoding and, by enumeration of all outcomes, in adding."""

from __future__ import annotations

import math
from fractions import Fraction

import torch

from reference_impls.codecs import dithering
from reference_impls.compute import Key
from tests.support import each


def key(rank=0, step=0, stage="dither"):
    return Key.of(seed=1, step=step, stage=stage, rank=rank)


def encoded(x, scale=1.0, head_room=0, k=None):
    wire = torch.full(x.shape, 77, dtype=torch.uint8)
    dithering.encode_powers(x, torch.as_tensor(scale), head_room, k or key(), wire)
    return wire


def decoded(wire, scale=1.0, head_room=0, n=1):
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
    return list(zip(dithering.add_powers_with(*full, words).tolist(), weights, strict=True))


CODES = [0, *range(2, 30), 60, 61, 62, 63, 64, 126, 127]


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
    assert encoded(x, 1.0, 3).tolist() == expected
    assert dithering.WIRE_VERSION == 1
    assert expected == GOLDEN


GOLDEN = [4, 132, 5, 5, 134, 104, 0, 0, 0]


@each("scale", [math.inf, math.nan])
def test_what_is_not_finite_reaches_every_element(scale):
    x = torch.tensor([1.0, -2.0, 0.0, math.nan, math.inf, -math.inf] * 12)
    wire = encoded(x, scale, 2)
    assert not decoded(wire, scale, 2, 4).isfinite().any()


@each("scale", [3e38, 2.0**-120])
def test_extreme_scales(scale):
    """The normaliser itself would overflow or lose bits; it is never formed."""
    x = torch.tensor([1.0, -0.5, 0.25])
    assert torch.equal(decoded(encoded(x * scale, scale, 6), scale, 6) / scale, x)


@each("head_room", [1, 3, 6])
def test_what_lies_below_the_last_code_is_the_last_code(head_room):
    """Under head-room L the 127 codes end at 2^(L-126) of the scale; smaller magnitudes are rounded up to it, not wrapped."""
    x = torch.cat([s * 2.0 ** -torch.arange(126 - head_room, 127, dtype=torch.float32) for s in (1, -1)])
    wire, out = torch.empty(len(x), dtype=torch.uint8), torch.empty(len(x))
    dithering.encode_powers(
        x, torch.tensor(1.0), head_room, Key.of(seed=0, step=0, stage="last", rank=0), wire
    )
    assert (wire & 127).tolist() == [127] * len(x)
    dithering.decode_powers(wire, torch.tensor(1.0), head_room, 1, out)
    assert out.abs().tolist() == [2.0 ** (head_room - 126)] * len(x)
    assert torch.equal(out.sign(), x.sign())
