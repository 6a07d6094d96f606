"""The same methods on real gloo processes: equal to the simulation, the same ledger, checkpoints to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.reference_impls import wide_problem
from tests.reference_impls.gloo import Ranks
from tests.reference_impls.table import FIRST, OVER_GLOO, ROWS, STEPS, Row

pytestmark = pytest.mark.gloo
LONGER = 50


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
