"""All-reduce in 16-bit floats: half the bytes, the error of the format, and no overflow however large the gradient is."""

from __future__ import annotations

import pytest
import torch

from tests.reference_impls.averages import mean, normal

NAMES = ("allreduce-bf16", "allreduce-fp16")
FORMS = ("all-reduce", "two-phase")
ROUNDING = {"allreduce-bf16": 2.0**-7, "allreduce-fp16": 2.0**-10}  # the spacing of numbers between 1 and 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [2, 64])
def test_the_mean_within_the_formats_error(name: str, form: str, n: int) -> None:
    """Two phases: half a spacing for each number and one for the mean. All-reduce: half a spacing of every partial sum."""
    x = normal(n, 200, seed=n)
    off = (mean(name, x, form=form) - x.mean(0)).abs()
    sizes = x.abs().mean(0)
    roundings = 2 if form == "two-phase" else n
    assert bool((off <= roundings * ROUNDING[name] / 2 * sizes * 1.01 + 1e-7).all())
    assert float(off.max()) > 0


@pytest.mark.parametrize(("n", "magnitude"), [(3, 1e-44), (64, 1e-7), (8, 1.0), (64, 65504.0), (3, 3e38)])
@pytest.mark.parametrize("form", FORMS)
def test_fp16_is_scaled_so_that_nothing_overflows_or_vanishes(n: int, magnitude: float, form: str) -> None:
    x = (torch.tensor([1.0, -1.0, 0.5, -0.001]) * magnitude).repeat(n, 3)
    got = mean("allreduce-fp16", x, form=form)
    tolerance = n * 2.0**-11 if form == "all-reduce" else 2.0**-10
    torch.testing.assert_close(got, x[0], rtol=tolerance, atol=1e-44)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
def test_what_16_bits_hold_is_exact(name: str, form: str) -> None:
    x = torch.arange(-128, 129).float().repeat(4, 1)
    if form == "all-reduce":
        x = x.clamp(-64, 64).div(2).floor()  # sums of four must be held as well
    assert torch.equal(mean(name, x, form=form), x[0])
    assert mean(name, torch.zeros(3, 9), form=form).tolist() == [0.0] * 9
