"""Standard dithering: unbiased, exact on its grid, within its variance, and safe at the largest sum."""

from __future__ import annotations

import math

import torch

from reference_impls.codecs import dithering
from reference_impls.compute import Key
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


@each("bits", [4, 8, 16])
@each("n", range(1, 65))
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


def test_worked_example_of_the_paper():
    """Two ranks hold 3 and -1, s = 2: rank 1 is exact, rank 2 rounds -2/3 to -1 in two of three cases; mean 1."""
    draws = 30_000
    one = encoded(torch.full((draws,), 3.0), 3.0, 2, key(0))
    two = encoded(torch.full((draws,), -1.0), 3.0, 2, key(1))
    assert set(one.tolist()) == {2}
    share = float((two == -1).double().mean())
    assert abs(share - 2 / 3) < 5 * math.sqrt(2 / 9 / draws)
    mean = decoded(one.int() + two.int(), 3.0, 2, 2)
    assert set(mean.tolist()) == {0.75, 1.5}
    assert abs(float(mean.mean()) - 1.0) < 5 * 0.75 * math.sqrt(2 / 9 / draws)


@each("dtype", [torch.int8, torch.int16, torch.int32])
@each("scale", [math.inf, math.nan])
def test_what_is_not_finite_reaches_every_element(scale, dtype):
    x = torch.tensor([1.0, -2.0, 0.0, math.nan, math.inf, -math.inf] * 12)
    codes = encoded(x, scale, 31, key(), dtype)
    assert int(codes.abs().max()) <= 31
    assert not decoded(codes, scale, 31, 2).isfinite().any()


def test_golden_codes():
    assert dithering.WIRE_VERSION == 1
    x = torch.tensor([0.1, -0.2, 0.3, -0.4, 0.5, -0.0, 1.0, -1.0])
    u = key().uniform(8).double()
    z = x.double().abs().float() * 31
    expected = [
        int(math.copysign(math.floor(v) + (t < v - math.floor(v)), w))
        for v, t, w in zip(z.tolist(), u.tolist(), x.tolist(), strict=True)
    ]
    assert encoded(x, 1.0, 31, key()).tolist() == expected == GOLDEN


GOLDEN = [3, -6, 9, -12, 15, 0, 31, -31]
