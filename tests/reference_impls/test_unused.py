"""A parameter for which no rank has ever had a gradient stays where it is, unless its gradient is to count as zeros."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from tests.reference_impls.problem import LR, Net, names, observed
from tests.reference_impls.table import FIRST, SOME, Row, tiered

FEW = [row for row in SOME if row.id in ("lion-cub-1bit", "powersgd", "diloco")]
UNUSED = names().index("unused")
SIZE = 3


def build(row: Row, **more: Any) -> SimulatedCluster:
    params = list(Net().parameters())
    given = {"bucket_bytes": 256, **row.options, **more}
    return SimulatedCluster(row.algorithm, params, SIZE, lr=LR, names=names(), **given)


def gradients(rank: int, step: int, ranks_with_it: tuple[int, ...] = ()) -> list[Tensor | None]:
    """Of all parameters but the last, which only `ranks_with_it` have one for."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    found: list[Tensor | None] = [torch.randn(p.shape, generator=generator) for p in Net().parameters()]
    if rank not in ranks_with_it:
        found[UNUSED] = None
    return found


def advance(cluster: SimulatedCluster, first: int, last: int, ranks_with_it: tuple[int, ...] = ()) -> None:
    for step in range(first, last):
        cluster.observe(**observed(step))
        own = [gradients(rank, step, ranks_with_it) for rank in range(cluster.world_size)]
        cluster.step(own, reference_points=dict.fromkeys(cluster.reference_points, own))


@pytest.mark.parametrize("row", tiered(fast=SOME))
def test_a_parameter_that_never_gets_a_gradient_stays(row: Row) -> None:
    cluster = build(row)
    before = [cluster.parameters(rank)[UNUSED].clone() for rank in range(SIZE)]
    advance(cluster, 0, 8)
    assert all(torch.equal(cluster.parameters(rank)[UNUSED], before[rank]) for rank in range(SIZE))
    moved = [not torch.equal(p, q) for p, q in zip(cluster.parameters(0), Net().parameters(), strict=True)]
    assert any(moved)


@pytest.mark.parametrize("name", ["lion-cub-1bit", "signsgd", "apmsqueeze-prototype"])
def test_asked_for_it_counts_as_zeros_which_one_bit_cannot_say(name: str) -> None:
    row = next(row for row in FIRST if row.algorithm == name)
    cluster = build(row, unused="zeros")
    before = cluster.parameters(0)[UNUSED].clone()
    advance(cluster, 0, 8)
    assert not torch.equal(cluster.parameters(0)[UNUSED], before)
    assert "unused" not in set(cluster.ledger.frame(0).kind)


@pytest.mark.parametrize("row", FEW, ids=lambda row: row.id)
def test_where_all_are_used_nothing_is_sent_for_it_and_no_bit_differs(row: Row) -> None:
    clusters = [build(row, unused=unused) for unused in ("stay", "zeros")]
    for cluster in clusters:
        advance(cluster, 0, 5, (0, 1, 2))
    ours, theirs = clusters
    assert ours.ledger.frame(None).equals(theirs.ledger.frame(None))
    for rank in range(SIZE):
        pairs = zip(ours.parameters(rank), theirs.parameters(rank), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", ["lion-cub-1bit", "allreduce-adamw"])
def test_it_is_trained_from_its_first_gradient_on_any_rank(name: str) -> None:
    row = next(row for row in FIRST if row.algorithm == name)
    cluster = build(row)
    before = cluster.parameters(0)[UNUSED].clone()
    advance(cluster, 0, 3)
    assert torch.equal(cluster.parameters(0)[UNUSED], before)
    advance(cluster, 3, 4, (1,))
    assert not torch.equal(cluster.parameters(0)[UNUSED], before)
    assert torch.equal(cluster.parameters(0)[UNUSED], cluster.parameters(2)[UNUSED])
    advance(cluster, 4, 6)
    sent = cluster.ledger.frame(0)
    asked = sent[sent.kind == "unused"]
    assert asked.step.tolist() == [1, 2, 3], (
        "not in the first step, and not after the answer is known to be none"
    )
    assert asked.payload_bytes.tolist() == [1, 1, 1]


def test_local_steps_ask_nothing_and_averages_bring_what_one_rank_has_trained() -> None:
    """Rounds of four; in the second round one rank alone has a gradient for it, once."""
    row = next(row for row in FIRST if row.algorithm == "local-sgd")
    cluster = build(row, period=4, total_steps=None, weight_decay=0.1)
    before = cluster.parameters(0)[UNUSED].clone()
    advance(cluster, 0, 4)
    advance(cluster, 4, 5, (1,))
    moved = [not torch.equal(cluster.parameters(rank)[UNUSED], before) for rank in range(SIZE)]
    assert moved == [False, True, False]
    resumed = build(row, period=4, total_steps=None, weight_decay=0.1)
    resumed.load_state_dict(cluster.state_dict())  # in the midst of a round
    for some in (cluster, resumed):
        advance(some, 5, 12)
    for rank in range(SIZE):
        assert not torch.equal(cluster.parameters(rank)[UNUSED], before)
        assert torch.equal(cluster.parameters(rank)[UNUSED], cluster.parameters(0)[UNUSED])
        assert torch.equal(cluster.parameters(rank)[UNUSED], resumed.parameters(rank)[UNUSED])
    sent = cluster.ledger.frame(0)
    assert sent[sent.kind == "unused"].step.tolist() == [3, 7], "at averages, and never again once it is used"
