"""Every remedy that a refused change of the number of ranks names works, for every method that keeps state by rank."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from reference_impls import SimulatedCluster, create
from reference_impls.errors import LayoutError, UnsupportedError
from tests.reference_impls.problem import LR, Net, names, observed
from tests.reference_impls.table import ROWS, SOME, Row

SIZES = ((1, 4), (4, 2), (2, 1), (3, 5))


def keeps_by_rank(row: Row) -> bool:
    slots = create(row.algorithm, **row.options).algorithm.slots.values()
    return any(slot.kind != "replicated" for slot in slots)


KEEPING = [row for row in ROWS if keeps_by_rank(row)]


def build(row: Row, size: int) -> SimulatedCluster:
    params = list(Net().parameters())
    return SimulatedCluster(
        row.algorithm, params, size, lr=LR, names=names(), bucket_bytes=256, **row.options
    )


def gradients(rank: int, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(p.shape, generator=generator) for p in Net().parameters()]


def trained(row: Row, size: int, steps: int) -> SimulatedCluster:
    cluster = build(row, size)
    for step in range(steps):
        once(cluster, step)
    return cluster


def once(cluster: SimulatedCluster, step: int) -> None:
    cluster.observe(**observed(step))
    own = [gradients(rank, step) for rank in range(cluster.world_size)]
    cluster.step(own, probes=dict.fromkeys(cluster.probes, own))


def refused(cluster: SimulatedCluster, state: dict[str, Any], mode: Any) -> str:
    """Why a state is not taken, or ""."""
    try:
        cluster.load_state_dict(state, elastic=mode)
    except LayoutError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("row", "old", "new"),
    [
        pytest.param(
            row,
            old,
            new,
            id=f"{row.id}-{old}-{new}",
            marks=() if row in SOME and (old, new) == (4, 2) else pytest.mark.full,
        )
        for row in KEEPING
        for old, new in SIZES
    ],
)
def test_every_remedy_that_is_named_works(row: Row, old: int, new: int) -> None:
    try:
        members = trained(row, old, 6)
        build(row, new)
    except UnsupportedError:
        pytest.skip("the options do not admit so many ranks")
    state = members.state_dict()
    waiting: list[Any] = ["zero", "refuse"]
    seen: set[str] = set()
    promised: set[str] = {"zero"}
    while waiting:
        mode = waiting.pop()
        seen.add(mode)
        cluster = build(row, new)
        refusal = refused(cluster, state, mode)
        if refusal and "under way" not in refusal:  # the one case without a remedy, and it says so
            assert mode not in promised, f"{mode!r} was named as a way out, and: {refusal}"
            named = set(re.findall(r"elastic='(\w+)'", refusal))
            assert named, refusal
            promised |= named
            waiting += sorted(named - seen)
        if refusal:
            continue
        once(cluster, 6)
        assert all(p.isfinite().all() for p in cluster.parameters(0))


def test_methods_that_keep_state_by_rank_are_many() -> None:
    assert len({row.algorithm for row in KEEPING}) > 30
