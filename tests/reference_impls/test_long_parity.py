"""A thousand steps on real processes have the bits of the simulation, where no floating-point sum is reduced."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reference_impls import DataParallelOptimizer, SimulatedCluster
from tests.reference_impls.gloo import run_ranks
from tests.reference_impls.problem import Net, batch, gradients, names

pytestmark = [pytest.mark.gloo, pytest.mark.slow]
SIZE, STEPS, PEAK, BUCKET_BYTES = 2, 1000, 0.01, 1 << 10

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "lion-cub-1bit": ("lion-cub-1bit", {"momentum_sync": "never"}),
    "lion-cub-pbit": ("lion-cub-pbit", {}),
    "global-qsgd": ("global-qsgd", {"momentum": 0.9}),
    "global-qsgd-exponential": ("global-qsgd", {"dithering": "exponential"}),
    "apmsqueeze-from-the-start": ("apmsqueeze", {"warmup_steps": 0, "initial_variance": 1.0}),
}


def rate(step: int) -> float:
    return PEAK * (1 - step / STEPS)


def _train(rank: int, size: int, name: str) -> tuple[list[torch.Tensor], Any]:
    algorithm, options = METHODS[name]
    model = Net()
    optimizer = DataParallelOptimizer(
        model.named_parameters(), algorithm, lr=PEAK, seed=3, bucket_bytes=BUCKET_BYTES, **options
    )
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.zero_grad()
        x, y = batch(rank, step)
        (model(x) - y).square().mean().backward()
        optimizer.step()
    optimizer.release()
    return [p.detach() for p in model.parameters()], optimizer.ledger.totals()


@pytest.mark.parametrize("name", METHODS)
def test_a_thousand_steps_are_equal_to_the_bit(name: str) -> None:
    algorithm, options = METHODS[name]
    cluster = SimulatedCluster(
        algorithm,
        list(Net().parameters()),
        SIZE,
        lr=PEAK,
        seed=3,
        names=names(),
        bucket_bytes=BUCKET_BYTES,
        **options,
    )
    for step in range(STEPS):
        cluster.step([gradients(cluster.parameters(r), r, step) for r in range(SIZE)], lr=rate(step))
    simulated = cluster.ledger.totals()
    for rank, (parameters, ledger) in enumerate(run_ranks(_train, SIZE, name, timeout_s=240)):
        for ours, theirs in zip(cluster.parameters(rank), parameters, strict=True):
            assert torch.equal(ours, theirs)
        assert [row for row in simulated if row["rank"] == rank] == ledger
    assert all(torch.isfinite(p).all() for p in cluster.parameters(0))
    assert any(not torch.equal(p, q) for p, q in zip(cluster.parameters(0), Net().parameters(), strict=True))
