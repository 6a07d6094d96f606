"""All-reduce in 16-bit floats: half the bytes, the error of the format, and no overflow however large the gradient is."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from reference_impls.algorithms.half_precision import HalfPrecision
from reference_impls.collectives import Group
from reference_impls.errors import UnsupportedError
from tests.reference_impls.averages import answers, mean, normal, sent, stepped

NAMES = ("allreduce-bf16", "allreduce-fp16")
FORMS = ("all-reduce", "two-phase")
ROUNDING = {"allreduce-bf16": 2.0**-7, "allreduce-fp16": 2.0**-10}  # the spacing of numbers between 1 and 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [2, 3, 8, 64])
def test_the_mean_within_the_formats_error(name: str, form: str, n: int) -> None:
    """Two phases: half a spacing for each number and one for the mean. All-reduce: half a spacing of every partial sum."""
    x = normal(n, 200, seed=n)
    off = (mean(name, x, form=form) - x.mean(0)).abs()
    sizes = x.abs().mean(0)
    roundings = 2 if form == "two-phase" else n
    assert bool((off <= roundings * ROUNDING[name] / 2 * sizes * 1.01 + 1e-7).all())
    assert float(off.max()) > 0


@pytest.mark.parametrize("name", NAMES)
def test_sums_in_fp32_err_less(name: str) -> None:
    x = normal(64, 2000)

    def error(form: str) -> float:
        return float((mean(name, x, form=form) - x.mean(0)).square().mean())

    assert error("two-phase") < error("all-reduce") / 3


@pytest.mark.parametrize("n", [2, 3, 8, 64])
@pytest.mark.parametrize("magnitude", [1e-44, 1e-38, 1e-20, 1e-7, 1.0, 65504.0, 1e6, 1e30, 3e38])
@pytest.mark.parametrize("form", FORMS)
def test_fp16_is_scaled_so_that_nothing_overflows_or_vanishes(n: int, magnitude: float, form: str) -> None:
    x = (torch.tensor([1.0, -1.0, 0.5, -0.001]) * magnitude).repeat(n, 3)
    got = mean("allreduce-fp16", x, form=form)
    tolerance = n * 2.0**-11 if form == "all-reduce" else 2.0**-10
    torch.testing.assert_close(got, x[0], rtol=tolerance, atol=1e-44)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("d", [1, 7, 100])
def test_bytes(name: str, n: int, d: int) -> None:
    ring = 2 * (n - 1) / n
    x = normal(n, d)
    shared = {"scale": (1, 4, ring * 4)} if name == "allreduce-fp16" else {}
    if n == 1:
        assert sent(stepped(name, x)) == {}
        assert torch.equal(mean(name, x), x[0])
        return
    assert sent(stepped(name, x)) == {**shared, "gradient": (1, 2 * d, pytest.approx(ring * 2 * d))}
    piece = 2 * 8 * math.ceil(d / (8 * n))
    assert sent(stepped(name, x, form="two-phase")) == {
        **shared,
        "up": (1, n * piece, (n - 1) * piece),
        "down": (1, piece, (n - 1) * piece),
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
def test_what_16_bits_hold_is_exact(name: str, form: str) -> None:
    x = torch.arange(-128, 129).float().repeat(4, 1)
    if form == "all-reduce":
        x = x.clamp(-64, 64).div(2).floor()  # sums of four must be held as well
    assert torch.equal(mean(name, x, form=form), x[0])
    assert mean(name, torch.zeros(3, 9), form=form).tolist() == [0.0] * 9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_on_one_rank_shows_on_all(name: str, form: str, bad: float) -> None:
    x = normal(3, 50)
    x[2, 31] = bad
    assert not answers(stepped(name, x, form=form))[:, 31].isfinite().any()


@pytest.mark.parametrize("options", [{"format": "fp8"}, {"form": "gather"}])
def test_what_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(options))):
        HalfPrecision(**options).check(Group("world", 0, 2))
    with pytest.raises(UnsupportedError, match="1024"):
        stepped("allreduce-fp16", normal(1025, 2))
