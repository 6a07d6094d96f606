"""LAG: the rule written down with a server, at every length of its memory, and without one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster

D, N = 40, 4
CURVATURE = torch.linspace(0.05, 1, D, dtype=torch.float64)


def cluster(lr: float = 0.5, **options: object) -> SimulatedCluster:
    return SimulatedCluster("lag", [torch.ones(D, dtype=torch.float64)], N, lr=lr, **options)


def gradient(x: Tensor, rank: int) -> Tensor:
    """Workers differ in curvature: those of small curvature change slowly."""
    return CURVATURE * 10.0 ** (-rank) * x


def uploads(trained: SimulatedCluster) -> int:
    return int(trained.state(0, "uploads")[0]["0"])


@pytest.mark.parametrize(("xi", "depth"), [(0.1, 10), (0.5, 2), (0.02, 1), (0.0, 10)])
def test_the_rule_written_down_with_a_server_gives_the_same(xi: float, depth: int) -> None:
    """The paper's form: the objective is a sum over workers, the step a = lr / n, the server keeps the sum of what was
    sent last; worker m is silent if |change|^2 < (1 / (a n)^2) xi sum of the last `depth` squared moves."""
    lr = 0.5
    trained = cluster(lr, xi=xi, depth=depth)
    x, a = torch.ones(D, dtype=torch.float64), lr / N
    last = [torch.zeros(D, dtype=torch.float64) for _ in range(N)]
    total, moves, sends = torch.zeros(D, dtype=torch.float64), [], 0
    for _ in range(60):
        trained.step([[gradient(trained.parameters(r)[0], r)] for r in range(N)])
        threshold = xi * sum(moves[-depth:]) / (a * N) ** 2
        for m in range(N):
            change = gradient(x, m) - last[m]
            if not moves or not float(change.square().sum()) < threshold:
                last[m], total, sends = last[m] + change, total + change, sends + 1
        before, x = x, x - a * total
        moves.append(float((x - before).square().sum()))
        torch.testing.assert_close(trained.parameters(1)[0], x, rtol=0, atol=1e-11)
        assert uploads(trained) == sends
    assert N < sends < 60 * N or (xi == 0 and sends == 60 * N)
