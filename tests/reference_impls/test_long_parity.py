"""A thousand steps on real processes have the bits of the simulation, where no floating-point sum is reduced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.reference_impls import wide_problem
from tests.reference_impls.ranks import Ranks
from tests.reference_impls.table import ROWS, Row

pytestmark = [pytest.mark.gloo, pytest.mark.full]
STEPS = 1000
EXACT = [row for row in ROWS if row.exact]


@pytest.mark.parametrize("row", EXACT, ids=lambda row: row.id)
@pytest.mark.parametrize("size", [2, 3])
def test_a_thousand_steps_are_equal_to_the_bit(row: Row, size: int, ranks: Callable[[int], Ranks]) -> None:
    size = min(size, row.largest)
    ranks(size).submit(wide_problem.train, row, STEPS, STEPS)
    try:
        _, late, sent = wide_problem.simulate(row, size, STEPS, STEPS)
    finally:
        results = ranks(size).results(timeout_s=240)
    for rank, found in enumerate(results):
        assert isinstance(found, dict), found
        for ours, theirs in zip(late[rank], found["late"], strict=True):
            assert torch.equal(ours, theirs)
        assert [x for x in sent if x["rank"] == rank] == found["ledger"]
    assert all(torch.isfinite(p).all() for p in late[0])
    start = wide_problem.Wide().parameters()
    assert any(not torch.equal(p, q) for p, q in zip(late[0], start, strict=True))
