"""Folding to another number of workers, method by method: the identity of each holds across the change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from reference_impls.drivers.elastic import Elastic
from reference_impls.errors import LayoutError
from tests.reference_impls.local_training import RATE, D, cluster, noise, point, start


def slot(members: SimulatedCluster, name: str) -> Tensor:
    """[n, d]: a whole-shard slot of every rank."""
    return torch.stack([torch.cat(members.state(r, name)) for r in range(members.world_size)])


def resized(
    members: SimulatedCluster, name: str, size: int, elastic: Elastic, **options: Any
) -> SimulatedCluster:
    after = cluster(name, size, **options)
    after.load_state_dict(members.state_dict(), elastic=elastic)
    return after


def step(members: SimulatedCluster, number: int, groups: int | None = None) -> Tensor:
    """A step on gradients that do not depend on x; their mean. `groups`: ranks r and r + groups have the same."""
    size = members.world_size
    own = [noise(number, rank if groups is None else rank % groups) for rank in range(size)]
    members.step([[g[: D // 3], g[D // 3 :]] for g in own])
    return torch.stack(own).mean(0)


@pytest.mark.parametrize(
    ("name", "options", "owing"),
    [
        ("top-k", {"ratio": 0.1}, "worker_error"),
        ("random-k", {"ratio": 0.1, "error_feedback": True}, "worker_error"),
        ("gtop-k", {"ratio": 0.1}, "worker_error"),
        ("dgc", {"ratio": 0.1, "momentum": 0.0}, "velocity"),
        (
            "sketched-sgd",
            {"ratio": 0.1, "column_ratio": 0.3, "momentum": 0.0, "dense_vectors": False},
            "error",
        ),
        ("gs-sgd", {"ratio": 0.1, "column_ratio": 0.3, "momentum": 0.0, "dense_vectors": False}, "error"),
        ("sketched-sgd-theory", {"ratio": 0.1, "column_ratio": 0.3}, "error"),
        (
            "diloco-sgd",
            {"period": 1, "outer": "sgd", "outer_momentum": 0.0, "outer_lr": 1.0, "carrier": "sign"},
            "",
        ),
        (
            "sparseloco-sgd",
            {"period": 1, "k": 4, "chunk": 16, "error_decay": 1.0},
            "compression_error",
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
@pytest.mark.parametrize("sizes", [(4, 3), (2, 5)])
def test_what_was_held_back_is_not_lost(
    name: str, options: dict[str, Any], owing: str, sizes: tuple[int, int]
) -> None:
    """x_0 - x_T + what is still owed = lr times the sum of mean gradients, over the change of workers."""

    def owed(members: SimulatedCluster) -> Tensor:
        if name == "diloco-sgd":  # errors of workers and of servers, of progress
            shards = range(len(members.state(0, "server_error")))
            servers = [members.state(r, "server_error")[i] for i in shards for r in range(members.world_size)]
            return slot(members, "compression_error").mean(0) + torch.cat(servers)
        unit = 1.0 if owing == "compression_error" or name == "sketched-sgd-theory" else RATE
        return unit * slot(members, owing).mean(0)

    total = torch.zeros(D, dtype=torch.float64)
    members = cluster(name, sizes[0], **options)
    for number in range(6):
        total += step(members, number)
    anew = resized(members, name, sizes[1], "zero", **options)
    members = resized(members, name, sizes[1], "fold", **options)
    for number in range(6, 12):
        total += step(members, number)
        step(anew, number)

    def missing(found: SimulatedCluster) -> float:
        return float((start() - point(found) + owed(found) - RATE * total).abs().max())

    assert missing(members) < 1e-6  # messages are float32
    assert missing(anew) > 1e-3


@pytest.mark.parametrize("size", [1, 2, 5])
def test_lag_keeps_the_mean_of_what_was_sent(size: int) -> None:
    members = cluster("lag", 3, xi=0.5)
    for number in range(5):
        step(members, number)
    after = resized(members, "lag", size, "fold", xi=0.5)
    for number in range(5, 9):
        torch.testing.assert_close(slot(after, "mean")[0], slot(after, "sent").mean(0), rtol=0, atol=1e-13)
        step(after, number)


@pytest.mark.parametrize("sizes", [(4, 3), (3, 5), (5, 1)])
@pytest.mark.parametrize("steps", [5, 6])
def test_the_mean_of_noloco_s_workers_stays_diloco_with_heavy_ball(
    sizes: tuple[int, int], steps: int
) -> None:
    """Within a round and at its end."""
    options = {"period": 3, "outer_lr": 0.7, "outer_momentum": 0.5}
    pairs = cluster("noloco-sgd", sizes[0], **options)
    other = cluster("diloco-sgd", sizes[0], outer="heavy-ball", **options)
    for number in range(steps):
        step(pairs, number)
        step(other, number)
    assert float(slot(pairs, "anchor").std(0).max()) > 1e-3
    pairs = resized(pairs, "noloco-sgd", sizes[1], "fold", **options)
    other = resized(other, "diloco-sgd", sizes[1], "fold", outer="heavy-ball", **options)
    for number in range(steps, 13):
        step(pairs, number)
        step(other, number)
    mean = [torch.stack([point(found, r) for r in range(sizes[1])]).mean(0) for found in (pairs, other)]
    torch.testing.assert_close(*mean, rtol=0, atol=1e-12)


def test_zero_one_adam_s_round_goes_on() -> None:
    """In mid-round, v frozen, everything is linear: ranks that had pairwise the same gradients may be half as many."""
    options = {"variance_steps": 6, "local_growth_steps": 100, "first_round": 4, "compressor": "none"}
    whole = cluster("zero-one-adam", 4, **options)
    for number in range(8):
        step(whole, number, groups=2)
    assert whole.kind == "local"
    half = resized(whole, "zero-one-adam", 2, "fold", **options)
    held = [slot(whole, "moved"), slot(half, "moved")]
    assert float(held[0].std(0).max()) > 1e-3
    torch.testing.assert_close(held[1], held[0].mean(0).expand(2, -1), rtol=0, atol=1e-15)
    for number in range(8, 14):
        step(whole, number, groups=2)
        step(half, number, groups=2)
    assert whole.kind == half.kind == "average"
    torch.testing.assert_close(point(half), point(whole), rtol=0, atol=1e-12)


def test_what_is_equal_on_all_ranks_stays_so_to_the_bit() -> None:
    """The momentum of 0/1 Adam is agreed in its variance phase; a mean of three equal numbers may be another one."""
    members = cluster("zero-one-adam", 3, variance_steps=100, local_growth_steps=1)
    for number in range(6):
        step(members, number)
    momentum = slot(members, "momentum")[0]
    assert not torch.equal(torch.stack([momentum] * 3).mean(0), momentum)
    after = resized(members, "zero-one-adam", 4, "fold", variance_steps=100, local_growth_steps=1)
    assert torch.equal(slot(after, "momentum")[3], momentum)


@pytest.mark.parametrize(
    ("name", "options"),
    [("demo", {"aggregate": "senders"}), ("sparseloco", {"aggregate": "senders", "period": 1, "k": 4})],
)
def test_what_enters_by_its_senders_alone_has_no_mean_over_ranks(name: str, options: dict[str, Any]) -> None:
    members = cluster(name, 3, **options)
    for number in range(3):
        step(members, number)
    with pytest.raises(LayoutError, match="does not say how it would pass"):
        resized(members, name, 2, "fold", **options)
    assert create(name, **{**options, "aggregate": "all"}).algorithm.slots is not None
    resized(members, name, 2, "zero", **options)
