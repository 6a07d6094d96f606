"""The same methods on real gloo processes: equal to the simulation, the same ledger, checkpoints to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from reference_impls import DataParallelOptimizer
from tests.reference_impls import wide_problem
from tests.reference_impls.problem import LR, Net, batch, learning_rate, observed, take
from tests.reference_impls.ranks import Ranks
from tests.reference_impls.table import FIRST, OVER_GLOO, ROWS, STEPS, Row, tiered

pytestmark = pytest.mark.gloo
LONGER = 50


def _train(model: Net, optimizer: DataParallelOptimizer, rank: int, first: int, last: int) -> None:
    for step in range(first, last):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        optimizer.observe(**observed(step))
        x, y = batch(rank, step)
        take(optimizer, lambda x=x, y=y: (model(x) - y).square().mean().backward())


def _optimizer(model: Net, row: Row) -> DataParallelOptimizer:
    return DataParallelOptimizer(
        model.named_parameters(),
        row.algorithm,
        lr=LR,
        seed=3,
        bucket_bytes=256,
        timeout_s=20,
        **row.options,
    )


def _whole_and_resumed(rank: int, size: int, row: Row) -> list[list[torch.Tensor]]:
    """14 steps; then again, saved and reloaded into fresh objects after step 7."""
    whole = Net()
    optimizer = _optimizer(whole, row)
    _train(whole, optimizer, rank, 0, STEPS)
    optimizer.release()

    again = Net()
    optimizer = _optimizer(again, row)
    _train(again, optimizer, rank, 0, 7)
    state = optimizer.state_dict()
    optimizer.release()
    resumed = Net()
    optimizer = _optimizer(resumed, row)
    optimizer.load_state_dict(state)
    _train(resumed, optimizer, rank, 7, STEPS)
    optimizer.release()
    return [[p.detach().clone() for p in model.parameters()] for model in (whole, resumed)]


def _tier(row: Row, size: int, steps: int) -> Any:
    fast = row.id in OVER_GLOO and (size, steps) == (3, STEPS)
    return pytest.param(
        size, row, steps, id=f"{size}-{row.id}-{steps}", marks=() if fast else pytest.mark.full
    )


CASES = [
    *(_tier(row, 4, LONGER) for row in FIRST),
    *(_tier(row, 3, STEPS) for row in ROWS if row.id in OVER_GLOO or row not in FIRST),
]


@pytest.mark.parametrize(("size", "row", "steps"), CASES)
def test_simulation_equals_gloo(row: Row, size: int, steps: int, ranks: Callable[[int], Ranks]) -> None:
    """Rows that are exact at the end, the others after 14 steps, as the table says; the same bytes throughout."""
    size = min(size, row.largest)
    ranks(size).submit(wide_problem.train, row, steps, STEPS)
    try:
        early, late, sent = wide_problem.simulate(row, size, steps, STEPS)
    finally:
        results = ranks(size).results()
    for rank, found in enumerate(results):
        assert isinstance(found, dict), found
        if row.exact:
            for ours, theirs in zip(late[rank], found["late"], strict=True):
                assert torch.equal(ours, theirs)
        ours, theirs = (torch.cat([p.flatten() for p in x]) for x in (early[rank], found["early"]))
        differ = ~((ours - theirs).abs() <= row.close)
        assert differ.float().mean() <= row.flips
        assert [x for x in sent if x["rank"] == rank] == found["ledger"]
        assert len(found["ledger"]) > 0


RESUMED = ("lion-cub-1bit-selective", "zero-one-adam", "streaming-diloco-sgd", "powersgd-warm-up")
"""All rows resume in simulation (`test_conformance.py`)."""


@pytest.mark.parametrize("row", tiered(fast=[row for row in ROWS if row.id in RESUMED]))
def test_resuming_on_gloo_equals_the_uninterrupted_run(row: Row, ranks: Callable[[int], Ranks]) -> None:
    for found in ranks(3).run(_whole_and_resumed, row):
        assert isinstance(found, list), found
        for whole, resumed in zip(*found, strict=True):
            assert torch.equal(whole, resumed)
