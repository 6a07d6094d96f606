"""NoLoCo: pairs, what cancels over them, consensus, bytes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.algorithm import Clock
from reference_impls.collectives import Group
from tests.reference_impls.local_training import (
    RATE,
    advance,
    cluster,
    equal_on_all_ranks,
    gradient,
    point,
    start,
    trained,
)


def mean_of(found: SimulatedCluster) -> Tensor:
    return torch.stack([point(found, r) for r in range(found.world_size)]).mean(0)


def spread(found: SimulatedCluster) -> float:
    return max(float((point(found, r) - mean_of(found)).norm()) for r in range(found.world_size))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pairs_are_mutual_and_change(n: int) -> None:
    method, seen = create("noloco").algorithm, set()
    for step in range(40):
        pairs = [method.partner(Clock(Group("world", rank, n), seed=4, step=step)) for rank in range(n)]
        assert pairs.count(None) == n % 2
        for rank, partner in enumerate(pairs):
            assert partner is None or (partner != rank and pairs[partner] == rank)
        seen.add(tuple(pairs))
    assert len(seen) > 1 or n <= 2


@pytest.mark.parametrize("n", [2, 4, 5])
def test_the_mean_of_the_workers_is_diloco_with_heavy_ball(n: int) -> None:
    """On gradients that do not depend on x, so that both have the same progress on average."""
    options = {"period": 3, "outer_lr": 0.7, "outer_momentum": 0.5}
    ours = SimulatedCluster("noloco-sgd", [start()], n, lr=RATE, **options)
    other = SimulatedCluster("diloco-sgd", [start()], n, lr=RATE, outer="heavy-ball", **options)
    for step in range(18):
        grads = [[torch.sin(start() * (1 + rank) + step)] for rank in range(n)]
        ours.step(grads)
        other.step(grads)
    torch.testing.assert_close(mean_of(ours), mean_of(other), rtol=0, atol=1e-13)
    assert n == 2 or spread(ours) > 1e-3


def test_two_workers_are_diloco_with_heavy_ball_to_the_last_bits() -> None:
    options = {"period": 4, "outer_lr": 0.7, "outer_momentum": 0.5}
    ours, other = (
        trained("noloco-sgd", 2, 16, **options),
        trained("diloco-sgd", 2, 16, outer="heavy-ball", **options),
    )
    assert equal_on_all_ranks(ours)
    torch.testing.assert_close(point(ours), point(other), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [4, 5])
def test_rounds_written_out(n: int) -> None:
    """m <- b m + a mean_pair(x - A) + a (mean_pair(A) - A); A <- A + m, by the method's own pairs; alone: a pair of one."""
    a, b, period = 0.7, 0.5, 3
    ours = cluster("noloco-sgd", n, period=period, outer_lr=a, outer_momentum=b, seed=4)
    x, anchors = ([start() for _ in range(n)] for _ in range(2))
    m = [torch.zeros_like(start()) for _ in range(n)]
    for step in range(12):
        x = [own - RATE * gradient(own, step, rank) for rank, own in enumerate(x)]
        if step % period == period - 1:
            worlds = [Group("world", rank, n) for rank in range(n)]
            pairs = [ours.method.algorithm.partner(Clock(world, seed=4, step=step)) for world in worlds]
            for rank, partner in enumerate(pairs):
                other = rank if partner is None else partner
                progress = (x[rank] - anchors[rank] + x[other] - anchors[other]) / 2
                pull = (anchors[rank] + anchors[other]) / 2 - anchors[rank]
                m[rank] = b * m[rank] + a * progress + a * pull
            anchors = [anchor + own for anchor, own in zip(anchors, m, strict=True)]
            x = [anchor.clone() for anchor in anchors]
        advance(ours, step, step + 1)
        for rank in range(n):
            torch.testing.assert_close(point(ours, rank), x[rank], rtol=0, atol=1e-12)


def test_buckets_meet_the_same_partner() -> None:
    found = [trained("noloco", 5, 9, period=3, bucket_bytes=b) for b in (8, 1 << 20)]
    assert torch.equal(point(found[0], 3), point(found[1], 3))
