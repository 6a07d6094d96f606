"""Gradients that are not there, on some ranks or on all. `test_conformance.py` has those that are not finite.

A parameter for which no rank has ever had a gradient stays where it is, unless its gradient is to count as zeros.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.core.errors import LayoutError, UsageError
from tests.reference_impls import trajectories
from tests.reference_impls.averages import normal, normals, point
from tests.reference_impls.problem import Net, advance, learning_rate, names
from tests.reference_impls.table import FIRST, SOME, Row, tiered
from tests.support import each

# what lies in how drivers read gradients is the same for all methods
FEW = [row for row in SOME if row.id in ("lion-cub-1bit", "powersgd", "diloco")]
UNUSED, SIZE = names().index("unused"), 3


def build(row: Row | str, **more: Any) -> SimulatedCluster:
    row = next(one for one in FIRST if one.algorithm == row) if isinstance(row, str) else row
    return trajectories.build(row, SIZE, **more)


def drawn(params: list[Tensor], rank: int, step: int) -> list[Tensor | None]:
    noise = normals([p.shape for p in params], 100 * step + rank)
    return [0.1 * p + x for p, x in zip(params, noise, strict=True)]


def unused(params, rank, step, ranks_with_it=()):
    """Of all parameters but the last, which only `ranks_with_it` have one for."""
    found = drawn(params, rank, step)
    return found if rank in ranks_with_it else [*found[:UNUSED], None]


def same(a: SimulatedCluster, b: SimulatedCluster) -> bool:
    return all(torch.equal(point(a, rank), point(b, rank)) for rank in range(SIZE))


def test_a_gradient_of_no_elements_is_refused_for_a_parameter_that_has_some() -> None:
    cluster = SimulatedCluster("allreduce-sgd", [torch.ones(3)], 2)
    with pytest.raises(LayoutError, match=r"shape \(0,\), the parameter \(3,\)"):
        cluster.step([[torch.empty(0)], [torch.ones(3)]])


def test_a_step_without_gradients_is_refused_unless_they_lie_in_the_storage() -> None:
    cluster = SimulatedCluster("allreduce-sgd", [torch.ones(3)], 2, lr=1.0)
    cluster.step([[torch.ones(3)]] * 2)
    with pytest.raises(UsageError, match=r"pass step\(grads\).*storage="):
        cluster.step()
    assert torch.equal(cluster.parameters(0)[0], torch.zeros(3))
    rows = torch.zeros(2, 3), torch.ones(2, 3)
    stored = SimulatedCluster("allreduce-sgd", [torch.ones(3)], 2, lr=1.0, storage=rows)
    stored.step()
    assert torch.equal(stored.parameters(0)[0], torch.zeros(3))


# ---- none on any rank ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", tiered(fast=SOME))
def test_a_parameter_that_never_gets_a_gradient_stays(row: Row) -> None:
    cluster, start = advance(build(row), 8, unused), list(Net().parameters())
    assert all(torch.equal(cluster.parameters(rank)[UNUSED], start[UNUSED]) for rank in range(SIZE))
    assert not all(map(torch.equal, cluster.parameters(0), start))


@each("name", ["lion-cub-1bit", "signsgd", "apmsqueeze-prototype"])
def test_asked_for_it_counts_as_zeros_which_one_bit_cannot_say(name: str) -> None:
    cluster = advance(build(name, unused="zeros"), 8, unused)
    assert not torch.equal(cluster.parameters(0)[UNUSED], Net().unused)
    assert "unused" not in set(cluster.ledger.frame(0).kind)


@each("row", FEW)
def test_where_all_are_used_nothing_is_sent_for_it_and_no_bit_differs(row: Row) -> None:
    ours, theirs = (advance(build(row, unused=counts), 5, drawn) for counts in ("stay", "zeros"))
    assert ours.ledger.frame(None).equals(theirs.ledger.frame(None))
    assert same(ours, theirs)


@each("name", ["lion-cub-1bit", "allreduce-adamw"])
def test_it_is_trained_from_its_first_gradient_on_any_rank(name: str) -> None:
    cluster, before = advance(build(name), 3, unused), Net().unused
    assert torch.equal(cluster.parameters(0)[UNUSED], before)
    advance(cluster, 1, partial(unused, ranks_with_it=(1,)))
    assert not torch.equal(cluster.parameters(0)[UNUSED], before)
    assert torch.equal(cluster.parameters(0)[UNUSED], cluster.parameters(2)[UNUSED])
    advance(cluster, 2, unused)
    sent = cluster.ledger.frame(0)
    asked = sent[sent.kind == "unused"]
    assert asked.step.tolist() == [1, 2, 3], (
        "not in the first step, and not after the answer is known to be none"
    )
    assert asked.payload_bytes.tolist() == [1, 1, 1]


DECAYING: dict[str, dict[str, Any]] = {
    "dgc": {"ratio": 0.05, "granularity": "model"},
    "sketched-sgd": {"ratio": 0.1, "dense_vectors": False},
    "sketched-sgd-theory": {"ratio": 0.1, "column_ratio": 0.5},
    "gs-sgd": {"ratio": 0.1},
    "apmsqueeze": {"decay": "l2", "warmup_steps": 4},
    "root-sgd": {},
}
"""Methods that add weight decay to the gradient before they keep anything of it."""


@each("name", DECAYING)
def test_what_never_had_a_gradient_is_not_pulled_at_either(name: str) -> None:
    """However large it is, the others are trained as beside zeros; and its first step is not that of all before."""

    def trained(large: float) -> SimulatedCluster:
        params = [torch.full((50,), large), torch.zeros(50)]
        options = {"weight_decay": 0.1, "seed": 1, **DECAYING[name]}
        return SimulatedCluster(name, params, SIZE, lr=0.01, names=["unused", "used"], **options)

    def step(cluster: SimulatedCluster, own: Tensor | None, number: int) -> None:
        grads = [[own, x] for x in normal(SIZE, 50, seed=number)]
        points = dict.fromkeys(cluster.reference_points, grads)
        cluster.step(grads, reference_points=points)

    beside_large, beside_zeros = trained(10.0), trained(0.0)
    for number in range(12):
        for cluster in (beside_large, beside_zeros):
            step(cluster, None, number)
    assert torch.equal(beside_large.parameters(1)[1], beside_zeros.parameters(1)[1])
    assert not torch.equal(beside_large.parameters(1)[1], torch.zeros(50))
    step(beside_large, torch.zeros(50), 12)
    moved = 10 - beside_large.parameters(1)[0]
    assert float(moved.min()) >= 0
    assert float(moved.max()) <= (0.011 if name != "apmsqueeze" else 0), (
        "rate x decay x 10, for APMSqueeze none: no variance"
    )


def test_local_steps_ask_nothing_and_averages_bring_what_one_rank_has_trained() -> None:
    """Rounds of four; in the second round one rank alone has a gradient for it, once."""
    rounds = {"period": 4, "total_steps": None, "weight_decay": 0.1}
    cluster, before = advance(build("local-sgd", **rounds), 4, unused), Net().unused
    advance(cluster, 1, partial(unused, ranks_with_it=(1,)))
    assert [torch.equal(cluster.parameters(rank)[UNUSED], before) for rank in range(SIZE)] == [
        True,
        False,
        True,
    ]
    resumed = build("local-sgd", **rounds)
    resumed.load_state_dict(cluster.state_dict())  # in the midst of a round
    for some in (cluster, resumed):
        advance(some, 7, unused)
    assert same(cluster, resumed)
    for rank in range(SIZE):
        assert not torch.equal(cluster.parameters(rank)[UNUSED], before)
        assert torch.equal(cluster.parameters(rank)[UNUSED], cluster.parameters(0)[UNUSED])
    sent = cluster.ledger.frame(0)
    assert sent[sent.kind == "unused"].step.tolist() == [3, 7], "at averages, and never again once it is used"


def test_the_last_average_of_zero_one_adam_stays_with_it_and_decays_from_its_first_gradient_on() -> None:
    """Rounds of four; in the third one rank alone has a gradient for it, once, which the average tells all."""
    rounds = {"variance_steps": 2, "local_growth_steps": 100, "first_round": 4, "longest_round": 4}
    cluster = build("zero-one-adam", **{**rounds, "total_steps": None, "weight_decay": 0.5})
    advance(cluster, 10, unused)
    assert all(torch.equal(cluster.parameters(rank)[UNUSED], Net().unused) for rank in range(SIZE))
    advance(cluster, 1, partial(unused, ranks_with_it=(1,)))
    advance(cluster, 3, unused)
    assert cluster.kind == "average"
    decayed = Net().unused * (1 - 0.5 * learning_rate(cluster.steps - 1))
    for rank in range(SIZE):
        assert torch.equal(cluster.parameters(rank)[UNUSED], cluster.parameters(0)[UNUSED])
        torch.testing.assert_close(cluster.parameters(rank)[UNUSED], decayed)
