"""The same methods on real gloo processes: equal to the simulation, with the same ledger. `test_frontends.py` resumes there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from reference_impls import DataParallelOptimizer
from tests.reference_impls.gloo import Ranks
from tests.reference_impls.problem import LR, Net, batch, learning_rate, observed, take
from tests.reference_impls.table import FIRST, OVER_GLOO, ROWS, STEPS, Row
from tests.reference_impls.trajectories import trajectory

pytestmark = pytest.mark.gloo


def _trained(rank: int, size: int, row: Row) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """What `trajectory` simulates: parameters of this rank at the end, and what it sent."""
    model = Net()
    optimizer = DataParallelOptimizer(
        model.named_parameters(), row.algorithm, lr=LR, seed=3, bucket_bytes=256, timeout_s=20, **row.options
    )
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        optimizer.observe(**observed(step))
        x, y = batch(rank, step)
        take(optimizer, lambda x=x, y=y: (model(x) - y).square().mean().backward())
    sent = optimizer.ledger.totals()
    optimizer.release()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), sent


def _tier(row: Row) -> Any:
    marks = () if row.id in OVER_GLOO else pytest.mark.full
    return pytest.param(3 if marks == () or row not in FIRST else 4, row, id=row.id, marks=marks)


@pytest.mark.parametrize(("size", "row"), [_tier(row) for row in ROWS])
def test_simulation_equals_gloo(size: int, row: Row, ranks: Callable[[int], Ranks]) -> None:
    """Rows that are exact to the bit, the others as the table says; the same bytes throughout."""
    size = min(size, row.largest)
    ranks(size).submit(_trained, row)
    try:
        simulated = trajectory(row, size)
    finally:
        results = ranks(size).results()
    for rank, (found, sent) in enumerate(results):
        expected = torch.cat([p.flatten() for p in simulated.parameters[-1][rank]])
        assert torch.equal(found, expected) or not row.exact
        assert (~((found - expected).abs() <= row.close)).float().mean() <= row.flips
        assert [x for x in simulated.ledger if x["rank"] == rank] == sent
        assert len(sent) > 0
