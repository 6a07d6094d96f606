"""signSGD and Signum: what they equal, what their votes mean, what they cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create

D, N, LR = 50, 5, 0.1


def cluster(algorithm: str, n: int = N, **options: Any) -> SimulatedCluster:
    return SimulatedCluster(algorithm, [torch.ones(D, dtype=torch.float64)], n, lr=LR, **options)


def gradients(step: int, n: int = N) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(n, D, generator=generator, dtype=torch.float64) + 0.5


def train(trained: SimulatedCluster, steps: int = 12) -> Tensor:
    for step in range(steps):
        trained.step([[g] for g in gradients(step, trained.world_size)])
    return trained.parameters(0)[0]


def test_signsgd_moves_by_the_majority_of_signs() -> None:
    x = torch.ones(D, dtype=torch.float64)
    for step in range(12):
        x = x * (1 - LR * 0.2) - LR * gradients(step).sign().sum(0).sign()
    assert torch.equal(train(cluster("signsgd", weight_decay=0.2)), x)


def test_signum_votes_with_momenta_that_stay_local() -> None:
    trained = cluster("signum", momentum=0.7)
    x, m = torch.ones(D, dtype=torch.float64), torch.zeros(N, D, dtype=torch.float64)
    for step in range(12):
        m = m.lerp(gradients(step), 1 - 0.7)
        x = x - LR * m.sign().sum(0).sign()
    assert torch.equal(train(trained), x)
    assert torch.equal(trained.state(3, "momentum")[0], m[3])


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_signum_is_distributed_lion_with_equal_betas(beta: float) -> None:
    lion = train(cluster("distributed-lion-mavo", betas=(beta, beta)))
    assert torch.equal(train(cluster("signum", momentum=beta)), lion)
    if beta == 0:
        assert torch.equal(train(cluster("signsgd")), lion)


def test_what_is_sent() -> None:
    """One bit up, one down, and one vote more that says whether anything is finite: 2 (n-1)/n ceil((d+1) / 8n) 8n bits."""
    trained = cluster("signsgd", n=4)
    train(trained, 1)
    sent = trained.ledger.frame()["wire_bytes"].sum()
    assert sent == 2 * 3 / 4 * 8 == create("signsgd").algorithm.wire_bytes([(D,)], 4)["step"]
