"""L-GreCo: the dynamic programming against all choices, the errors against real ones, ranks that follow the layers."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.algorithms.l_greco import cheapest

ALL = {"min_compression_rate": 0.0}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def totals(layers: list, chosen: list[int]) -> tuple[float, float]:
    """(cost, error)."""
    cost, error = (sum(layer[i][k] for layer, i in zip(layers, chosen, strict=True)) for k in (0, 1))
    return cost, error


@pytest.mark.parametrize("seed", range(12))
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


@pytest.mark.parametrize("bins", [1, 7, 1000])
@pytest.mark.parametrize("seed", range(6))
def test_the_budget_holds_and_nothing_dearer_is_taken_whatever_the_bins(bins: int, seed: int) -> None:
    draw = random.Random(seed)
    layers = [
        [(k * (r + 1.0), draw.random() / (r + 1)) for r in range(6)]
        for k in (draw.randint(1, 50) for _ in range(9))
    ]
    usual = [3] * 9
    cost, budget = totals(layers, usual)
    found = totals(layers, cheapest(layers, budget, usual, bins))
    assert found[1] <= budget
    assert found[0] <= cost
    assert bins < 1000 or found[0] < cost


# ---- method --------------------------------------------------------------------------------------------------------


def cluster(n: int, *shapes: tuple[int, ...], **options: object) -> SimulatedCluster:
    start = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    return SimulatedCluster("l-greco", start, n, lr=1.0, **options)


def ranks(members: SimulatedCluster) -> list[dict[str, int]]:
    """By rank of the training: parameter name -> rank of its matrix."""
    return [
        {k.removeprefix("rank of "): v for k, v in w.clock.counters.items() if k.startswith("rank of ")}
        for w in members._workers
    ]


def test_the_errors_are_those_that_each_rank_would_have_made() -> None:
    """|M - M_r|^2 - |M - M_top|^2 for the same first Q, rank by rank."""
    m = normal(30, 20)
    measured = cluster(2, (30, 20), rank=2, max_rank=6, **ALL)
    measured.step([[m], [m]])
    errors = measured.method.algorithm.errors(measured.state(0, "q")[0]["0"])
    assert len(errors) == 7
    off = [float(m.square().sum())]
    for r in range(1, 7):
        members = SimulatedCluster("powersgd", [torch.zeros_like(m)], 2, lr=1.0, rank=r, **ALL)
        members.step([[m], [m]])
        off.append(float((m + members.parameters(0)[0]).square().sum()))
    assert errors == pytest.approx([x - off[-1] for x in off], rel=1e-9, abs=1e-9)


def test_ranks_follow_the_layers() -> None:
    """A layer of rank 1 needs no more than rank 1, and what that saves in error goes where it is missing."""
    low = 3 * normal(40, 1) @ normal(1, 40, seed=1)
    high = normal(40, 6, seed=2) @ normal(6, 40, seed=3)
    members = cluster(3, (40, 40), (40, 40), (7,), rank=3, max_rank=6, choose_every=5, **ALL)
    vector = torch.ones(7, dtype=torch.float64)
    kinds = []
    for _ in range(7):
        members.step([[low, high, vector]] * 3)
        kinds.append(members.kind)
    assert kinds == ["measure", *["compressed"] * 4, "measure", "compressed"]
    assert all(found == {"0": 1, "1": 3} for found in ranks(members))
    assert torch.equal(members.parameters(0)[2], -7 * vector)


@pytest.mark.parametrize("n", [2, 3])
def test_all_workers_choose_the_same_from_different_gradients(n: int) -> None:
    members = cluster(
        n, (12, 9), (5, 20), (30, 6), rank=2, max_rank=5, choose_every=2, bucket_bytes=800, **ALL
    )
    said = members.method.algorithm.wire_bytes([(12, 9), (5, 20), (30, 6)], n)
    for t in range(6):
        members.step([[normal(*s, seed=100 * t + i) for s in ((12, 9), (5, 20), (30, 6))] for i in range(n)])
        assert all(found == ranks(members)[0] for found in ranks(members))
        sent = sum(r["wire_bytes"] for r in members.ledger.frame().to_dict("records") if r["step"] == t) / 2
        if members.kind == "measure":
            assert sent == pytest.approx(said["measure"])
        else:
            assert said["compressed"][0] - 1e-9 <= sent <= said["compressed"][1] + 1e-9


def test_one_rank_for_all_is_powersgd_between_choices() -> None:
    """min_rank = rank = max_rank: the same bits as PowerSGD of this rank in every step."""
    shapes = [(12, 9), (6,)]
    one = cluster(2, *shapes, rank=2, min_rank=2, max_rank=2, choose_every=3, **ALL)
    other = SimulatedCluster(
        "powersgd", [torch.zeros(s, dtype=torch.float64) for s in shapes], 2, lr=1.0, rank=2, **ALL
    )
    for t in range(5):
        grads = [[normal(*s, seed=10 * t + i) for s in shapes] for i in range(2)]
        one.step(grads)
        other.step(grads)
    assert all(torch.equal(x, y) for x, y in zip(one.parameters(1), other.parameters(1), strict=True))
