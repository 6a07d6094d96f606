"""Each negative control does what its name says, no better and no worse."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.errors import UnsupportedError
from reference_impls.optimizers import Lion, local_optimizer

D, RATE, STEPS, SIZE = 83, 0.02, 12, 4
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("sgd", {"momentum": 0.9}),
    ("adamw", {}),
    ("lion", {"weight_decay": 0.1}),
]


def start() -> Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(3))


def gradient(x: Tensor, step: int, rank: int) -> Tensor:
    return x + torch.randn(D, generator=torch.Generator().manual_seed(1000 * step + rank)) + 0.2 * rank


def cluster(algorithm: str, size: int = SIZE, **options: Any) -> SimulatedCluster:
    return SimulatedCluster(algorithm, [start()], size, lr=RATE, **options)


def advance(trained: SimulatedCluster, first: int, last: int) -> None:
    for step in range(first, last):
        trained.step([[gradient(trained.parameters(r)[0], step, r)] for r in range(trained.world_size)])


def alone(rank: int, optimizer: str, hyper: dict[str, Any], steps: int = STEPS) -> Tensor:
    """A lone optimizer on the data of one rank."""
    own = torch.nn.Parameter(start())
    stepped = local_optimizer(optimizer).build([{"params": [own], "lr": RATE, **hyper}])
    for step in range(steps):
        own.grad = gradient(own.detach(), step, rank)
        stepped.step()
    return own.detach()


@pytest.mark.parametrize(("optimizer", "hyper"), OPTIMIZERS)
def test_one_worker_is_a_lone_run_on_the_data_of_rank_0(optimizer: str, hyper: dict[str, Any]) -> None:
    trained = cluster("control-one-worker", optimizer=optimizer, total_steps=STEPS, **hyper)
    advance(trained, 0, STEPS)
    for rank in range(SIZE):
        assert torch.equal(trained.parameters(rank)[0], alone(0, optimizer, hyper))


@pytest.mark.parametrize(("optimizer", "hyper"), OPTIMIZERS)
def test_without_communication_the_mean_of_lone_runs_is_taken_once(
    optimizer: str, hyper: dict[str, Any]
) -> None:
    trained = cluster("control-no-communication", optimizer=optimizer, total_steps=STEPS, **hyper)
    advance(trained, 0, STEPS - 1)
    for rank in range(SIZE):
        assert torch.equal(trained.parameters(rank)[0], alone(rank, optimizer, hyper, STEPS - 1))
    advance(trained, STEPS - 1, STEPS)
    mean = torch.stack([alone(rank, optimizer, hyper) for rank in range(SIZE)]).mean(0)
    for rank in range(SIZE):
        torch.testing.assert_close(trained.parameters(rank)[0], mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("algorithm", ["control-no-communication", "control-one-worker"])
def test_those_two_must_know_where_the_end_is(algorithm: str) -> None:
    with pytest.raises(UnsupportedError, match="total_steps"):
        cluster(algorithm)


def random_k(
    fraction: float, d: int, steps: int, bucket_bytes: int = 1 << 20
) -> tuple[SimulatedCluster, list[Tensor]]:
    """A run of SGD at rate 1 from 0 with gradients of one: what was applied at every step is the share sent."""
    trained = SimulatedCluster(
        "control-random-k",
        [torch.zeros(d // 2), torch.zeros(d - d // 2)],
        3,
        lr=1.0,
        bucket_bytes=bucket_bytes,
        fraction=fraction,
    )
    applied = []
    for _ in range(steps):
        before = torch.cat(trained.parameters(0)).clone()
        trained.step([[torch.full((d // 2,), 1.0 + r), torch.full((d - d // 2,), 1.0 + r)] for r in range(3)])
        assert all(
            torch.equal(a, b) for a, b in zip(trained.parameters(0), trained.parameters(2), strict=True)
        )
        applied.append(before - torch.cat(trained.parameters(0)))
    return trained, applied


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_random_k_applies_the_mean_of_its_share_and_nothing_elsewhere(fraction: float) -> None:
    d, steps = 20_000, 5
    trained, applied = random_k(fraction, d, steps)
    chosen = torch.stack([a != 0 for a in applied])
    for a, c in zip(applied, chosen, strict=True):
        torch.testing.assert_close(
            a[c], torch.full_like(a[c], 2.0), rtol=0, atol=1e-5
        )  # the mean of 1, 2 and 3
    spread = math.sqrt(fraction * (1 - fraction) * d * steps)
    assert abs(int(chosen.sum()) - fraction * d * steps) < 5 * spread
    sent = trained.ledger.frame(0)
    assert sent.payload_bytes.tolist() == [4 * int(c.sum()) for c in chosen]
    together = int((chosen[0] & chosen[1]).sum())  # steps choose independently
    assert abs(together - fraction**2 * d) < 5 * math.sqrt(fraction**2 * d) + 5


@pytest.mark.parametrize("size", [1, 2, 5])
def test_one_rank_sign_is_lion_on_the_gradients_of_rank_0(size: int) -> None:
    trained = cluster("control-one-rank-sign", size, weight_decay=0.1)
    own = torch.nn.Parameter(start())
    lion = Lion([own], lr=RATE, weight_decay=0.1)
    for step in range(STEPS):
        own.grad = gradient(own.detach(), step, 0)
        lion.step()
        advance(trained, step, step + 1)
        for rank in range(size):
            assert torch.equal(trained.parameters(rank)[0], own.detach())
    sent = trained.ledger.frame(0).wire_bytes.sum()
    assert sent == pytest.approx(STEPS * 2 * (size - 1) / size * (math.ceil(D / 8) + 1), rel=1e-12)
