"""Sketched-SGD in both versions and gs-SGD: special cases, nothing lost, the same for any number of workers, traffic."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch

from reference_impls import SimulatedCluster
from reference_impls.aggregators import folds
from reference_impls.compressors.count_sketch import CountSketch
from reference_impls.compressors.sparse import kept
from tests.reference_impls.averages import grid, held, moved, point
from tests.reference_impls.compressors.test_count_sketch import estimate, table_of

SHAPES = [(20, 10), (30,), (5, 8), ()]  # 240 sketched, 31 dense
D = 271
DENSE = torch.cat([torch.zeros(200), torch.ones(30), torch.zeros(40), torch.ones(1)]).bool()
SIZES = {"ratio": 0.1, "column_ratio": 0.3}


def cluster(name, n, shapes=SHAPES, *, lr=1.0, dtype=torch.float64, **options):
    return SimulatedCluster(name, [torch.zeros(s, dtype=dtype) for s in shapes], n, lr=lr, **options)


@pytest.mark.parametrize(("name", "n"), [("sketched-sgd", 1), ("sketched-sgd", 3), ("gs-sgd", 3)])
def test_the_rule_written_down_gives_the_same(name, n):
    """Five steps of Algorithm 3 with our sketch, means in both rounds, dense 1-D tensors with plain momentum."""
    m, k = 0.9, kept(0.1, 240)
    workers = cluster(name, n, momentum=m, weight_decay=0.01, lr=0.1, **SIZES)
    sketch = CountSketch(5, 72, 0)
    x = torch.zeros(D, dtype=torch.float64)
    u, v = torch.zeros(n, D, dtype=torch.float64), torch.zeros(n, D, dtype=torch.float64)
    for t in range(5):
        g = grid(n, D, seed=t)
        u = m * u + g + 0.01 * x
        v = v + u
        estimates = estimate(sketch, table_of(sketch, v.mean(0).masked_fill(DENSE, 0)), D)
        estimates[DENSE] = 0
        candidates = estimates.abs().topk(4 * k).indices
        exact = v.mean(0)[candidates]
        top = candidates[exact.abs().topk(k).indices]
        update = torch.zeros(D, dtype=torch.float64)
        update[top], update[DENSE] = v.mean(0)[top], v.mean(0)[DENSE]
        u[:, top] = 0
        v[:, top] = 0
        v[:, DENSE] = 0
        x = x - 0.1 * update
        moved(workers, g)
        torch.testing.assert_close(point(workers), x, rtol=0, atol=1e-9)
        torch.testing.assert_close(held(workers, "momentum"), u, rtol=0, atol=1e-9)
        torch.testing.assert_close(held(workers, "error"), v, rtol=0, atol=1e-9)


def test_the_theory_version_loses_nothing_and_carries_the_learning_rate():
    """Sum of updates + mean error = sum of lr_t mean gradients, with a rate that changes."""
    n = 3
    workers, given = cluster("sketched-sgd-theory", n, **SIZES), torch.zeros(D, dtype=torch.float64)
    for t in range(20):
        g, lr = grid(n, D, seed=t), 1 / (t + 5)
        assert int((moved(workers, g, lr) != 0).sum()) <= kept(0.1, D)
        given += lr * g.mean(0)
    torch.testing.assert_close(held(workers, "error").mean(0) - point(workers), given, rtol=0, atol=1e-12)


def test_heavymix_takes_all_heavy_coordinates_and_random_others():
    """Two heavy ones of k = 10: these always, the other eight drawn anew, evenly, and never the same twice in a step."""
    d, seen = 500, torch.zeros(500)
    x = grid(d, seed=1) / 100
    x[3], x[77] = 50.0, -60.0
    for seed in range(60):
        workers = cluster("sketched-sgd-theory", 2, [(d,)], ratio=10 / d, column_ratio=0.5, seed=seed)
        went = moved(workers, x.expand(2, d))
        assert int((went != 0).sum()) == 10
        torch.testing.assert_close(went[[3, 77]], x[[3, 77]], rtol=0, atol=1e-12)
        seen += went != 0
    seen[[3, 77]] = 0
    expected = 60 * 8 / 498
    assert int(seen.sum()) == 60 * 8
    assert seen.max() < expected + 6 * math.sqrt(expected)
    assert int((seen > 0).sum()) > 250


def test_heavymix_keeps_the_largest_where_too_many_seem_heavy():
    """k |x|^2 / k: more than k coordinates of a vector cannot be heavy, but estimates can: here all that share a cell."""
    d = 40
    x = torch.zeros(d, dtype=torch.float64)
    x[7], x[8] = 100.0, 30.0
    crowded = 0
    for seed in range(12):
        # one row of two cells: half of all coordinates have the estimate of the largest
        sketch = CountSketch(1, 2, seed)
        table = table_of(sketch, x)
        estimates = estimate(sketch, table, d)
        heavy = estimates.square() >= table.square().sum() / 4
        workers = cluster("sketched-sgd-theory", 1, [(d,)], ratio=0.1, rows=1, column_ratio=0.05, seed=seed)
        workers.step([[x]])
        crowded += int(heavy.sum()) > 4
        fetched = torch.argsort(-estimates.abs(), stable=True)[:4]  # ties to the lowest index
        expected = torch.zeros_like(x)
        expected[fetched] = x[fetched]
        assert torch.equal(-point(workers), expected)
    assert crowded > 6


@pytest.mark.parametrize("form", get_args(folds.Fold))
def test_gs_sgd_is_sketched_sgd_but_for_the_order_of_sums(form):
    """Integers: every order is exact, and both are equal to the bit; otherwise to rounding, whoever is which rank."""
    for n in (3, 4):
        a = cluster("sketched-sgd", n, momentum=0.5, **SIZES)
        b = cluster("gs-sgd", n, momentum=0.5, form=form, **SIZES)
        c = cluster("gs-sgd", n, momentum=0.5, form=form, **SIZES)
        for t in range(4):
            g = (grid(n, D, seed=t) * 64).round()
            assert torch.equal(moved(a, g), moved(b, g))
            moved(c, g.flip(0))
        torch.testing.assert_close(point(b), point(c), rtol=0, atol=1e-9)


def test_heavymix_finds_the_same_coordinates_where_squares_overflow() -> None:
    """Gradients of 2^70, whose squares are none of float32, take the steps of those of 1, times 2^70."""
    rows = grid(2, D, seed=5).float()
    steps = [
        moved(cluster("sketched-sgd-theory", 2, dtype=torch.float32, **SIZES), rows * scale)
        for scale in (1.0, 2.0**70)
    ]
    assert torch.equal(steps[0] * 2.0**70, steps[1])
