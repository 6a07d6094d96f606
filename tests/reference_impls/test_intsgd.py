"""IntSGD: the factor that everybody knows, and no float after the first step; sums of integers in any width."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.aggregators import integer_sum as sums
from reference_impls.algorithms import intsgd
from reference_impls.algorithms.intsgd import Rounding
from reference_impls.core.collectives import Group
from reference_impls.core.compute import Key
from reference_impls.core.errors import UnsupportedError
from tests.reference_impls.averages import mean, moved, normal, sent, stepped
from tests.reference_impls.exchanges import run
from tests.support import each

SIZES = [30, 50]


def cluster(n: int, sizes: list[int] | None = None, lr: float = 0.1, **options: Any) -> SimulatedCluster:
    return SimulatedCluster(
        "intsgd", [torch.zeros(k) for k in sizes or SIZES], n, lr=lr, bucket_bytes=1 << 30, **options
    )


def r_of(workers: SimulatedCluster, rank: int = 0) -> list[float]:
    return [float(x) for x in workers._workers[rank].buckets[0].state["r"].values()]


def test_the_factor_follows_the_rule() -> None:
    """r is the first squared step, then its moving average; a = sqrt(d) / sqrt(2 n r / lr^2 + eps); codes are integers."""
    n, beta = 4, 0.7
    workers = cluster(n, beta=beta, bits=32)
    expected: list[float] = []
    for step in range(4):
        lr = 0.1 / (1 + step)
        factors = [
            math.sqrt(k) / math.sqrt(2 * n * r / lr**2 + 1e-8) for k, r in zip(SIZES, expected, strict=False)
        ]
        rows = normal(n, sum(SIZES), seed=step)
        applied = (moved(workers, rows, lr) / lr).split(SIZES)
        if step == 0:
            torch.testing.assert_close(torch.cat(applied), rows.mean(0), rtol=1e-5, atol=1e-6)
        for part, factor in zip(applied, factors, strict=bool(step)):
            codes = part.double() * factor * n
            assert float((codes - codes.round()).abs().max()) < 1e-3
            assert float(codes.abs().max()) > 1
        squares = [float((part.double() * lr).square().sum()) for part in applied]
        expected = [
            s if step == 0 else beta * r + (1 - beta) * s
            for s, r in zip(squares, expected or squares, strict=True)
        ]
        for rank in range(n):
            assert r_of(workers, rank) == pytest.approx(expected, rel=1e-4)
            assert r_of(workers, rank) == r_of(workers, 0)  # to the bit: the factor is the same everywhere


def test_the_exponents_rule_and_that_it_cuts() -> None:
    """a = 127 / (n 2^e), e = floor(log2 max|g|): numbers between 2^e and 2^(e+1) are beyond 127 / n and are cut."""
    n = 2
    x = torch.tensor([1.5, 0.25, -1.9, 1.0]).repeat(n, 1)
    got = mean("intsgd-heuristic", x, rounding="nearest")
    a = 127 / (n * 1.0)
    expected = torch.tensor([63, round(0.25 * a), -63, 63]) / a
    torch.testing.assert_close(got, expected)
    doubled = mean("intsgd-heuristic", 2 * x, rounding="nearest")
    torch.testing.assert_close(doubled, 2 * got)
    assert set(sent(stepped("intsgd-heuristic", x))) == {"scale", "gradient"}


def test_nothing_has_moved_and_no_rate() -> None:
    """Zero gradients, then others: the factor falls back to the initial one, and nothing becomes NaN."""
    for options in ({}, {"scale": "bucket"}):
        workers = cluster(2, initial_factor=50.0, **options)
        assert moved(workers, torch.zeros(2, 80)).abs().max() == 0
        got = moved(workers, torch.full((2, 80), 0.3)) / 0.1
        torch.testing.assert_close(got, torch.full((80,), 0.3), rtol=0, atol=0.02)
        workers.step([[torch.ones(k) for k in SIZES]] * 2, lr=0.0)
        assert all(p.isfinite().all() for p in workers.parameters(0))


@each("noise", [1.0, 0.1])
def test_a_rate_that_begins_at_nothing_tells_nothing_of_the_factor(noise: float) -> None:
    """Nothing is cut at n = 16: what is applied is the mean, but for the rounding. Rates of 0 are in full precision."""
    n, workers = 16, cluster(16, [1000])
    for step in range(8):
        rows = noise * normal(n, 1000, seed=step) + 0.3
        rate = 0.01 * step
        found = moved(workers, rows, rate)
        assert workers.kind == ("integer" if step > 1 else "warm-up")
        if step:
            share = float(found.double() @ rows.mean(0).double()) / rate / float(rows.mean(0).square().sum())
            assert share == pytest.approx(1, abs=0.1), step


# ---- the sum of integers ---------------------------------------------------------------------------------------------------


LENGTHS = (1, 2, 9, 31, 67, 257, 5000)


def codes_of(n: int, d: int, limit: int, seed: int = 0) -> Tensor:
    """[n, d] in -limit .. limit; all ranks agree on the extremes somewhere."""
    codes = torch.randint(-limit, limit + 1, (n, d), generator=torch.Generator().manual_seed(seed))
    codes[:, 0] = limit
    codes[:, d // 2] = -limit
    return codes


def everywhere(codes: Tensor, bits: int, limit: int, form: sums.Form) -> tuple[list[Tensor], float]:
    narrow = torch.int8 if limit < 128 else torch.int16 if limit < 1 << 15 else torch.int32
    found, ledgers = run(
        [
            sums.integer_sum(Group("world", rank, len(codes)), row.to(narrow), bits, limit, "votes", form)
            for rank, row in enumerate(codes)
        ]
    )
    return found, sum(row["wire_bytes"] for row in ledgers[0].rows())


@each(("n", "bits"), [(1, 2), (2, 3), (8, 3), (5, 8), (3, 11), (8, 16)])
def test_any_width_in_two_phases_is_the_sum_and_costs_what_is_said(bits: int, n: int) -> None:
    limit = ((1 << (bits - 1)) - 1) // n
    if limit < 1:
        with pytest.raises(UnsupportedError, match="more bits"):
            everywhere(torch.zeros(n, 4, dtype=torch.int64), bits, 1, "two-phase")
        return
    for d in LENGTHS:
        codes = codes_of(n, d, limit, seed=bits)
        found, sent = everywhere(codes, bits, limit, "two-phase")
        for total in found:
            assert total.dtype == torch.int32
            assert total.tolist() == codes.sum(0).tolist()
        up, down = math.ceil(math.log2(2 * limit + 1)), math.ceil(math.log2(2 * n * limit + 1))
        assert up <= down <= bits
        assert down == bits  # the sum needs what was paid for, a rank's own codes do not
        piece = math.ceil(d / n)
        assert sent == pytest.approx((n - 1) * (math.ceil(up * piece / 8) + math.ceil(down * piece / 8)))


@each(("bits", "n"), [(4, 7), (8, 16), (8, 64), (8, 127), (16, 100)])
def test_both_forms_agree_where_all_ranks_send_their_most(bits: int, n: int) -> None:
    limit = ((1 << (bits - 1)) - 1) // n
    codes = codes_of(n, 67, limit)
    one, _ = everywhere(codes, bits, limit, "all-reduce")
    other, _ = everywhere(codes, bits, limit, "two-phase")
    assert one[0].tolist() == other[n - 1].tolist() == codes.sum(0).tolist()
    with pytest.raises(UnsupportedError, match="more bits"):
        everywhere(codes, bits, limit + 1, "all-reduce")


# ---- integers from numbers times a factor ----------------------------------------------------------------------------------


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
    x, key = torch.tensor([1.0, -1.0, 0.5]), Key.of(seed=1, step=2, stage="round", rank=0)
    for rounding in get_args(Rounding):
        codes = torch.full((3,), 99, dtype=torch.int32)
        flag = intsgd.encode(x, torch.tensor([3e12]), limit, rounding, key, codes)
        assert codes.tolist() == [limit, -limit, limit]
        assert flag == 0
