"""Each negative control does what its name says; that without communication stands among local updates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from reference_impls import SimulatedCluster
from reference_impls.core.optimizers import Lion, local_optimizer
from tests.reference_impls.local_training import (
    RATE,
    D,
    advance,
    cluster,
    equal_on_all_ranks,
    gradient,
    point,
    start,
    trained,
)

STEPS, SIZE = 12, 4


@pytest.mark.parametrize(("optimizer", "hyper"), [("sgd", {"momentum": 0.9}), ("adamw", {})])
def test_one_worker_is_a_lone_run_on_the_data_of_rank_0(optimizer: str, hyper: dict[str, Any]) -> None:
    ours = trained("control-one-worker", SIZE, STEPS, optimizer=optimizer, total_steps=STEPS, **hyper)
    own = torch.nn.Parameter(start())
    alone = local_optimizer(optimizer).build([{"params": [own], "lr": RATE, **hyper}])
    for step in range(STEPS):
        own.grad = gradient(own.detach(), step, 0)
        alone.step()
    for rank in range(SIZE):
        assert torch.equal(point(ours, rank), own.detach())


def test_random_k_applies_the_mean_of_its_share_and_nothing_elsewhere() -> None:
    """SGD at rate 1 from 0 with gradients of 1, 2 and 3: what is applied in a step is the share sent."""
    d, steps, fraction = 20_000, 5, 0.1
    ours = SimulatedCluster(
        "control-random-k", [torch.zeros(d // 2), torch.zeros(d // 2)], 3, lr=1.0, fraction=fraction
    )
    chosen = []
    for _ in range(steps):
        before = point(ours)
        ours.step([[torch.full((d // 2,), 1.0 + r)] * 2 for r in range(3)])
        assert equal_on_all_ranks(ours)
        applied = before - point(ours)
        chosen.append(applied != 0)
        some = applied[chosen[-1]]
        torch.testing.assert_close(some, torch.full_like(some, 2.0), rtol=0, atol=1e-5)
    count = [int(c.sum()) for c in chosen]
    assert abs(sum(count) - fraction * d * steps) < 5 * math.sqrt(fraction * (1 - fraction) * d * steps)
    assert ours.ledger.frame(0).payload_bytes.tolist() == [4 * c for c in count]
    together = int((chosen[0] & chosen[1]).sum())  # steps choose independently
    assert abs(together - fraction**2 * d) < 5 * math.sqrt(fraction**2 * d) + 5


@pytest.mark.parametrize("size", [1, 5])
def test_one_rank_sign_is_lion_on_the_gradients_of_rank_0(size: int) -> None:
    ours = cluster("control-one-rank-sign", size, weight_decay=0.1)
    own = torch.nn.Parameter(start())
    lion = Lion([own], lr=RATE, weight_decay=0.1)
    for step in range(STEPS):
        own.grad = gradient(own.detach(), step, 0)
        lion.step()
        advance(ours, step, step + 1)
        for rank in range(size):
            assert torch.equal(point(ours, rank), own.detach())
    sent = ours.ledger.frame(0).wire_bytes.sum()
    assert sent == pytest.approx(STEPS * 2 * (size - 1) / size * (math.ceil(D / 8) + 1), rel=1e-12)
