"""The same methods on real gloo processes: equal to the simulation, the same ledger, checkpoints to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reference_impls import DataParallelOptimizer
from tests.reference_impls.gloo import run_ranks
from tests.reference_impls.problem import LR, Net, batch, learning_rate, take, told
from tests.reference_impls.table import ROWS, STEPS, Row
from tests.reference_impls.test_properties import advance, build

pytestmark = pytest.mark.gloo
SIZE = 4


def _train(model: Net, optimizer: DataParallelOptimizer, rank: int, first: int, last: int) -> None:
    for step in range(first, last):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        optimizer.observe(**told(step))
        x, y = batch(rank, step)
        take(optimizer, lambda x=x, y=y: (model(x) - y).square().mean().backward())


def _optimizer(model: Net, row: Row, lag: int) -> DataParallelOptimizer:
    return DataParallelOptimizer(
        model.named_parameters(),
        row.algorithm,
        lr=LR,
        seed=3,
        bucket_bytes=256,
        lag=lag,
        check="each",
        **row.options,
    )


def _all_rows(rank: int, size: int) -> dict[str, Any]:
    """Every row: 14 steps; then again with another lag, saved and reloaded into fresh objects after step 7."""
    found = {}
    for row in ROWS:
        model = Net()
        optimizer = _optimizer(model, row, lag=1)
        _train(model, optimizer, rank, 0, STEPS)
        ledger = optimizer.ledger.frame(rank)
        optimizer.release()

        again = Net()
        optimizer = _optimizer(again, row, lag=3)
        _train(again, optimizer, rank, 0, 7)
        state = optimizer.state_dict()
        optimizer.release()
        resumed = Net()
        optimizer = _optimizer(resumed, row, lag=3)
        optimizer.load_state_dict(state)
        _train(resumed, optimizer, rank, 7, STEPS)
        optimizer.release()
        found[row.id] = (
            [p.detach().clone() for p in model.parameters()],
            [p.detach().clone() for p in resumed.parameters()],
            ledger,
        )
    return found


@pytest.fixture(scope="module")
def real() -> list[dict[str, Any]]:
    results = run_ranks(_all_rows, SIZE, timeout_s=240)
    for result in results:
        assert isinstance(result, dict), result
    return results


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_simulation_equals_gloo(row: Row, real: list[dict[str, Any]]) -> None:
    cluster = build(row, SIZE)
    advance(cluster, 0, STEPS)
    for rank in range(SIZE):
        for simulated, found in zip(cluster.parameters(rank), real[rank][row.id][0], strict=True):
            if row.exact:
                assert torch.equal(simulated, found)
            else:
                differ = (simulated - found).abs() > row.close
                assert differ.float().mean() <= row.flips


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_ledgers_agree(row: Row, real: list[dict[str, Any]]) -> None:
    cluster = build(row, SIZE)
    advance(cluster, 0, STEPS)
    for rank in range(SIZE):
        simulated = cluster.ledger.frame(rank)
        assert len(simulated) > 0
        assert simulated.equals(real[rank][row.id][2])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_resuming_on_gloo_with_another_lag_equals_the_uninterrupted_run(
    row: Row, real: list[dict[str, Any]]
) -> None:
    for rank in range(SIZE):
        for whole, resumed in zip(*real[rank][row.id][:2], strict=True):
            assert torch.equal(whole, resumed)
