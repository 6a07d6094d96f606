"""Workers that gossip: push-sum written out, and that it keeps the mean; NoLoCo's pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.core.algorithm import TrainState
from reference_impls.core.collectives import Group
from tests.reference_impls.local_training import (
    RATE,
    advance,
    cluster,
    equal_on_all_ranks,
    gradient,
    point,
    start,
)

# ---- SlowMo ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "options"),
    [(2, {"base": "sgp"}), (3, {"base": "osgp"}), (8, {"base": "osgp", "overlap": 3})],
    ids=str,
)
def test_an_average_over_gossiping_workers_is_the_exact_mean(n: int, options: dict[str, Any]) -> None:
    """alpha = 1, beta = 0 and gradients that do not depend on x: as if there had been no gossip."""
    ours = SimulatedCluster("slowmo-sgd", [start()], n, lr=RATE, period=6, outer_momentum=0.0, **options)
    expected = start()
    for step in range(12):
        own = [torch.sin(start() * (rank + 1 + step)) for rank in range(n)]
        expected = expected - RATE * torch.stack(own).mean(0)
        ours.step([[g] for g in own])
        assert equal_on_all_ranks(ours) == (step % 6 == 5 or (n == 2 and options["base"] == "sgp"))
    torch.testing.assert_close(ours.parameters(n - 1)[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("base", ["sgp", "osgp"])
def test_gossip_under_slow_momenta_written_out(base: str) -> None:
    """Numerators x and weights w of four workers by hand; messages of OSGP are used one step later."""
    n, period = 4, 3
    ours = cluster("slowmo-sgd", n, period=period, base=base, average=False, outer_momentum=0.6, outer_lr=0.8)
    x, w = [start() for _ in range(n)], 1.0
    z, anchor = [start() for _ in range(n)], [start() for _ in range(n)]
    u = [torch.zeros_like(start()) for _ in range(n)]
    late: list[tuple[Tensor, float]] | None = None
    for step in range(9):
        for r in range(n):
            x[r] = x[r] - RATE * gradient(z[r], step, r)
        hop = (1, 2)[step % 2]
        sent_now = [(x[(r - hop) % n] / 2, w / 2) for r in range(n)]
        arriving = sent_now if base == "sgp" else late
        x, w = [own / 2 for own in x], w / 2
        if arriving is not None:
            x, w = [own + came for own, (came, _) in zip(x, arriving, strict=True)], w + arriving[0][1]
        late = sent_now
        z = [own / w for own in x]
        if step % period == period - 1:
            for r in range(n):
                u[r] = 0.6 * u[r] + (anchor[r] - z[r]) / RATE
                anchor[r] = anchor[r] - 0.8 * RATE * u[r]
                z[r], x[r] = anchor[r], w * anchor[r]
        advance(ours, step, step + 1)
        for r in range(n):
            torch.testing.assert_close(point(ours, r), z[r], rtol=0, atol=1e-12)


# ---- NoLoCo ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5])
def test_pairs_are_mutual_and_change(n: int) -> None:
    method, seen = create("noloco").algorithm, set()
    for step in range(40):
        pairs = [method.partner(TrainState(Group("world", rank, n), seed=4, step=step)) for rank in range(n)]
        assert pairs.count(None) == n % 2
        for rank, partner in enumerate(pairs):
            assert partner is None or (partner != rank and pairs[partner] == rank)
        seen.add(tuple(pairs))
    assert len(seen) > 1 or n <= 2


@pytest.mark.parametrize("n", [1, 5])
def test_rounds_of_pairs_written_out(n: int) -> None:
    """m <- b m + a mean_pair(x - A) + a (mean_pair(A) - A); A <- A + m, by the method's own pairs; alone: a pair of one."""
    a, b, period = 0.7, 0.5, 3
    ours = cluster("noloco-sgd", n, period=period, outer_lr=a, outer_momentum=b, seed=4)
    x, anchors = ([start() for _ in range(n)] for _ in range(2))
    m = [torch.zeros_like(start()) for _ in range(n)]
    for step in range(12):
        x = [own - RATE * gradient(own, step, rank) for rank, own in enumerate(x)]
        if step % period == period - 1:
            worlds = [Group("world", rank, n) for rank in range(n)]
            pairs = [ours.method.algorithm.partner(TrainState(world, seed=4, step=step)) for world in worlds]
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
