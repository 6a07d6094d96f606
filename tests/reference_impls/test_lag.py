"""LAG: lazy without noise, sends all of it otherwise, and keeps the mean of what was sent last."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster

D, N = 40, 4
CURVATURE = torch.linspace(0.05, 1, D, dtype=torch.float64)


def cluster(lr: float = 0.5, **options: object) -> SimulatedCluster:
    return SimulatedCluster("lag", [torch.ones(D, dtype=torch.float64)], N, lr=lr, **options)


def gradient(x: Tensor, rank: int, noise: float = 0.0, step: int = 0) -> Tensor:
    """Workers differ in curvature: those of small curvature change slowly."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return CURVATURE * 10.0 ** (-rank) * x + noise * torch.randn(D, generator=generator, dtype=torch.float64)


def train(trained: SimulatedCluster, steps: int, noise: float = 0.0) -> None:
    for step in range(steps):
        trained.step([[gradient(trained.parameters(r)[0], r, noise, step)] for r in range(N)])


def uploads(trained: SimulatedCluster) -> int:
    return int(trained.state(0, "uploads")[0]["0"])


def test_without_a_memory_of_moves_it_is_the_all_reduce() -> None:
    lazy = cluster(xi=0.0)
    plain = SimulatedCluster("allreduce-sgd", [torch.ones(D, dtype=torch.float64)], N, lr=0.5)
    train(lazy, 50, noise=0.1)
    train(plain, 50, noise=0.1)
    assert uploads(lazy) == 50 * N
    torch.testing.assert_close(lazy.parameters(0)[0], plain.parameters(0)[0], rtol=0, atol=1e-12)


def test_the_mean_is_that_of_the_gradients_sent_last() -> None:
    trained = cluster()
    for _ in range(30):
        train(trained, 1)
        sent = torch.stack([trained.state(r, "sent")[0] for r in range(N)])
        torch.testing.assert_close(trained.state(2, "mean")[0], sent.mean(0), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("xi", "depth"), [(0.1, 10), (0.5, 2), (0.02, 1)])
def test_the_rule_written_down_with_a_server_gives_the_same(xi: float, depth: int) -> None:
    """The paper's form: the objective is a sum over workers, the step a = lr / n, the server keeps the sum of what was
    sent last; worker m is silent if |change|^2 < (1 / (a n)^2) xi sum of the last `depth` squared moves."""
    lr = 0.5
    trained = cluster(lr, xi=xi, depth=depth)
    x, a = torch.ones(D, dtype=torch.float64), lr / N
    last = [torch.zeros(D, dtype=torch.float64) for _ in range(N)]
    total, moves, sends = torch.zeros(D, dtype=torch.float64), [], 0
    for _ in range(60):
        train(trained, 1)
        threshold = xi * sum(moves[-depth:]) / (a * N) ** 2
        for m in range(N):
            change = gradient(x, m) - last[m]
            if not moves or not float(change.square().sum()) < threshold:
                last[m], total, sends = last[m] + change, total + change, sends + 1
        before, x = x, x - a * total
        moves.append(float((x - before).square().sum()))
        torch.testing.assert_close(trained.parameters(1)[0], x, rtol=0, atol=1e-11)
        assert uploads(trained) == sends
    assert N < sends < 60 * N


def test_noise_makes_everybody_send() -> None:
    trained = cluster()
    train(trained, 100, noise=1.0)
    assert uploads(trained) == 100 * N


def test_the_condition_looks_back_over_the_last_moves_only() -> None:
    """One move long ago does not excuse silence: depth 1 forgets it after the next step."""
    patient, forgetful = cluster(xi=0.1, depth=10), cluster(xi=0.1, depth=1)
    for trained in (patient, forgetful):
        for scale in (1.0, 0.01, 0.02):  # a long move, then short ones
            trained.step([[torch.full((D,), scale, dtype=torch.float64)]] * N)
    assert uploads(patient) < uploads(forgetful)
