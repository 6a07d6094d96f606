"""TernGrad: three values on one scale, the same however they are added; and QSGD-MaxNorm, which counts in the same way."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from reference_impls.algorithms.terngrad import FORMS, clipped
from reference_impls.codecs import dithering
from tests.reference_impls.averages import mean, normal, sent, stepped
from tests.support import each

RANKS = (1, 2, 3, 7, 8)
VALUES = torch.tensor([1.0, -0.3, 0.77, 0.05, -0.6, 0.011, 0.4, -0.93])


@each("n", RANKS)
@each("d", [1, 5, 67, 200])
@each("scale", ["tensor", "bucket"])
def test_all_forms_have_the_same_bits(n: int, d: int, scale: str) -> None:
    x = normal(n, d, seed=d)
    sizes = [d // 2, d - d // 2] if d > 1 else [1]
    first = mean("terngrad", x, sizes, scale=scale)
    for form in FORMS[1:]:
        assert torch.equal(mean("terngrad", x, sizes, scale=scale, form=form), first)
    steps = (first.double() * n / x.abs().max().double()) if scale == "bucket" else torch.zeros(1)
    assert float((steps - steps.round()).abs().max()) < 1e-5  # a sum of codes, -n .. n
    assert float(steps.abs().max()) <= n + 1e-5


@each("n", RANKS)
def test_unbiased_with_the_variance_of_a_coin(n: int) -> None:
    """Var = sum |g| (s - |g|) / n^2 per coordinate."""
    d = 20_000
    got = mean("terngrad", VALUES[:n, None].expand(n, d).contiguous()).double()
    truth = float(VALUES[:n].double().mean())
    s = float(VALUES[:n].abs().max())
    variance = sum(abs(v) * (s - abs(v)) for v in VALUES[:n].tolist()) / n**2
    assert abs(float(got.mean()) - truth) <= 5 * math.sqrt(variance / d) + 1e-6
    assert float(got.var()) == pytest.approx(variance, rel=0.05, abs=1e-9)


def test_it_is_global_qsgd_with_one_level() -> None:
    """One level of the largest magnitude over all ranks: 7 ranks in 4 bits."""
    x = normal(7, 300)
    assert dithering.levels(4, 7) == 1
    assert torch.equal(mean("terngrad", x, scale="bucket"), mean("global-qsgd", x, bits=4))


@each("n", RANKS)
@each("d", [1, 64, 101])
def test_bytes(n: int, d: int) -> None:
    x = normal(n, d)
    ring = 2 * (n - 1) / n
    piece = math.ceil(d / n)
    up, down = math.ceil(2 * piece / 8), math.ceil((2 * n).bit_length() * piece / 8)
    shared = {"scale": (1, 4, ring * 4)}
    assert sent(stepped("terngrad", x)) == {
        **shared,
        "codes-up": (1, n * up, (n - 1) * up),
        "codes-down": (1, down, (n - 1) * down),
    }
    payload = math.ceil(d / 2) if n <= 7 else d
    assert sent(stepped("terngrad", x, form="all-reduce")) == {
        **shared,
        "codes": (1, payload, pytest.approx(ring * payload)),
    }
    for form, message in (("gather", math.ceil(2 * d / 8)), ("gather-base3", math.ceil(d / 5))):
        assert sent(stepped("terngrad", x, form=form)) == {**shared, "codes": (1, message, (n - 1) * message)}


def test_clipping() -> None:
    x = normal(5000)
    x[7] = 100.0
    sigma = float(x.double().std(correction=0))
    cut = clipped(x, 2.5)
    assert float(cut.abs().max()) == pytest.approx(2.5 * sigma)
    inside = x.abs() <= 2.4 * sigma
    assert torch.equal(cut[inside], x[inside])
    assert torch.equal(clipped(torch.full((9,), 3.0), 2.5), torch.full((9,), 3.0))
    assert torch.equal(clipped(torch.tensor([4.0]), 2.5), torch.tensor([4.0]))
    shifted = normal(1000) + 10  # sigma is taken about the mean
    assert float(clipped(shifted, 2.5).max()) == pytest.approx(
        2.5 * float(shifted.std(correction=0)), rel=1e-5
    )
    one = torch.zeros(2, 5000)
    one[0] = x
    assert float(mean("terngrad", one, clip=2.5).abs().max()) == pytest.approx(1.25 * sigma)


# ---- QSGD-MaxNorm --------------------------------------------------------------------------------------------------


@each(("n", "bits", "global_bits"), [(1, 7, 8), (2, 6, 8), (4, 5, 8), (8, 4, 8), (4, 13, 16), (1, 3, 4)])
@each("form", ["two-phase", "all-reduce"])
def test_maxnorm_is_global_qsgd_where_they_agree_on_the_levels(
    n: int, bits: int, global_bits: int, form: str
) -> None:
    assert dithering.levels(global_bits, n) == 2**bits - 1
    x = normal(n, 200)
    assert torch.equal(
        mean("qsgd-maxnorm", x, bits=bits, form=form), mean("global-qsgd", x, bits=global_bits)
    )


@each("bits", [1, 4, 7, 8, 15])
@each("n", [1, 2, 3, 8, 33])
def test_maxnorm_never_overflows(bits: int, n: int) -> None:
    x = torch.tensor([1.7, -1.7, 0.0]).repeat(n, 4)
    for form in ("two-phase", "all-reduce"):
        for fine in (0, bits + 2):
            got = mean("qsgd-maxnorm", x, bits=bits, form=form, fine_bits=fine)
            torch.testing.assert_close(got, x[0], rtol=1e-6, atol=0)


def test_two_grids_are_finer_for_what_is_small() -> None:
    """Coordinates below s / s' of the maximum on all ranks are rounded on the fine grid, the others on the coarse one."""
    n, d = 4, 4000
    x = normal(n, d) * 0.01
    x[:, 0] = 1.0
    x[:, 1] = 0.5

    def error(**options: Any) -> float:
        return float((mean("qsgd-maxnorm", x, bits=2, **options) - x.mean(0))[2:].square().mean())

    fine = error(fine_bits=6)
    expected = (1 / 63) ** 2 / 6 / n  # mean of f (1 - f) over fractions f
    assert fine < error() / 5
    assert fine < 2 * expected
    grid = torch.cat([torch.arange(-3, 4) / 63, torch.tensor([1.0])]).repeat(n, 1)
    torch.testing.assert_close(mean("qsgd-maxnorm", grid, bits=2, fine_bits=6), grid[0], rtol=1e-6, atol=1e-8)
    alone = x[:, :2].clone()  # what does not fit stays coarse: multiples of M / 3, averaged over 4 ranks
    steps = (mean("qsgd-maxnorm", alone, bits=2, fine_bits=6) * 12).double()
    assert float((steps - steps.round()).abs().max()) < 1e-5
