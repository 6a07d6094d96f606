"""DynamiQ: widths against all choices, a step by plain numbers, and numbers of any kind."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls.algorithms.dynamiq import deal, units
from reference_impls.core.compute import Key
from tests.reference_impls import averages
from tests.reference_impls.averages import normal
from tests.support import each

mean = partial(averages.mean, "dynamiq")
EPSILON = {2: 0.27, 4: 0.20, 8: 0.08}


def level(bits: int, r: int) -> float:
    """f(epsilon, r), by the formula."""
    base = 1 + 2 * EPSILON[bits] ** 2
    return float((base**r - 1) / (base ** (2 ** (bits - 1) - 1) - 1))


def widths(squares: Tensor, n: int, room: int) -> Tensor:
    """[nR]: bits of each super-group."""
    order, rows = deal(squares, n, room)
    found = torch.empty(len(squares), dtype=torch.int64)
    found[order] = (2 << rows.kind).repeat(n)
    return found


def bf16_above(x: Tensor) -> Tensor:
    """The least bf16 that is not below, float64."""
    near = x.to(torch.bfloat16)
    return torch.where(near < x, (near.view(torch.int16) + 1).view(torch.bfloat16), near).double()


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


@each(
    ("rounding", "bits", "room", "by_row"), [("correlated", 4.0, 3, (4, 2)), ("independent", 8.0, 7, (8, 4))]
)
def test_a_step_by_plain_numbers(rounding: str, bits: float, room: int, by_row: tuple[int, int]) -> None:
    """3 ranks, 5 super-groups of which one is not whole and a sixth is padding: 2 rows of 3 pieces."""
    n, d, count = 3, 1100, 2
    g = normal(n, d) * torch.exp(torch.arange(d) // 256).float() + 0.5
    parts = [[g[r, 256 * j : 256 * j + 256].tolist() for j in range(6)] for r in range(n)]
    means, squares = [], []
    for j in range(6):
        own = [bf16(sum(parts[r][j]) / max(len(parts[r][j]), 1)) for r in range(n)]
        means.append(bf16(sum(own) / n))
        squares.append(bf16(sum(bf16(sum(v * v for v in parts[r][j])) for r in range(n))))
    assert units(count, bits) == room
    order = sorted(range(6), key=lambda j: -squares[j] if j < 5 else 1)
    words = Key.of(seed=0, step=0, stage="gradient-order").bits(n).tolist()
    place = [sorted(range(n), key=words.__getitem__)[r] for r in range(n)]
    expected = torch.zeros(6 * 256, dtype=torch.float64)
    for piece, row in itertools.product(range(n), range(count)):
        j, first = order[row * n + piece], (piece * count + row) * 256
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
            total = rounded(
                [a + b for a, b in zip(total, own_part, strict=True)], by_row[row], draw, by_group
            )
        expected[256 * j : 256 * j + 256] = torch.tensor(total, dtype=torch.float64) / n + means[j]
    found = mean(g, bits=bits, rounding=rounding)
    off = (found.double() - expected[:d]).abs() > 1e-4 * expected[:d].abs() + 1e-5
    assert int(off.sum()) <= 1  # where a draw turns on the last bit
    assert float((found - g.mean(0)).abs().max()) > 0.03


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
