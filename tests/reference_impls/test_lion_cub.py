"""Lion Cub against Lion: what equals it, what bounds it, what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.optimizers import Lion
from tests.reference_impls.lion_training import (
    DECAY,
    RATE,
    D,
    advance,
    cluster,
    exact,
    gradient,
    parameters,
    vector,
)
from tests.support import each

METHODS = ("lion-cub-1bit", "lion-cub-pbit")


def lion(steps: int, gradients: Callable[[int], list[Tensor]], dtype: torch.dtype = torch.float32) -> Tensor:
    own = [torch.nn.Parameter(p) for p in parameters(dtype)]
    optimizer = Lion(own, lr=RATE, weight_decay=DECAY)
    for step in range(steps):
        for param, g in zip(own, gradients(step), strict=True):
            param.grad = g
        optimizer.step()
    return vector([p.detach() for p in own])


# ---- equal to Lion --------------------------------------------------------------------------------------------------


@each("size", [1, 2, 3, 5, 8])
@each("momentum_sync", ["never", "periodic", "doubling", "selective"])
def test_exact_aggregation_is_lion_on_mean_gradients_with_and_without_synchronisation(
    size: int, momentum_sync: str
) -> None:
    """u and m are linear in g, so whatever synchronising does is an interaction with compression."""

    def double(step: int, rank: int) -> list[Tensor]:
        return gradient(step, rank, torch.float64)

    def mean(step: int) -> list[Tensor]:
        everybody = [double(step, rank) for rank in range(size)]
        return [torch.stack(of_one).sum(0) / size for of_one in zip(*everybody, strict=True)]

    trained = exact(size, momentum_sync, sync_every=3, sync_measure_every=6)
    advance(trained, 40, double)
    assert torch.equal(vector(trained.parameters(0)).sign(), lion(40, mean, torch.float64).sign())
    torch.testing.assert_close(
        vector(trained.parameters(0)), lion(40, mean, torch.float64), rtol=0, atol=1e-12
    )


@each("scale", ["l1", "l0", "linf"])
def test_one_worker_of_p_bits_is_lion_except_where_the_update_is_tiny(scale: str) -> None:
    """The first step, u = 0.1 g: with s = 127 levels and gain 1/2, |u| <= a / 127 rounds to no move at all."""
    trained = cluster("lion-cub-pbit", 1, scale=scale)
    g = gradient(0, 0)
    trained.step([g])
    still = 0
    for before, after, own in zip(parameters(), trained.parameters(0), g, strict=True):
        size = {
            "l1": own.abs().mean(),
            "l0": (0.1 * own).abs().add(1e-12).log().mean().exp() / 0.1,
            "linf": own.abs().max(),
        }
        votes = own.abs() > size[scale] / 127
        still += int((~votes).sum())
        expected = before * (1 - RATE * DECAY) - RATE * torch.where(votes, own.sign(), 0.0)
        torch.testing.assert_close(after, expected, rtol=0, atol=1e-6)
    assert still < 5


# ---- bounds and policies --------------------------------------------------------------------------------------------


def test_a_large_tensor_does_not_take_the_votes_of_a_small_one() -> None:
    """Scales are a tensor each: p-bit with a tensor a million times larger beside it moves the others the same."""
    one, other = cluster("lion-cub-pbit", 4), cluster("lion-cub-pbit", 4)
    for step in range(10):
        one.step([gradient(step, rank) for rank in range(4)])
        other.step(
            [[2.0**20 * g if i == 0 else g for i, g in enumerate(gradient(step, rank))] for rank in range(4)]
        )
    for ours, theirs in zip(one.parameters(0), other.parameters(0), strict=True):
        assert torch.equal(ours, theirs)


def test_one_bit_moves_them_by_coins_without_drift() -> None:
    d, steps = 2000, 100
    trained = SimulatedCluster("lion-cub-1bit", [torch.zeros(d)], 4, lr=1.0)
    for _ in range(steps):
        trained.step([[torch.zeros(d)] for _ in range(4)])
    moved = trained.parameters(0)[0] / steps
    assert abs(float(moved.mean())) < 5 / math.sqrt(d * steps)
    assert abs(float(moved.square().mean()) * steps - 1) < 0.2  # a random walk: variance steps


# ---- head-room ------------------------------------------------------------------------------------------------------


@each(("bits", "sizes"), [(4, range(1, 8)), (8, (1, 2, 3, 31, 63, 64, 100, 127)), (16, (2, 300))])
def test_when_all_agree_on_the_largest_vote_nothing_overflows(bits: int, sizes: list[int]) -> None:
    """Two of three coordinates are far above the mean, so every rank votes its most; with linf s = 1 rounds to 0."""
    g = torch.tensor([8.0, -8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    for size in sizes:
        trained = SimulatedCluster("lion-cub-pbit", [torch.zeros(8)], size, lr=1.0, bits=bits)
        trained.step([[g] for _ in range(size)])
        assert torch.equal(trained.parameters(0)[0], -g.sign())


# ---- bytes ----------------------------------------------------------------------------------------------------------


@each("size", [2, 3, 4, 7])
def test_bytes_of_a_step_are_those_of_the_formula(size: int) -> None:
    """Bits a parameter sent: 2 (n-1)/n for one bit, p times that for p bits, 64 f (n-1)/(n K) for synchronising."""
    share = (size - 1) / size

    def bits_a_step(name: str, steps: int = 1, **options: Any) -> float:
        trained = cluster(name, size, **options)
        advance(trained, steps)
        return 8 * sum(row["wire_bytes"] for row in trained.ledger.totals() if row["rank"] == 0) / steps

    one = bits_a_step("lion-cub-1bit")
    assert 2 * share * D < one <= 2 * share * (D + 8 * size)
    exactly = pytest.approx
    assert bits_a_step("lion-cub-pbit") == exactly(8 * 2 * share * (D + 1), rel=1e-12)
    assert bits_a_step("lion-cub-pbit", bits=4) == exactly(8 * 2 * share * math.ceil((D + 1) / 2), rel=1e-12)
    assert bits_a_step("lion-cub-pbit", bits=16) == exactly(
        16 * 2 * share * size * math.ceil((D + 1) / size), rel=1e-12
    )
    synced = bits_a_step("lion-cub-1bit", steps=10, momentum_sync="periodic", sync_every=5)
    assert synced - one == exactly(64 * share * D / 5, rel=1e-12)


# ---- parameter groups -----------------------------------------------------------------------------------------------


@each("name", METHODS)
def test_a_cut_into_buckets_changes_nothing(name: str) -> None:
    """Coins count elements of the model, scales are a tensor's: shards are only a transport matter."""
    whole, cut = cluster(name, 4), cluster(name, 4, bucket_bytes=64)
    assert len(cut.state(0, "momentum")) == 3

    def halved(step: int, rank: int) -> list[Tensor]:
        return [g * (g > 0) for g in gradient(step, rank)]

    advance(whole, 10, halved)
    advance(cut, 10, halved)
    assert torch.equal(vector(whole.parameters(0)), vector(cut.parameters(0)))
