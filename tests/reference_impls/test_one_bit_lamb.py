"""1-bit LAMB against LAMB while it warms up, against its box afterwards, and its limits one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from tests.reference_impls.averages import normal, normals, owed

LENGTHS = (40, 7, 56)
RATE, BETA1, BETA2, EPS, DECAY = 0.01, 0.9, 0.999, 1e-8, 0.1


def start() -> list[Tensor]:
    return [(0.1 + i) * normal(n, seed=20 + i, dtype=torch.float64) for i, n in enumerate(LENGTHS)]


def gradient(step: int, rank: int) -> list[Tensor]:
    """Of very different size by tensor."""
    drawn = normals(LENGTHS, 100 * step + rank, torch.float64)
    return [10.0 ** (1 - 2 * i) * (x + 0.5) for i, x in enumerate(drawn)]


def mean_gradient(step: int, size: int) -> list[Tensor]:
    return [torch.stack(rows).mean(0) for rows in zip(*(gradient(step, r) for r in range(size)), strict=True)]


def cluster(size: int, **options: Any) -> SimulatedCluster:
    options = {"weight_decay": DECAY, **options}
    return SimulatedCluster("one-bit-lamb", start(), size, lr=RATE, seed=2, **options)


def advance(own: SimulatedCluster, step: int) -> None:
    own.step([gradient(step, rank) for rank in range(own.world_size)])


class Box:
    """The rule, tensor by tensor, from the mean gradient: what the method is with an exact mean."""

    def __init__(self, warmup: int, **limits: float) -> None:
        self.warmup = warmup
        self.limits = {
            "min": 0.01,
            "max": 10.0,
            "beta": 0.9,
            "fmin": 0.5,
            "fmax": 4.0,
            "threshold": 0.1,
            **limits,
        }
        self.x = start()
        self.m, self.v = ([torch.zeros(n, dtype=torch.float64) for n in LENGTHS] for _ in range(2))
        self.fresh: list[Tensor] = []
        self.c, self.f = [0.0] * 3, [1.0] * 3

    def step(self, number: int, g: list[Tensor]) -> None:
        if number == self.warmup:
            self.fresh = [v.clone() for v in self.v]
        own = self.limits
        for i in range(3):
            self.m[i] = BETA1 * self.m[i] + (1 - BETA1) * g[i]
            if number < self.warmup:
                self.v[i] = BETA2 * self.v[i] + (1 - BETA2) * g[i] ** 2
                move = self.m[i] / (self.v[i].sqrt() + EPS) + DECAY * self.x[i]
                ratio = min(max(float(self.x[i].norm() / move.norm()), own["min"]), own["max"])
                self.c[i] = own["beta"] * self.c[i] + (1 - own["beta"]) * ratio
                self.x[i] = self.x[i] - RATE * ratio * move
                continue
            self.fresh[i] = BETA2 * self.fresh[i] + (1 - BETA2) * g[i] ** 2
            frozen = self.v[i].sqrt() + EPS
            adaptive = self.m[i] / frozen
            move = adaptive + DECAY * self.x[i]
            share = min(1.0, float(adaptive.norm() / move.norm()))
            f = float((frozen / (self.fresh[i].sqrt() + EPS)).max()) * share + 1 - share
            f = min(max(f, own["fmin"]), own["fmax"])
            f = min(max(f, self.f[i] * (1 - own["threshold"])), self.f[i] * (1 + own["threshold"]))
            self.f[i] = f
            coefficient = self.c[i] / (1 - own["beta"] ** self.warmup)
            self.x[i] = self.x[i] - RATE * coefficient * f * move


@pytest.mark.parametrize(
    ("size", "bucket_bytes", "limits", "options"),
    [
        (1, 1 << 20, {}, {}),
        (3, 64, {}, {}),
        (2, 1 << 20, {"max": 0.02}, {"max_coeff": 0.02}),
        (2, 1 << 20, {"min": 5.0}, {"min_coeff": 5.0}),
        (2, 1 << 20, {"fmax": 0.9, "threshold": 0.5}, {"factor_max": 0.9, "factor_threshold": 0.5}),
        (2, 1 << 20, {"fmin": 0.999, "beta": 0.5}, {"factor_min": 0.999, "coeff_beta": 0.5}),
    ],
)
def test_with_an_exact_mean_it_is_its_box(size, bucket_bytes, limits, options):
    """Both phases, limits where they are set; the gradient rebuilt from momenta is the mean, and feeds the fresh variance."""
    own = cluster(size, bucket_bytes=bucket_bytes, warmup_steps=4, compressor="none", **options)
    box, plain = Box(4, **limits), Box(4)
    for step in range(25):
        advance(own, step)
        for each in (box, plain):
            each.step(step, mean_gradient(step, size))
        for found, x in zip(own.parameters(size - 1), box.x, strict=True):
            torch.testing.assert_close(found, x, rtol=0, atol=1e-11)
    fresh = torch.cat(own.state(0, "fresh_variance"))
    torch.testing.assert_close(fresh, torch.cat(box.fresh), rtol=1e-9, atol=0)
    assert any(f != 1.0 for f in box.f)
    alike = all(torch.allclose(a, b, rtol=0, atol=1e-9) for a, b in zip(box.x, plain.x, strict=True))
    assert alike == (not limits)


def test_the_momentum_telescopes_in_the_common_scale() -> None:
    """rho (m_t - b1 m_(t-1)) adds up to (1 - b1) rho mean g and the errors, which are all in that scale."""
    size, warmup = 4, 5
    own = cluster(size, warmup_steps=warmup)
    for step in range(warmup):
        advance(own, step)
    moved = given = torch.zeros(sum(LENGTHS), dtype=torch.float64)
    for step in range(warmup, 25):
        before = own.state(0, "momentum")[0].clone()
        advance(own, step)
        rho = torch.cat([own.state(0, "fusion")[0][str(i)].expand(n) for i, n in enumerate(LENGTHS)])
        moved = moved + rho * (own.state(0, "momentum")[0] - BETA1 * before)
        given = given + (1 - BETA1) * rho * torch.cat(mean_gradient(step, size))
    torch.testing.assert_close(moved, given - owed(own), rtol=0, atol=1e-10)
    assert owed(own).abs().max() > 1e-4
