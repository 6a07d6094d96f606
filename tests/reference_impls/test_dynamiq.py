"""DynamiQ: levels, widths and codes by their formulas, a step by plain numbers, bytes, bias, and errors that grow with n."""

from __future__ import annotations

import itertools
import math
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from reference_impls.algorithms import dynamiq
from reference_impls.algorithms.dynamiq import Rows, deal, decode, encode, units
from reference_impls.core.algorithm import Bucket
from reference_impls.core.collectives import Group
from reference_impls.core.compute import Key
from tests.reference_impls import averages
from tests.reference_impls.averages import normal
from tests.support import each

mean = partial(averages.mean, "dynamiq")
stepped = partial(averages.stepped, "dynamiq")
EPSILON = {2: 0.27, 4: 0.20, 8: 0.08}


def level(bits: int, r: int) -> float:
    """f(epsilon, r), by the formula."""
    base = 1 + 2 * EPSILON[bits] ** 2
    return float((base**r - 1) / (base ** (2 ** (bits - 1) - 1) - 1))


def uneven(n: int, groups: int, seed: int = 0) -> Tensor:
    """[n, 256 groups]: normal, alike among ranks to a part, with norms that differ from super-group to super-group."""
    own, shared = normal(n, groups, 256, seed=seed), normal(1, groups, 256, seed=seed + 1)
    return ((own + shared / 2) * torch.exp(1.5 * normal(groups, 1, seed=seed + 2))).flatten(1)


def widths(squares: Tensor, n: int, room: int) -> Tensor:
    """[nR]: bits of each super-group."""
    order, rows = deal(squares, n, room)
    found = torch.empty(len(squares), dtype=torch.int64)
    found[order] = (2 << rows.kind).repeat(n)
    return found


# ---- levels and codes --------------------------------------------------------------------------------------------------


@each("kind", [0, 1, 2])
def test_levels_are_the_formula_and_never_two_in_a_cell(kind: int) -> None:
    bits = 2 << kind
    found = dynamiq.levels(bits, EPSILON[bits])
    assert found == pytest.approx([level(bits, r) for r in range(2 ** (bits - 1))], abs=1e-15)
    assert (found[0], found[-1]) == (0, 1)
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert gaps == sorted(gaps)
    assert gaps[0] > 1 / 512


def bf16_above(x: Tensor) -> Tensor:
    """The least bf16 that is not below, float64."""
    near = x.to(torch.bfloat16)
    return torch.where(near < x, (near.view(torch.int16) + 1).view(torch.bfloat16), near).double()


def one_width(kind: int, count: int) -> Rows:
    """Rows that all have one width."""
    each_row = 1 << kind
    return Rows(
        torch.full((count,), kind), torch.arange(count).repeat_interleave(each_row),
        (2 * torch.arange(each_row)).repeat(count).to(torch.int32).unsqueeze(-1),
    )  # fmt: skip


@each("kind", [0, 1, 2])
def test_codes_are_neighbouring_levels_without_bias_and_of_the_expected_variance(kind: int) -> None:
    """Level and group scale are rounded apart: E x^2 is the product of their second moments."""
    bits, draws, rows = 2 << kind, 400, one_width(kind, 4)
    x = normal(4, 256) * torch.tensor([1e-20, 1.0, 3.0, 1e15]).unsqueeze(-1)
    x[1, :16] = 0
    seeds = [Key.of(seed=seed, step=0, stage="test") for seed in range(draws)]
    found = torch.stack(
        [
            decode(encode(x, rows, k.uniform(1024).view(4, 256), k.at(1024).uniform(64).view(4, 16)), rows)
            for k in seeds
        ]
    ).double()
    groups = x.double().view(4, 16, 16)
    most = groups.abs().amax(-1, keepdim=True)
    above = bf16_above(most.amax(1, keepdim=True))
    table = torch.tensor([level(bits, r) for r in range(2 ** (bits - 1))], dtype=torch.float64)
    y = (groups.abs() / most).nan_to_num(0)
    index = (torch.searchsorted(table, y, right=True) - 1).clamp(max=len(table) - 2)
    low, high = table[index], table[index + 1]
    share = 255 * most / above
    fraction = share - share.floor()
    square = (y**2 + (high - y) * (y - low)) * (most**2 + fraction * (1 - fraction) * (above / 255) ** 2)
    variance = (square - groups**2).view(4, 256)
    off = found - x.double()
    assert bool((found.sign() * x.sign() >= 0).all())
    assert bool((found[:, 1, :16] == 0).all())
    for row in range(4):
        spread = variance[row].sum()
        assert float(off[:, row].square().sum() / draws / spread) == pytest.approx(1, abs=0.1)
        along = (off[:, row] * x[row].sign()).sum(-1)
        assert abs(float(along.mean() / (along.std() / draws**0.5))) < 4
        # units of scales are above the spacing of bf16: what is decoded is a level times a whole number of them
        unit = above[row].view(1, 1, 1) / 255
        made = (found[:, row].view(draws, 16, 16).abs() / unit).unsqueeze(-1) / table[1:]
        assert float((made - made.round()).abs().amin(-1).amax()) < 1e-3


def test_a_super_groups_scale_is_the_least_bf16_that_is_not_below() -> None:
    x = torch.cat([normal(1000).abs(), torch.tensor([0.0, 1e-42, 1.0, 1 + 2**-9, 3.3e38, torch.inf])])
    above = dynamiq._bf16_above(x)
    assert bool((above.float() >= x).all())
    before = (above.view(torch.int16) - 1).view(torch.bfloat16).float()
    assert bool((before < x)[x > 0].all())


# ---- widths ------------------------------------------------------------------------------------------------------------


@each("seed", range(6))
def test_widths_have_the_least_error_that_the_budget_allows(seed: int) -> None:
    """Against all choices; of the few that spend less than there is, no other is better by more than the step left out."""
    squares = torch.exp(4 * normal(6, seed=seed)).to(torch.bfloat16).float()
    for room in range(6, 25):
        found = widths(squares, 1, room).tolist()
        spent = sum(w // 2 for w in found)

        def error(choice: Any) -> float:
            return math.fsum(float(f) * 4.0**-w for f, w in zip(squares, choice, strict=True))

        best = min(
            error(choice)
            for choice in itertools.product((2, 4, 8), repeat=6)
            if sum(w // 2 for w in choice) <= room
        )
        assert room - 1 <= spent <= room
        if spent == room:
            assert error(found) == pytest.approx(best, rel=1e-9)
        else:
            largest = max(float(f) for f, w in zip(squares, found, strict=True) if w == 4)
            assert error(found) <= best + largest * (4.0**-4 - 4.0**-8)


def test_thresholds_have_their_ratio() -> None:
    """T24 = 17/512 T48, each known to one step of a fine row of norms."""
    squares = torch.logspace(-6, 6, 4000, dtype=torch.float64).flip(0)
    found = widths(squares, 1, units(4000, 5.0))
    least = {bits: float(squares[found == bits].min()) for bits in (4, 8)}
    assert least[4] / least[8] == pytest.approx(17 / 512, rel=0.02)
    assert set(found.tolist()) == {2, 4, 8}


@each("n", [1, 3])
def test_a_larger_norm_never_has_fewer_bits(n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    for _ in range(60):
        squares = torch.exp(3 * torch.randn(12, generator=generator))
        room = int(torch.randint(12 // n, 4 * 12 // n + 1, (), generator=generator))
        before = widths(squares, n, room)
        place = int(torch.randint(12, (), generator=generator))
        for factor in (1.01, 2.0, 30.0, torch.inf):
            raised = squares.clone()
            raised[place] *= factor
            assert widths(raised, n, room)[place] >= before[place]


def test_norms_that_are_equal_or_not_finite_have_widths_too() -> None:
    assert widths(torch.zeros(8), 2, units(4, 5.0)).tolist() == [4] * 8
    assert widths(torch.tensor([torch.nan, 1.0, torch.inf, -1.0]), 1, 10).tolist() == [8, 2, 8, 2]
    assert widths(torch.ones(4), 2, units(2, 8.6875)).tolist() == [8] * 4
    assert widths(torch.ones(4), 2, units(2, 2.6875)).tolist() == [2] * 4


# ---- a step by plain numbers -------------------------------------------------------------------------------------------


def bf16(x: float) -> float:
    return float(torch.tensor(x).to(torch.bfloat16))


def uniform(stage: str, rank: int | None, first: int, count: int) -> list[float]:
    key = Key.of(seed=0, step=0, stage=stage, rank=rank)
    return list(key.at(first).uniform(count).tolist())


def rounded(x: list[float], bits: int, draw: list[float], by_group: list[float]) -> list[float]:
    """What a super-group of 256 numbers is decoded to."""
    most = [max(abs(v) for v in x[16 * g : 16 * g + 16]) for g in range(16)]
    above = float(bf16_above(torch.tensor(max(most), dtype=torch.float64)))
    found = []
    for i, v in enumerate(x):
        g = i // 16
        if most[g] == 0:
            found.append(0.0)
            continue
        share = 255 * most[g] / above
        share = int(share) + (by_group[g] < share - int(share))
        y, r = abs(v) / most[g], 0
        while r + 1 < 2 ** (bits - 1) and level(bits, r + 1) <= y:
            r += 1
        if y < 1 and draw[i] < (y - level(bits, r)) / (level(bits, r + 1) - level(bits, r)):
            r += 1
        found.append((1 if v >= 0 else -1) * level(bits, r) * share * above / 255)
    return found


@each("rounding", ["correlated", "independent"])
def test_a_step_by_plain_numbers(rounding: str) -> None:
    """3 ranks, 5 super-groups of which one is not whole and a sixth is padding: 2 rows of 3 pieces, 4 and 2 bits."""
    n, d, count = 3, 1100, 2
    g = normal(n, d) * torch.exp(torch.arange(d) // 256).float() + 0.5
    parts = [[g[r, 256 * j : 256 * j + 256].tolist() for j in range(6)] for r in range(n)]
    means, squares = [], []
    for j in range(6):
        own = [bf16(sum(parts[r][j]) / max(len(parts[r][j]), 1)) for r in range(n)]
        means.append(bf16(sum(own) / n))
        squares.append(bf16(sum(bf16(sum(v * v for v in parts[r][j])) for r in range(n))))
    assert units(count, 4.0) == 3  # 2 bits for both rows, and 2 more for one
    order = sorted(range(6), key=lambda j: -squares[j] if j < 5 else 1)
    words = Key.of(seed=0, step=0, stage="gradient-order").bits(n).tolist()
    place = [sorted(range(n), key=words.__getitem__)[r] for r in range(n)]
    expected = torch.zeros(6 * 256, dtype=torch.float64)
    for piece, row in itertools.product(range(n), range(count)):
        j, bits, first = order[row * n + piece], (4, 2)[row], (piece * count + row) * 256
        total = [0.0] * 256
        for hop in range(n):  # a piece begins at the rank of its number and goes round
            rank = (piece + hop) % n
            own_part = [v - means[j] for v in parts[rank][j]]
            own_part += [0.0] * (256 - len(own_part))
            draw = uniform("gradient-dither", rank, first, 256)
            if rounding == "correlated":
                turns = uniform("gradient-rotation", None, first, 256)
                draw = [((int(t * n) + place[rank]) % n + u) / n for t, u in zip(turns, draw, strict=True)]
            by_group = uniform("gradient-scales", rank, first // 16, 16)
            total = rounded([a + b for a, b in zip(total, own_part, strict=True)], bits, draw, by_group)
        expected[256 * j : 256 * j + 256] = torch.tensor(total, dtype=torch.float64) / n + means[j]
    found = mean(g, bits=4.0, rounding=rounding)
    torch.testing.assert_close(found.double(), expected[:d], rtol=1e-4, atol=1e-5)
    assert float((found - g.mean(0)).abs().max()) > 0.1


@each("n", [2, 3, 8])
def test_ranks_have_strata_of_their_own(n: int) -> None:
    def of(rank: int) -> Tensor:
        def stream(stage: str, shared: bool = False) -> Key:
            return Key.of(seed=3, step=1, stage=stage, rank=None if shared else rank)

        bucket = SimpleNamespace(world=Group("world", rank, n), grads=torch.empty(0), key=stream)
        return dynamiq._Draws(cast(Bucket, bucket), "correlated", 8).of(1)[0]

    draws = torch.stack([of(rank) for rank in range(n)]).flatten(1)
    strata = (draws * n).floor().clamp(max=n - 1)
    assert torch.equal(strata.sort(0).values, torch.arange(n).float().unsqueeze(-1).expand(n, 2048))
    assert float((draws.mean(1) - 0.5).abs().max()) < 0.03
    assert float(((draws * n) % 1).mean()) == pytest.approx(0.5, abs=0.02)


# ---- bytes -------------------------------------------------------------------------------------------------------------


@each("n", [2, 5])
@each("bits", [2.6875, 5.0, 8.6875])
def test_bytes_meet_the_budget_by_hand(n: int, bits: float) -> None:
    """U units of 64 bytes and 18 bytes of scales a row, n-1 hops and n-1 on the way round; 4 bytes a super-group agreed on."""
    count = 8
    cluster = stepped(uneven(n, n * count), bits=bits)
    length = 64 * int(count * (bits - 0.6875) / 2) + 18 * count
    for rank in range(n):
        sent = averages.sent(cluster, rank)
        assert sent == {
            "statistics-up": (1, 4 * n * count, 4 * (n - 1) * count),
            "statistics-down": (1, 4 * count, 4 * (n - 1) * count),
            "hop": (n - 1, (n - 1) * length, (n - 1) * length),
            "down": (1, length, (n - 1) * length),
        }
        spent = 8 * sum(wire for *_, wire in sent.values()) / (2 * (n - 1) / n) / (n * count * 256)
        assert bits - 0.25 < spent <= bits


# ---- bias and error ----------------------------------------------------------------------------------------------------


def answers(x: Tensor, draws: int, **options: Any) -> Tensor:
    """[draws, d], of as many seeds; equal on all ranks."""
    return torch.stack([mean(x, seed=seed, **options) for seed in range(draws)]).double()


def test_independent_draws_are_unbiased_and_correlated_ones_closer_but_biased() -> None:
    """4 sigma along the mean, its signs and random directions; and no coordinate's mean is off by more than chance."""
    x, draws = uneven(2, 8), 60
    exact = x.double().mean(0)
    error, excess = {}, {}
    for rounding in ("independent", "correlated"):
        found = answers(x, draws, rounding=rounding, bits=4.0)
        off = found - exact
        error[rounding] = float(off.square().sum(1).mean())
        seen = off.std(0) > 1e-9
        z = (off.mean(0) / (off.std(0) / draws**0.5))[seen]
        excess[rounding] = float(z.square().mean()) - (draws - 1) / (draws - 3)
        if rounding == "independent":
            for along in (exact, exact.sign(), *normal(5, x.shape[1], seed=9).double()):
                projected = off @ along
                assert abs(float(projected.mean() / (projected.std() / draws**0.5))) < 4
    assert abs(excess["independent"]) < 0.12
    assert excess["correlated"] > 0.5
    assert 0.7 < error["correlated"] / error["independent"] < 0.95


@each("gradients", ["alike", "independent"])
def test_the_error_of_a_ring_grows_with_its_partial_sums(gradients: str) -> None:
    """The k-th partial sum is k times as large where gradients are alike: sum k^2, of order n^3; else root k times: sum k."""
    errors = {}
    for n in (2, 4, 8):
        shared, own = normal(1, 8 * 256), normal(n, 8 * 256, seed=n)
        x = shared + own / 5 if gradients == "alike" else own
        off = answers(x, 8, rounding="independent", bits=8.6875) - x.double().mean(0)
        errors[n] = float((n * off).square().sum(1).mean())
    power = 2 if gradients == "alike" else 1
    for n in (4, 8):
        expected = sum(k**power for k in range(1, n + 1)) / (1 + 2**power)
        assert errors[n] / errors[2] == pytest.approx(expected, rel=0.15)


@each("dtype", [torch.float32, torch.float64])
def test_zeros_are_exact_and_what_is_not_finite_stays_in_its_super_group(dtype: torch.dtype) -> None:
    assert not bool(mean(torch.zeros(3, 700, dtype=dtype)).any())
    for bad in (torch.nan, torch.inf):
        x = normal(3, 700).to(dtype)
        x[1, 300] = bad
        found = mean(x).isfinite()
        assert not bool(found[256:512].any())
        assert bool(found[:256].all())
        assert bool(found[512:].all())


def test_large_gradients_stay_finite() -> None:
    """Their squares are not, in bf16."""
    x = normal(2, 600).clamp(-3, 3) * 3e37
    torch.testing.assert_close(mean(x) / 3e37, x.mean(0) / 3e37, rtol=0, atol=0.7)
