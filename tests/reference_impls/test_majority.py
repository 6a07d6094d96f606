"""The two-phase vote is the central majority, with every zero and tie policy, and costs what it says."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from reference_impls import create
from reference_impls.aggregators.majority import balance, majority, nonfinite
from reference_impls.core.collectives import Group
from reference_impls.core.compute import Key
from tests.reference_impls.exchanges import buckets, run
from tests.support import each

LENGTHS = (1, 7, 8, 63, 64, 65, 257)
SEED, START = 11, 1000


def updates(size: int, d: int, seed: int = 0, zeros: bool = True) -> Tensor:
    """[size, d]: normal values, a third of them zeros of either sign."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(size, d, generator=generator)
    if zeros:
        u[torch.rand(size, d, generator=generator) < 0.2] = 0.0
        u[torch.rand(size, d, generator=generator) < 0.2] = -0.0
    return u


def directions(u: Tensor, step: int = 0, seed: int = SEED) -> list[Tensor]:
    """What each rank makes of the updates [size, d], by the method itself."""
    algorithm = create("lion-cub-1bit", momentum_sync="never").algorithm
    members = buckets(len(u), [u.shape[1]], start=START, step=step, seed=seed)
    return run([algorithm.direction(bucket, row.clone()) for bucket, row in zip(members, u, strict=True)])[0]


def coin(stage: str, step: int, d: int) -> Tensor:
    return (Key.of(seed=SEED, step=step, stage=stage, start=START).bits(d) & 1) == 1


def central(u: Tensor, step: int) -> Tensor:
    """The majority by somebody who sees all updates at once: zeros by coins, ties alternate."""
    up = torch.where(u == 0, coin("zero", step, u.shape[1]), u > 0)
    total = 2 * up.sum(0) - len(u)
    return torch.where(total > 0, 1.0, -1.0) if step % 2 else torch.where(total >= 0, 1.0, -1.0)


@each("size", (1, 2, 5, 8))
def test_the_vote_is_the_central_majority(size: int) -> None:
    for step, d in enumerate(LENGTHS):
        u = updates(size, d, seed=100 * size + step)
        for found in directions(u, step):
            assert torch.equal(found, central(u, step))


# ---- other transports, and by how many votes --------------------------------------------------------------------------

VOTED = ("two-phase", "all-gather", "int8-sum", "fp32-sum")


def counted(count: Any, u: Tensor, *tie: Any, transport: str, abstaining: bool = False) -> list[Tensor]:
    """What each rank is told; count: `majority` or `balance`."""
    exchanges = []
    for rank, row in enumerate(u):
        group, silent = Group("world", rank, len(u)), row == 0 if abstaining else None
        exchanges.append(count(group, row > 0, nonfinite(row), *tie, transport=transport, abstains=silent))
    return run(exchanges)[0]


voted, lead = partial(counted, majority), partial(counted, balance)


@each("transport", VOTED)
@each("size", (1, 2, 7))
def test_every_transport_has_the_same_verdict(transport: str, size: int) -> None:
    for d in (1, 8, 67, 257):
        u = updates(size, d, seed=size)
        for tie in (True, False, None):
            expected = voted(u, tie, transport="two-phase")[0]
            for found in voted(u, tie, transport=transport):
                assert torch.equal(found, expected)
        total = (2 * (u > 0).sum(0) - size).float()
        for found in lead(u, transport=transport):
            assert torch.equal(found, total)


@each("transport", ["int8-sum", "fp32-sum"])
@each("size", [1, 2, 5, 6])
def test_those_who_abstain_count_for_neither(transport: str, size: int) -> None:
    u = updates(size, 257)
    total = u.sign().sum(0)
    how = {"transport": transport, "abstaining": True}
    assert torch.equal(voted(u, None, **how)[0], total.sign())
    assert torch.equal(voted(u, False, **how)[0], torch.where(total > 0, 1.0, -1.0))
    assert torch.equal(lead(u, **how)[0], total)


@each("transport", VOTED)
@each("bad", [math.nan, math.inf])
def test_no_transport_loses_what_is_not_finite(transport: str, bad: float) -> None:
    for size in (1, 2, 3, 7):
        for d in (7, 8, 67):
            u = updates(size, d)
            u[size - 1, d // 2] = bad
            for found in (*voted(u, True, transport=transport), *lead(u, transport=transport)):
                assert torch.isnan(found).all()
