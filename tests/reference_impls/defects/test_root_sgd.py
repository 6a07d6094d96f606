"""Defects of a published code of ROOT-SGD, and that they are not here."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impls import SimulatedCluster

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def noise_left(steps: int, *, restart: int | None, start_again: bool) -> float:
    """|v_T - grad F - mean of the noises| for F = |x|^2 / 2 with additive noise, by a code's recursion."""
    x = before = normal(5, seed=2)
    v, total = torch.zeros(5, dtype=DOUBLE), torch.zeros(5, dtype=DOUBLE)
    if start_again:
        before = normal(5, seed=3)  # a random theta_(-1)
    for step in range(steps):
        t = (step % restart if restart else step) + 1
        weight = (t - 1) / t if not start_again else t / (t + 1)
        xi = normal(5, seed=100 + step)
        v = x + xi + weight * (v - (before + xi))
        total += xi
        here, before, x = x, x, x - 0.1 * v
    return float((v - here - total / steps).norm())


def test_the_recursion_neither_starts_from_a_random_point_nor_begins_anew_every_epoch() -> None:
    """A code of ROOT-SGD does both; the mean of the noises, which v must hold, is lost."""
    assert noise_left(60, restart=None, start_again=False) < 1e-12
    assert noise_left(60, restart=25, start_again=False) > 1e-2
    assert noise_left(60, restart=None, start_again=True) > 1e-2
    own = SimulatedCluster("root-sgd", [normal(5, seed=2)], 1, lr=0.1, burn_in=1)
    total = torch.zeros(5, dtype=DOUBLE)
    for step in range(60):
        xi, here = normal(5, seed=100 + step), own.parameters(0)[0].clone()
        total += xi
        own.step([[here + xi]], probes={p: [[own.probe_parameters(0, p)[0] + xi]] for p in own.probes})
    v = own.state(0, "direction")[0]
    torch.testing.assert_close(v, here + total / 60, rtol=0, atol=1e-12)
