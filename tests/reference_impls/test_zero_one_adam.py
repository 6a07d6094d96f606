"""0/1 Adam: its schedules, what replicas agree on and when, and its momentum as a mean weighted by learning rates."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from reference_impls import SimulatedCluster, create
from reference_impls.algorithm import Clock
from reference_impls.collectives import Group
from tests.reference_impls.exchanges import local_workers, train
from tests.reference_impls.test_apmsqueeze import (
    BETA1,
    BETA2,
    EPS,
    RATE,
    D,
    error,
    gradient,
    mean_gradient,
    start,
)

EXACT = {"compressor": "none"}


def cluster(size: int, **options: Any) -> SimulatedCluster:
    return SimulatedCluster("zero-one-adam", [start()], size, lr=RATE, seed=2, **options)


def advance(own: SimulatedCluster, first: int, last: int, rate: Any = None) -> None:
    for step in range(first, last):
        rows = [[gradient(step, rank)] for rank in range(own.world_size)]
        own.step(rows, lr=None if rate is None else rate(step))


def kinds(steps: int, **options: Any) -> list[str]:
    algorithm, clock, found = create("zero-one-adam", **options).algorithm, Clock(Group("world", 0, 2)), []
    for step in range(steps):
        clock.step = step
        kind = algorithm.plan(clock)
        assert isinstance(kind, str)
        found.append(kind)
    return found


@pytest.mark.parametrize(("steps", "refreshes"), [(1000, 96), (12500, 153), (100000, 201)])
def test_refreshes_of_the_variance_at_the_published_kappa(steps: int, refreshes: int) -> None:
    found = kinds(steps, variance_steps=steps, local_growth_steps=1)
    assert found.count("variance") == refreshes
    assert set(found) == {"variance", "gradient"}


def test_gaps_double_after_every_kappa_refreshes() -> None:
    found = kinds(40, variance_steps=40, refreshes_per_gap=3, local_growth_steps=1)
    at = [step for step, kind in enumerate(found) if kind == "variance"]
    assert [b - a for a, b in itertools.pairwise(at)] == [1, 1, 1, 2, 2, 2, 4, 4, 4, 8, 8]


def test_rounds_double_up_to_the_longest_and_the_last_one_ends_with_the_training() -> None:
    found = kinds(40, variance_steps=2, local_growth_steps=6, longest_round=5, total_steps=40)
    ends = [1, *(step for step, kind in enumerate(found) if kind == "average")]
    lengths = [b - a for a, b in itertools.pairwise(ends)]
    assert lengths == [1, 1, 1, 1, 1, 1, 2, 2, 2, 4, 4, 5, 5, 5, 3]
    assert found[-1] == "average"
    assert found[:2] == ["variance", "variance"]


def test_shares_of_the_training_are_those_published() -> None:
    algorithm = create("zero-one-adam", total_steps=125_000).algorithm
    assert algorithm.local_from == 12_500
    lengths = [algorithm.round_length(12_500 + k * 32_500) for k in range(4)]
    assert lengths == [1, 2, 4, 8]
    assert create("zero-one-adam", total_steps=100, lr_warmup_steps=30).algorithm.local_from == 30


@pytest.mark.parametrize("size", [1, 4])
def test_with_rounds_of_one_step_and_an_exact_mean_it_is_momentum_in_a_frozen_metric(size: int) -> None:
    own = cluster(size, variance_steps=5, local_growth_steps=1000, weight_decay=0.1, **EXACT)
    x, m, v = start(), torch.zeros(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)
    for step in range(15):
        advance(own, step, step + 1)
        g = mean_gradient(step, size)
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g if step < 5 else v
        x = x * (1 - RATE * 0.1) - RATE * m / (v.sqrt() + EPS)
        assert own.kind == ("variance" if step < 5 else "average")
        torch.testing.assert_close(own.parameters(0)[0], x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3])
def test_compressed_gradients_move_the_momentum_and_not_the_variance(size: int) -> None:
    """In the variance phase; one worker's gradient counts at every step."""
    own = cluster(size, variance_steps=100, first_gap=100, local_growth_steps=1)
    advance(own, 0, 1)
    v = own.state(0, "variance")[0].clone()
    m, e = own.state(0, "momentum")[0].clone(), error(own)
    for step in range(1, 20):
        advance(own, step, step + 1)
        assert own.kind == "gradient"
        m = BETA1 * m + (1 - BETA1) * (mean_gradient(step, size) + e - error(own))
        e = error(own)
        torch.testing.assert_close(own.state(0, "momentum")[0], m, rtol=0, atol=1e-12)
    assert torch.equal(own.state(0, "variance")[0], v)
    assert (e.abs().max() > 0) == (size > 1)


def test_the_momentum_after_a_round_is_the_mean_of_the_rounds_momenta_weighted_by_rates() -> None:
    """With an exact mean: m = sum lr m_h / sum lr over steps and workers; x moved by sum lr m_h."""
    size, length = 3, 4

    def rate(step: int) -> float:
        return RATE / (1 + step)

    own = cluster(
        size, variance_steps=4, first_round=length, longest_round=length, local_growth_steps=1, **EXACT
    )
    advance(own, 0, 4, rate)
    m0, x0, v = (
        own.state(0, "momentum")[0].clone(),
        own.parameters(0)[0].clone(),
        own.state(0, "variance")[0],
    )
    total, weights = torch.zeros(D, dtype=torch.float64), 0.0
    local = [m0.clone() for _ in range(size)]
    for step in range(4, 4 + length):
        for rank in range(size):
            local[rank] = BETA1 * local[rank] + (1 - BETA1) * gradient(step, rank)
            total += rate(step) * local[rank] / size
        weights += rate(step)
        advance(own, step, step + 1, rate)
    assert own.kind == "average"
    torch.testing.assert_close(own.state(0, "momentum")[0], total / weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(own.parameters(2)[0], x0 - total / (v.sqrt() + EPS), rtol=0, atol=1e-12)
    assert float(own.state(0, "rates")[0]["0"]) == 0
    assert float(own.state(0, "moved")[0].abs().max()) == 0


def test_what_the_averages_lose_is_kept() -> None:
    """Compressed: sum over rounds of ubar = sum of mean u + E_0 - E_T, the errors begun anew at the local phase."""
    size, length = 4, 3
    own = cluster(size, variance_steps=6, refreshes_per_gap=2, first_round=length, longest_round=length,
                  local_growth_steps=1)  # fmt: skip
    advance(own, 0, 6)
    assert error(own).abs().max() > 0
    v, x0 = own.state(0, "variance")[0], own.parameters(0)[0].clone()
    given, momenta = torch.zeros(D, dtype=torch.float64), [own.state(0, "momentum")[0].clone()] * size
    for step in range(6, 24):
        momenta = [BETA1 * m + (1 - BETA1) * gradient(step, r) for r, m in enumerate(momenta)]
        given += RATE * torch.stack(momenta).mean(0)
        advance(own, step, step + 1)
        if own.kind == "average":
            momenta = [own.state(0, "momentum")[0].clone()] * size
    moved = (x0 - own.parameters(0)[0]) * (v.sqrt() + EPS)
    torch.testing.assert_close(moved, given - error(own), rtol=0, atol=1e-10)


def test_rates_are_those_of_each_group() -> None:
    """Two groups with rates 5 : 1; the momentum after a round does not depend on the rate where it is constant."""
    groups = [{"params": [start()], "param_names": [str(i)], "lr": lr} for i, lr in enumerate((0.1, 0.02))]
    own = local_workers("zero-one-adam", groups, 2, variance_steps=3, first_round=3, longest_round=3,
               local_growth_steps=1, **EXACT)  # fmt: skip
    for step in range(6):
        train(own, lambda rank, step=step: gradient(step, rank).repeat(2))
    (shards,) = [[w.shards for w in own.workers]]
    momenta = torch.cat([s.state["momentum"] for s in shards[0]])
    torch.testing.assert_close(momenta[:D], momenta[D:], rtol=0, atol=1e-12)
    moves = torch.cat([s.params for s in shards[1]]) - start().repeat(2)
    torch.testing.assert_close(moves[:D], 5 * moves[D:], rtol=0, atol=1e-12)
