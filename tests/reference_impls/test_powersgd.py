"""PowerSGD on simulated workers: the hook's own arithmetic, numbers of any kind; L-GreCo."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

from reference_impls import SimulatedCluster, create
from reference_impls.algorithms.powersgd import cheapest, compresses, orthonormal, refreshed
from reference_impls.core.compute import Key
from tests.reference_impls import averages
from tests.support import each

ALL = {"min_compression_rate": 0.0}


normal = partial(averages.normal, dtype=torch.float64)


def cluster(n, *shapes, name="powersgd", dtype=torch.float64, **options):
    return SimulatedCluster(name, [torch.zeros(shape, dtype=dtype) for shape in shapes], n, lr=1.0, **options)


def step(members: SimulatedCluster, grads: list[list[Tensor]]) -> list[Tensor]:
    """One step of SGD with lr 1: what was applied, tensor by tensor, after a check that all ranks applied the same."""
    before = [p.clone() for p in members.parameters(0)]
    members.step(grads)
    for rank in range(1, members.world_size):
        for one, other in zip(members.parameters(0), members.parameters(rank), strict=True):
            assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    return [b - p for b, p in zip(before, members.parameters(0), strict=True)]


@each("r", [1, 4])
def test_the_same_arithmetic_as_the_hook_of_torch(r: int) -> None:
    """Same Q at the start: torch's orthogonalisation, its order of operations, warm start and error feedback."""
    n, a, b = 3, 24, 18
    members = cluster(n, (a, b), rank=r, **ALL)
    key = Key.of(seed=0, step=0, stage="gradient-q", name="0")
    q = refreshed(torch.zeros(r, b, dtype=torch.float64), key).T.contiguous()
    lacks = torch.zeros(n, a, b, dtype=torch.float64)
    for t in range(4):
        g = normal(n, a, b, seed=10 + t)
        (applied,) = step(members, [[x] for x in g])
        m = g + lacks
        if t:
            _orthogonalize(q.unsqueeze(0), 0)
        p = (m @ q).sum(0)
        _orthogonalize(p.unsqueeze(0), 0)
        q = (m.transpose(1, 2) @ p).sum(0) / n
        torch.testing.assert_close(applied, p @ q.T, rtol=1e-9, atol=1e-12)
        lacks = m - p @ q.T


def test_a_matrix_of_zeros_is_followed_again_when_it_moves() -> None:
    for r in (1, 2, 3):
        members = cluster(2, (20, 10), rank=r, **ALL)
        zero = torch.zeros(20, 10, dtype=torch.float64)
        for _ in range(2):
            (applied,) = step(members, [[zero], [zero]])
            assert torch.equal(applied, zero)
        m = normal(20, 1) @ normal(1, 10, seed=1)
        (applied,) = step(members, [[m], [m]])
        torch.testing.assert_close(applied, m)


@each("scale", [1e-42, 1e-20, 1e30])
def test_any_magnitude_is_followed(scale: float) -> None:
    """float32: neither squares nor Q = M^T P over- or underflow, step after step."""
    members = cluster(2, (16, 12), rank=2, dtype=torch.float32, **ALL)
    m = (normal(16, 1) @ normal(1, 12, seed=1)).float() * scale
    for _ in range(4):
        (applied,) = step(members, [[m], [m]])
        assert float((applied.double() - m.double()).norm()) <= 0.2 * float(m.double().norm())
        assert scale < 1e-40 or torch.allclose(applied, m, rtol=1e-3, atol=float(m.abs().max()) * 1e-5)


def test_who_is_compressed() -> None:
    assert compresses(100, 100, 24, 2.0)
    assert not compresses(100, 100, 25, 2.0)  # 5000 instead of 10000: not by more than 2
    method = create("powersgd", rank=4).algorithm
    assert method.size_of((100, 3), 4) is None
    assert create("powersgd", rank=4, min_compression_rate=0.5).algorithm.size_of((100, 3), 4) == (100, 3, 3)


@each("dtype", [torch.float32, torch.float64])
@each(("r", "a"), [(1, 1), (2, 5), (4, 4), (4, 1500), (8, 30)])
def test_orthonormal_rows(dtype: torch.dtype, r: int, a: int) -> None:
    p = normal(r, a, dtype=dtype)
    p[-1] = p[0] + 1e-3 * p[-1]  # badly conditioned
    q = orthonormal(p)
    tiny = 20 * torch.finfo(dtype).eps
    assert (q @ q.T - torch.eye(r, dtype=dtype)).abs().max() < tiny
    assert (p - p @ q.T @ q).norm() < 10 * tiny * p.norm()
    for first in range(1, r):
        assert torch.equal(orthonormal(p[:first]), q[:first])
    both = torch.stack([p, p.flip(0)])
    assert torch.equal(orthonormal(both)[0], q)
    assert torch.equal(both[0], p)


# ---- L-GreCo: the dynamic programming against all choices, ranks that follow the layers ------------------------------------


def totals(layers: list, chosen: list[int]) -> tuple[float, float]:
    """(cost, error)."""
    cost, error = (sum(layer[i][k] for layer, i in zip(layers, chosen, strict=True)) for k in (0, 1))
    return cost, error


@pytest.mark.parametrize("seed", range(4))
def test_the_cheapest_of_all_choices_within_the_budget(seed: int) -> None:
    """Whole errors and as many bins as the budget: nothing is rounded, and the optimum must be found."""
    draw = random.Random(seed)
    layers = []
    for _ in range(4):
        size, errors = draw.randint(1, 9), sorted((draw.randint(0, 40) for _ in range(4)), reverse=True)
        layers.append([(float(size * (r + 1)), float(error)) for r, error in enumerate(errors)])
    usual = [2] * 4
    budget = totals(layers, usual)[1]
    chosen = cheapest(layers, budget, usual, bins=max(int(budget), 1))
    allowed = [
        totals(layers, list(way))[0]
        for way in itertools.product(range(4), repeat=4)
        if totals(layers, list(way))[1] <= budget
    ]
    assert totals(layers, chosen)[1] <= budget
    assert totals(layers, chosen)[0] == min(allowed)


def test_the_errors_are_those_that_each_rank_would_have_made() -> None:
    """|M - M_r|^2 - |M - M_top|^2 for the same first Q, rank by rank."""
    m = normal(30, 20)
    measured = cluster(2, (30, 20), name="l-greco", rank=2, max_rank=6, **ALL)
    measured.step([[m], [m]])
    errors = measured.method.algorithm.errors(measured.state(0, "q")[0]["0"])
    assert len(errors) == 7
    off = [float(m.square().sum())]
    for r in range(1, 7):
        members = cluster(2, (30, 20), rank=r, **ALL)
        members.step([[m], [m]])
        off.append(float((m + members.parameters(0)[0]).square().sum()))
    assert errors == pytest.approx([x - off[-1] for x in off], rel=1e-9, abs=1e-9)
