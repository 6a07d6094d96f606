"""APMSqueeze: Adam while it warms up, momentum in a frozen metric afterwards, and the compressed mean's identities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from tests.reference_impls.exchanges import flat, local_workers, train

D, RATE, BETA1, BETA2, EPS = 103, 0.01, 0.9, 0.999, 1e-8


def start(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(D, generator=torch.Generator().manual_seed(8), dtype=torch.float64).to(dtype)


def gradient(step: int, rank: int, dtype: torch.dtype = torch.float64) -> Tensor:
    g = torch.randn(D, generator=torch.Generator().manual_seed(1000 * step + rank), dtype=torch.float64)
    return (g + torch.linspace(-1, 1, D, dtype=torch.float64) + 0.3 * rank).to(dtype)


def mean_gradient(step: int, size: int) -> Tensor:
    return torch.stack([gradient(step, rank) for rank in range(size)]).mean(0)


def cluster(size: int, dtype: torch.dtype = torch.float64, **options: Any) -> SimulatedCluster:
    return SimulatedCluster("apmsqueeze", [start(dtype)], size, lr=RATE, seed=2, **options)


def advance(trained: SimulatedCluster, first: int, last: int, dtype: torch.dtype = torch.float64) -> None:
    for step in range(first, last):
        trained.step([[gradient(step, rank, dtype)] for rank in range(trained.world_size)])


def error(trained: SimulatedCluster) -> Tensor:
    """E: the mean of the workers' errors plus the servers' errors (one shard)."""
    workers = torch.stack([trained.state(rank, "worker_error")[0] for rank in range(trained.world_size)])
    return workers.mean(0) + torch.cat(
        [trained.state(rank, "server_error")[0] for rank in range(trained.world_size)]
    )


@pytest.mark.parametrize("size", [1, 2, 4, 5])
def test_a_warm_up_without_end_is_adam_without_bias_correction(size: int) -> None:
    trained = cluster(size, warmup_steps=1000, weight_decay=0.1)
    x, m, v = start(), torch.zeros(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)
    for step in range(30):
        advance(trained, step, step + 1)
        g = mean_gradient(step, size)
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g
        x = x - RATE * 0.1 * x - RATE * m / (v.sqrt() + EPS)
        assert trained.kind == "warm-up"
    torch.testing.assert_close(trained.parameters(0)[0], x, rtol=0, atol=1e-12)
    torch.testing.assert_close(trained.state(0, "momentum")[0], m, rtol=0, atol=1e-13)
    torch.testing.assert_close(trained.state(0, "variance")[0], v, rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_without_compression_it_is_momentum_in_a_frozen_metric(size: int) -> None:
    """T_w = 10, then the identity in place of the compressor."""
    warmup = 10
    trained = cluster(size, warmup_steps=warmup, compressor="none")
    x, m, v = start(), torch.zeros(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)
    for step in range(30):
        advance(trained, step, step + 1)
        g = mean_gradient(step, size)
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g * g if step < warmup else v
        x = x - RATE * m / (v.sqrt() + EPS)
    assert trained.kind == "compressed"
    torch.testing.assert_close(trained.parameters(0)[0], x, rtol=0, atol=1e-12)
    assert float(error(trained).abs().max()) == 0


@pytest.mark.parametrize("compressor", ["sign", "none"])
def test_coordinates_without_variance_are_not_moved(compressor: str) -> None:
    """scale / eps would throw them away: 1e5 rates in one step."""
    size, dead = 4, slice(20, 40)
    trained = cluster(size, torch.float32, warmup_steps=5, compressor=compressor)
    for step in range(15):
        rows = [gradient(step, rank, torch.float32) for rank in range(size)]
        for row in rows:
            row[dead] = 0 if step < 10 else 1.0  # gradients that come too late find no metric
        trained.step([[row] for row in rows])
    assert torch.equal(trained.parameters(0)[0][dead], start(torch.float32)[dead])
    moved = (trained.parameters(0)[0] - start(torch.float32)).abs()
    assert (moved > 0).sum() == D - 20
    assert moved.max() < 10


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_bytes_of_both_phases_are_those_of_the_formulas(size: int) -> None:
    """Warm-up: 64 (n-1)/n bits an element. Compressed: 2 D (n-1)/n bits of signs, 64 (n-1) of scales."""
    trained = cluster(size, torch.float32, warmup_steps=3)
    advance(trained, 0, 8, torch.float32)
    rows = trained.ledger.frame(0).groupby(["step", "kind"], as_index=False).wire_bytes.sum()
    padded = 8 * size * math.ceil(D / (8 * size))
    for row in rows.itertuples():
        if row.kind == "warm-up":
            assert 8 * row.wire_bytes == 64 * D * (size - 1) / size
        else:
            assert 8 * row.wire_bytes == 2 * padded * (size - 1) / size + 64 * (size - 1)
    assert rows.kind.tolist() == 3 * ["warm-up"] + 5 * ["compressed"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"warmup_steps": 7}, 7),
        ({"warmup_steps": 7, "lr_warmup_steps": 12}, 12),
        ({"total_steps": 1000}, 150),
        ({"total_steps": 1001}, 151),
        ({"total_steps": 1000, "warmup_fraction": 0.25}, 250),
        ({"total_steps": 1000, "lr_warmup_steps": 200}, 200),
        ({"total_steps": 1000, "warmup_steps": 0}, 0),
    ],
)
def test_the_length_of_the_warm_up(options: dict[str, Any], expected: int) -> None:
    algorithm = create("apmsqueeze", **options).algorithm
    assert algorithm.frozen_from == expected


@pytest.mark.parametrize("warmup", [0, 100])
def test_rate_decay_and_betas_are_those_of_each_group_at_each_step(warmup: int) -> None:
    """Decay is decoupled and outside the compression: with a gradient of zero nothing else is left."""
    hyper = [{"lr": 0.1, "weight_decay": 0.5}, {"lr": 0.02, "weight_decay": 0.0, "betas": (0.5, 0.9)}]
    groups = [{"params": [start()], "param_names": [str(i)], **h} for i, h in enumerate(hyper)]
    ours = local_workers(
        "apmsqueeze", groups, 2, warmup_steps=warmup, initial_variance=1.0, compressor="none"
    )
    x = [start(), start()]
    m = [torch.zeros(D, dtype=torch.float64) for _ in range(2)]
    v = [torch.ones(D, dtype=torch.float64) for _ in range(2)]
    for step in range(6):
        for worker in ours.workers:
            for group, h in zip(worker.optimizer.param_groups, hyper, strict=True):
                group["lr"] = h["lr"] / (1 + step)
        g = [gradient(step, 0), gradient(step, 1)] if step != 3 else [torch.zeros(D, dtype=torch.float64)] * 2
        train(ours, lambda rank, g=g: torch.cat(g))
        for i, h in enumerate(hyper):
            beta1, beta2 = h.get("betas", (BETA1, BETA2))
            m[i] = beta1 * m[i] + (1 - beta1) * g[i]
            v[i] = beta2 * v[i] + (1 - beta2) * g[i] ** 2 if warmup else v[i]
            rate = h["lr"] / (1 + step)
            x[i] = x[i] * (1 - rate * h["weight_decay"]) - rate * m[i] / (v[i].sqrt() + EPS)
    for rank in range(2):
        torch.testing.assert_close(flat(ours, rank), torch.cat(x), rtol=0, atol=1e-12)


# ---- the prototype's profile, clipping, the place of eps ---------------------------------------------------------------


def test_the_prototype_is_l2_decay_in_the_gradient_unit_variance_and_a_scale_over_non_zeros() -> None:
    """m = b1 m + (1-b1) (mean g + wd x) + E - E', over the metric of v = 1, from the first step on."""
    size, decay = 3, 0.1
    trained = SimulatedCluster(
        "apmsqueeze-prototype", [start()], size, lr=RATE, warmup_steps=0, weight_decay=decay
    )
    m, e, x = torch.zeros(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64), start()
    for step in range(12):
        advance(trained, step, step + 1)
        m = BETA1 * m + (1 - BETA1) * (mean_gradient(step, size) + decay * x) + e - error(trained)
        e = error(trained)
        x = x - RATE * m / (1 + EPS)
        torch.testing.assert_close(trained.state(0, "momentum")[0], m, rtol=0, atol=1e-12)
        torch.testing.assert_close(trained.parameters(0)[0], x, rtol=0, atol=1e-12)
        assert trained.kind == "compressed"


@pytest.mark.parametrize("size", [1, 4])
def test_clipping_is_by_the_norm_of_the_mean_and_then_by_the_root_mean_square_of_the_norms(size: int) -> None:
    """Over all shards together; the estimate is never below the norm of the mean, and is one number on the wire."""
    bound, warmup = 2.0, 3
    trained = SimulatedCluster(
        "apmsqueeze", [start()[:50].clone(), start()[50:].clone()], size, lr=RATE, bucket_bytes=64,
        warmup_steps=warmup, compressor="none", max_grad_norm=bound,
    )  # fmt: skip
    m = torch.zeros(D, dtype=torch.float64)
    for step in range(8):
        rows = [gradient(step, rank) for rank in range(size)]
        trained.step([[row[:50], row[50:]] for row in rows])
        mean = torch.stack(rows).mean(0)
        estimate = (
            mean.norm() if step < warmup else torch.stack([row.square().sum() for row in rows]).mean().sqrt()
        )
        assert estimate > bound
        assert estimate >= mean.norm() - 1e-12
        m = BETA1 * m + (1 - BETA1) * mean * bound / (estimate + 1e-6)
        torch.testing.assert_close(trained.state(0, "momentum")[0], m, rtol=0, atol=1e-12)
    norms = trained.ledger.frame(0)
    assert set(norms[norms.stage == "norm"].payload_bytes) == {8}
    assert sorted(norms[norms.stage == "norm"].step) == list(range(warmup, 8))
