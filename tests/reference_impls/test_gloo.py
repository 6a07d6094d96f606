"""The same methods on real gloo processes: equal to the simulation, with the same ledger. `test_frontends.py` resumes there."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from reference_impls import DataParallelOptimizer
from reference_impls.runtime.messages import Messages
from tests.reference_impls.gloo import Ranks
from tests.reference_impls.problem import LR, Net, train
from tests.reference_impls.table import FIRST, OVER_GLOO, ROWS, STEPS, Row
from tests.reference_impls.trajectories import trajectory

pytestmark = pytest.mark.gloo


def _trained(rank: int, size: int, row: Row) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """What `trajectory` simulates: parameters of this rank at the end, and what it sent."""
    model = Net()
    optimizer = DataParallelOptimizer(
        model.named_parameters(), row.algorithm, lr=LR, seed=3, bucket_bytes=256, timeout_s=20, **row.options
    )
    train(model, optimizer, rank, 0, STEPS)
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


def _impatient(rank: int, size: int) -> tuple[list[int], int]:
    """What comes from ranks 0, 1 and 3, the first of which is late, and how often the others waited in vain."""
    members = [0, 1, 3]
    group = dist.new_group(members)
    if rank not in members:
        return [], 0
    time.sleep(0.5 * (rank == 0))
    sent, came = torch.tensor([10 * rank + peer for peer in members]), torch.zeros(3, dtype=torch.int64)
    (work,), in_vain = Messages(group, gloo=True).all_to_all(came, sent), 0
    while not work.is_completed():
        try:
            work.wait(timedelta(milliseconds=50))
        except RuntimeError:
            in_vain += 1
    work.wait()
    return came.tolist(), in_vain


def test_an_all_to_all_in_a_group_waits_for_who_is_late(ranks: Callable[[int], Ranks]) -> None:
    (zero, _), (one, waited), two, (three, _) = ranks(4).run(_impatient)
    assert (zero, one, two, three) == ([0, 10, 30], [1, 11, 31], ([], 0), [3, 13, 33])
    assert waited > 3


def _late_between_rounds(rank: int, size: int) -> float:
    """Steps whose sums are made by messages of pairs, before one of which a rank is late by more than a poll of the others."""
    model = torch.nn.Linear(3, 2)
    optimizer = DataParallelOptimizer(
        model, "global-qsgd", dithering="exponential", optimizer="sgd", lr=LR, timeout_s=8
    )
    for step in range(3):
        time.sleep(2.0 * (rank == 1 and step == 1))
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.release()
    return float(model.weight.sum())


def test_a_rank_that_is_late_is_waited_for(ranks: Callable[[int], Ranks]) -> None:
    one, other = ranks(2).run(_late_between_rounds)
    assert one == other
