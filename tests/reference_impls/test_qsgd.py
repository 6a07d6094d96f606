"""QSGD, natural compression and dithering, NUQSGD, CGX: means of messages of levels. TernGrad, QSGD-MaxNorm: sums of levels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from reference_impls import SimulatedCluster
from reference_impls.algorithms.global_qsgd import clipped
from tests.reference_impls.averages import mean, normal, sent, stepped
from tests.support import each


def test_what_dividing_by_n_first_costs() -> None:
    """Claim 3 of Global-QSGD's comparison, turned round: at n = 4 its QSGD has 16 times the variance of QSGD."""
    n = 4
    x = normal(n, 4000, seed=3)
    proper = {"levels": 127, "norm": "linf", "block_size": 0}

    def error(name: str, **options: Any) -> float:
        return sum(float((mean(name, x, seed=k, **options) - x.mean(0)).square().sum()) for k in range(5))

    ratio = error("qsgd-published") / error("qsgd", **proper)
    assert 0.8 * n**2 < ratio < 1.2 * n**2
    assert torch.equal(mean("qsgd-published", x), mean("qsgd", x, **proper, divide_first=True))


@each(("n", "d"), [(1, 7), (3, 1000), (8, 1)])
def test_bytes(n: int, d: int) -> None:
    x = normal(n, d)
    blocks = math.ceil(d / 512)
    for name, options, message in (
        ("qsgd", {}, math.ceil(4 * d / 8) + 4 * blocks),
        ("qsgd", {"levels": 1, "block_size": 0}, math.ceil(2 * d / 8) + 4),
        ("qsgd-published", {}, d + 4),
        ("natural-dithering", {"bits": 3}, math.ceil(3 * d / 8) + 4),
        ("nuqsgd", {}, math.ceil(4 * d / 8) + 4 * blocks),
    ):
        found = sent(stepped(name, x, **options))
        assert found == ({"gradient": (1, message, (n - 1) * message)} if n > 1 else {})
    piece = 8 * math.ceil(d / (8 * n))
    for name, options, message in (
        ("natural-compression", {}, 9 * piece // 8),
        ("cgx", {"smallest": 0, "bits": 3}, 3 * piece // 8 + 8 * math.ceil(piece / 512)),
    ):
        found = sent(stepped(name, x, **options))
        each = {"up": (1, n * message, (n - 1) * message), "down": (1, message, (n - 1) * message)}
        assert found == (each if n > 1 else {})


@each(("n", "small"), [(2, 4), (3, 9), (4, 40)])
def test_error_feedback_of_large_tensors_loses_nothing_in_two_phases(n: int, small: int) -> None:
    """sum of means - sum of answers = mean of workers' errors + servers' errors, which lie by pieces of the 48 large elements.

    The vector before them moves the pieces of the bucket: with 4 elements in it the last of 2 ranks owns 20 elements of
    the bucket and serves 24 of the large ones.
    """
    cluster = SimulatedCluster(
        "cgx", [torch.zeros(small), torch.zeros(6, 8)], n, lr=1.0, bucket_bytes=1 << 30, smallest=2, bits=2,
        error_feedback=True,
    )  # fmt: skip
    total = torch.zeros(48)
    for step in range(6):
        grads = normal(n, 48, seed=step)
        total += grads.mean(0)
        cluster.step([[torch.ones(small), g.view(6, 8)] for g in grads])
    size = 8 * math.ceil(48 / (8 * n))
    served = [torch.cat(cluster.state(rank, "server_error"))[:size] for rank in range(n)]
    workers = torch.stack([torch.cat(cluster.state(rank, "worker_error"))[small:] for rank in range(n)])
    owed = torch.cat(served)[:48] + workers.mean(0)
    torch.testing.assert_close(total + cluster.parameters(0)[1].view(-1), owed, rtol=1e-4, atol=1e-5)
    assert float(owed.abs().max()) > 0.01


# ---- TernGrad --------------------------------------------------------------------------------------------------------------


@each(("n", "d"), [(1, 5), (7, 101), (8, 64)])
def test_bytes_of_terngrad(n: int, d: int) -> None:
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
    message = math.ceil(2 * d / 8)
    assert sent(stepped("terngrad", x, form="gather")) == {**shared, "codes": (1, message, (n - 1) * message)}


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


# ---- all-reduce in 16-bit floats: half the bytes, the error of the format, and no overflow ---------------------------------

HALVES = ("allreduce-bf16", "allreduce-fp16")
HALF_FORMS = ("all-reduce", "two-phase")
ROUNDING = {"allreduce-bf16": 2.0**-7, "allreduce-fp16": 2.0**-10}  # the spacing of numbers between 1 and 2


@each("name", HALVES)
@each("form", HALF_FORMS)
@each("n", [2, 64])
def test_the_mean_within_the_formats_error(name: str, form: str, n: int) -> None:
    """Two phases: half a spacing for each number and one for the mean. All-reduce: half a spacing of every partial sum."""
    x = normal(n, 200, seed=n)
    off = (mean(name, x, form=form) - x.mean(0)).abs()
    sizes = x.abs().mean(0)
    roundings = 2 if form == "two-phase" else n
    assert bool((off <= roundings * ROUNDING[name] / 2 * sizes * 1.01 + 1e-7).all())
    assert float(off.max()) > 0


@each(("n", "magnitude"), [(3, 1e-44), (5, 1e-30), (64, 1e-7), (8, 1.0), (64, 65504.0), (3, 3e38)])
@each("form", HALF_FORMS)
def test_fp16_is_scaled_so_that_nothing_overflows_or_vanishes(n: int, magnitude: float, form: str) -> None:
    x = (torch.tensor([1.0, -1.0, 0.5, -0.001]) * magnitude).repeat(n, 3)
    got = mean("allreduce-fp16", x, form=form)
    tolerance = n * 2.0**-11 if form == "all-reduce" else 2.0**-10
    torch.testing.assert_close(got, x[0], rtol=tolerance, atol=1e-44)
