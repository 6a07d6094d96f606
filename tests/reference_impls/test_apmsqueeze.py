"""APMSqueeze, 1-bit Adam, 0/1 Adam and 1-bit LAMB against their rules written down."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from tests.reference_impls.averages import normal, owed
from tests.reference_impls.exchanges import kinds_of

D, RATE, BETA1, BETA2, EPS = 103, 0.01, 0.9, 0.999, 1e-8
EXACT = {"compressor": "none"}


def start(dtype: torch.dtype = torch.float64) -> Tensor:
    return normal(D, seed=8, dtype=dtype)


def gradient(step: int, rank: int, dtype: torch.dtype = torch.float64) -> Tensor:
    g = normal(D, seed=1000 * step + rank, dtype=dtype)
    return g + torch.linspace(-1, 1, D, dtype=dtype) + 0.3 * rank


def mean_gradient(step: int, size: int) -> Tensor:
    return torch.stack([gradient(step, rank) for rank in range(size)]).mean(0)


def advance(trained: SimulatedCluster, first: int, last: int, rate: Any = None) -> None:
    for step in range(first, last):
        rows = [[gradient(step, rank)] for rank in range(trained.world_size)]
        trained.step(rows, lr=None if rate is None else rate(step))


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize(
    ("name", "options", "kinds"),
    [
        ("apmsqueeze", {"warmup_steps": 10, "betas": (0.8, 0.95)}, {"warm-up", "compressed"}),
        ("zero-one-adam", {"variance_steps": 10, "local_growth_steps": 1000}, {"variance", "average"}),
    ],
)
def test_without_compression_it_is_momentum_in_a_frozen_metric(size, name, options, kinds):
    """Ten steps, then the identity in place of the compressor, in rounds of one step; the decay is decoupled."""
    decay, seen = 0.1, set()
    beta1, beta2 = options.get("betas", (BETA1, BETA2))
    trained = SimulatedCluster(name, [start()], size, lr=RATE, weight_decay=decay, **options, **EXACT)
    x, m, v = start(), torch.zeros(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64)
    for step in range(30):
        advance(trained, step, step + 1)
        g = mean_gradient(step, size)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g if step < 10 else v
        x = x * (1 - RATE * decay) - RATE * m / (v.sqrt() + EPS)
        torch.testing.assert_close(trained.parameters(0)[0], x, rtol=0, atol=1e-12)
        seen.add(trained.kind)
    assert seen == kinds
    assert float(owed(trained).abs().max()) == 0


@pytest.mark.parametrize(
    ("name", "compressor"), [("apmsqueeze", "sign"), ("apmsqueeze", "none"), ("one-bit-adam", "sign")]
)
def test_coordinates_without_variance_are_not_moved(name: str, compressor: str) -> None:
    """scale / eps would throw them away: 1e5 rates in one step. 1-bit Adam has no momentum there either."""
    size, dead = 4, slice(20, 40)
    trained = SimulatedCluster(
        name, [start(torch.float32)], size, lr=RATE, warmup_steps=5, compressor=compressor
    )
    for step in range(15):
        rows = [gradient(step, rank, torch.float32) for rank in range(size)]
        for row in rows:
            row[dead] = 0 if step < 10 else 1.0  # gradients that come too late find no metric
        trained.step([[row] for row in rows])
    assert torch.equal(trained.parameters(0)[0][dead], start(torch.float32)[dead])
    moved = (trained.parameters(0)[0] - start(torch.float32)).abs()
    assert (moved > 0).sum() == D - 20
    assert moved.max() < 10
    assert bool(trained.state(0, "momentum")[0][dead].any()) == (name == "apmsqueeze")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"warmup_steps": 7}, 7),
        ({"warmup_steps": 7, "lr_warmup_steps": 12}, 12),
        ({"total_steps": 1000}, 150),
        ({"total_steps": 1001, "warmup_fraction": 0.25}, 251),
        ({"total_steps": 1000, "warmup_steps": 0}, 0),
        ({"total_steps": 100, "warmup_fraction": 0.07}, 7),
    ],
)
def test_the_length_of_the_warm_up(options: dict[str, Any], expected: int) -> None:
    algorithm = create("apmsqueeze", **options).algorithm
    assert algorithm.frozen_from == expected


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
        m = BETA1 * m + (1 - BETA1) * (mean_gradient(step, size) + decay * x) + e - owed(trained)
        e = owed(trained)
        x = x - RATE * m / (1 + EPS)
        torch.testing.assert_close(trained.state(0, "momentum")[0], m, rtol=0, atol=1e-12)
        torch.testing.assert_close(trained.parameters(0)[0], x, rtol=0, atol=1e-12)
        assert trained.kind == "compressed"


@pytest.mark.parametrize("size", [1, 4])
def test_clipping_is_by_the_norm_of_the_mean_and_then_by_the_root_mean_square_of_the_norms(size: int) -> None:
    """Over all buckets together; the estimate is never below the norm of the mean, and is one number on the wire."""
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


# ---- the freeze that comes by itself -----------------------------------------------------------------------------------


def frozen_at(norms: Any, steps: int, **options: Any) -> int | None:
    """The first compressed step when gradients have these norms."""
    own = SimulatedCluster(
        "one-bit-adam", [start()], 2, lr=RATE, seed=2, freeze="auto", betas=(0.9, 0.5), **options
    )
    for step in range(steps):
        own.step([[norms(step) * gradient(step, r) / gradient(step, r).norm()] for r in range(2)])
        if own.kind == "compressed":
            return step
    return None


def test_it_freezes_when_the_variance_stands_still_and_not_while_it_grows_or_falls() -> None:
    assert frozen_at(lambda step: 1.0, 40, auto_window=5, auto_ratio=0.8) in (11, 16, 21)
    assert frozen_at(lambda step: 1.5**step, 40, auto_window=5) is None
    assert frozen_at(lambda step: 1.5**-step, 40, auto_window=5) is None
    falls_then_stands = frozen_at(lambda step: 1.5 ** -min(step, 20), 60, auto_window=5, auto_ratio=0.8)
    assert falls_then_stands is not None
    assert falls_then_stands > 25
    # and not before the learning rate has warmed up
    assert frozen_at(lambda step: 1.0, 60, auto_window=5, auto_ratio=0.8, lr_warmup_steps=31) == 31


# ---- 0/1 Adam: its schedules, and its momentum as a mean weighted by learning rates ----------------------------------------


def zero_one(size: int, **options: Any) -> SimulatedCluster:
    return SimulatedCluster("zero-one-adam", [start()], size, lr=RATE, seed=2, **options)


def test_rounds_double_up_to_the_longest_and_the_last_one_ends_with_the_training() -> None:
    options = {"variance_steps": 2, "local_growth_steps": 6, "longest_round": 5, "total_steps": 40}
    found = kinds_of("zero-one-adam", 40, **options)
    ends = [1, *(step for step, kind in enumerate(found) if kind == "average")]
    lengths = [b - a for a, b in itertools.pairwise(ends)]
    assert lengths == [1, 1, 1, 1, 1, 1, 2, 2, 2, 4, 4, 5, 5, 5, 3]
    assert found[-1] == "average"
    assert found[:2] == ["variance", "variance"]
    assert create("zero-one-adam", total_steps=100, lr_warmup_steps=30).algorithm.local_from == 30


def test_the_momentum_after_a_round_is_the_mean_of_the_rounds_momenta_weighted_by_rates() -> None:
    """With an exact mean: m = sum lr m_h / sum lr over steps and workers; x moved by sum lr m_h."""
    size, length = 3, 4

    def rate(step: int) -> float:
        return RATE / (1 + step)

    own = zero_one(
        size, variance_steps=4, first_round=length, longest_round=length, local_growth_steps=1, **EXACT
    )
    advance(own, 0, 4, rate)
    m0, x0, v = (
        own.state(0, "momentum")[0].clone(),
        own.parameters(0)[0].clone(),
        own.state(0, "variance")[0],
    )
    total, weights = torch.zeros(D, dtype=torch.float64), 0.0
    local = [m0.clone() for _ in range(size)]
    for step in range(4, 4 + length):
        for rank in range(size):
            local[rank] = BETA1 * local[rank] + (1 - BETA1) * gradient(step, rank)
            total += rate(step) * local[rank] / size
        weights += rate(step)
        advance(own, step, step + 1, rate)
    assert own.kind == "average"
    torch.testing.assert_close(own.state(0, "momentum")[0], total / weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(own.parameters(2)[0], x0 - total / (v.sqrt() + EPS), rtol=0, atol=1e-12)
    assert float(own.state(0, "rates")[0]["0"]) == 0
    assert float(own.state(0, "moved")[0].abs().max()) == 0


def test_what_the_averages_lose_is_kept() -> None:
    """Compressed: sum over rounds of ubar = sum of mean u + E_0 - E_T, the errors begun anew at the local phase."""
    size, length = 4, 3
    own = zero_one(size, variance_steps=6, refreshes_per_gap=2, first_round=length, longest_round=length,
                  local_growth_steps=1)  # fmt: skip
    advance(own, 0, 6)
    assert owed(own).abs().max() > 0
    v, x0 = own.state(0, "variance")[0], own.parameters(0)[0].clone()
    given, momenta = torch.zeros(D, dtype=torch.float64), [own.state(0, "momentum")[0].clone()] * size
    for step in range(6, 24):
        momenta = [BETA1 * m + (1 - BETA1) * gradient(step, r) for r, m in enumerate(momenta)]
        given += RATE * torch.stack(momenta).mean(0)
        advance(own, step, step + 1)
        if own.kind == "average":
            momenta = [own.state(0, "momentum")[0].clone()] * size
    moved = (x0 - own.parameters(0)[0]) * (v.sqrt() + EPS)
    torch.testing.assert_close(moved, given - owed(own), rtol=0, atol=1e-10)


# ---- 1-bit LAMB against LAMB while it warms up, against its box afterwards, and its limits one by one ---------------------

LENGTHS, DECAY = (40, 7, 56), 0.1


def tensors() -> list[Tensor]:
    return [(0.1 + i) * x for i, x in enumerate(start().split(LENGTHS))]


def by_tensor(gradient: Tensor) -> list[Tensor]:
    """Of very different size."""
    return [10.0 ** (1 - 2 * i) * g for i, g in enumerate(gradient.split(LENGTHS))]


def lamb(size: int, **options: Any) -> SimulatedCluster:
    return SimulatedCluster("one-bit-lamb", tensors(), size, lr=RATE, seed=2, weight_decay=DECAY, **options)


def lamb_step(own: SimulatedCluster, step: int) -> None:
    own.step([by_tensor(gradient(step, rank)) for rank in range(own.world_size)])


LIMITS = {"min_coeff": 0.01, "max_coeff": 10.0, "coeff_beta": 0.9}
LIMITS |= {"factor_min": 0.5, "factor_max": 4.0, "factor_threshold": 0.1}


class LambBox:
    """The rule, tensor by tensor, from the mean gradient: what the method is with an exact mean."""

    def __init__(self, warmup: int, **limits: float) -> None:
        self.warmup, self.limits = warmup, {**LIMITS, **limits}
        self.x = tensors()
        self.m, self.v = ([torch.zeros(n, dtype=torch.float64) for n in LENGTHS] for _ in range(2))
        self.fresh: list[Tensor] = []
        self.ratios: list[list[float]] = [[] for _ in LENGTHS]
        self.f = [1.0] * 3

    def step(self, number: int, g: list[Tensor]) -> None:
        if number == self.warmup:
            self.fresh = [v.clone() for v in self.v]
        own = self.limits
        for i in range(3):
            if not g[i].any() and not self.ratios[i]:  # it has not been used yet
                continue
            self.m[i] = BETA1 * self.m[i] + (1 - BETA1) * g[i]
            if number < self.warmup:
                self.v[i] = BETA2 * self.v[i] + (1 - BETA2) * g[i] ** 2
                move = self.m[i] / (self.v[i].sqrt() + EPS) + DECAY * self.x[i]
                ratio = min(max(float(self.x[i].norm() / move.norm()), own["min_coeff"]), own["max_coeff"])
                self.ratios[i].append(ratio)
                self.x[i] = self.x[i] - RATE * ratio * move
                continue
            self.fresh[i] = BETA2 * self.fresh[i] + (1 - BETA2) * g[i] ** 2
            frozen = self.v[i].sqrt() + EPS
            adaptive = self.m[i] / frozen
            move = adaptive + DECAY * self.x[i]
            share = min(1.0, float(adaptive.norm() / move.norm()))
            f = float((frozen / (self.fresh[i].sqrt() + EPS)).max()) * share + 1 - share
            f, share = min(max(f, own["factor_min"]), own["factor_max"]), own["factor_threshold"]
            f = min(max(f, self.f[i] * (1 - share)), self.f[i] * (1 + share))
            self.f[i] = f
            self.x[i] = self.x[i] - RATE * self.coefficient(i) * f * move

    def coefficient(self, i: int) -> float:
        """As if the first ratio had been that of all steps before."""
        beta, ratios, c = self.limits["coeff_beta"], self.ratios[i], 0.0
        for ratio in [ratios[0]] * (self.warmup - len(ratios)) + ratios:
            c = beta * c + (1 - beta) * ratio
        return c / (1 - beta**self.warmup)


@pytest.mark.parametrize(
    ("size", "bucket_bytes", "limits"),
    [
        (1, 1 << 20, {}),
        (3, 64, {}),
        (2, 1 << 20, {"max_coeff": 0.02}),
        (2, 1 << 20, {"min_coeff": 5.0}),
        (2, 1 << 20, {"factor_max": 0.9, "factor_threshold": 0.5}),
        (2, 1 << 20, {"factor_min": 0.999, "coeff_beta": 0.5}),
    ],
)
def test_with_an_exact_mean_it_is_its_box(size, bucket_bytes, limits):
    """Both phases, limits where they are set; the gradient rebuilt from momenta is the mean, and feeds the fresh variance."""
    own = lamb(size, bucket_bytes=bucket_bytes, warmup_steps=4, compressor="none", **limits)
    box, plain = LambBox(4, **limits), LambBox(4)
    for step in range(25):
        lamb_step(own, step)
        for each in (box, plain):
            each.step(step, by_tensor(mean_gradient(step, size)))
        for found, x in zip(own.parameters(size - 1), box.x, strict=True):
            torch.testing.assert_close(found, x, rtol=0, atol=1e-11)
    fresh = torch.cat(own.state(0, "fresh_variance"))
    torch.testing.assert_close(fresh, torch.cat(box.fresh), rtol=1e-9, atol=0)
    assert any(f != 1.0 for f in box.f)
    alike = all(torch.allclose(a, b, rtol=0, atol=1e-9) for a, b in zip(box.x, plain.x, strict=True))
    assert alike == (not limits)


@pytest.mark.parametrize("late", [1, 3])
def test_a_tensor_that_is_used_late_has_the_trust_ratio_of_its_own_steps(late: int) -> None:
    own, box = lamb(2, warmup_steps=4, compressor="none"), LambBox(4)
    for step in range(12):
        used = 3 if step >= late else 2
        given = [by_tensor(gradient(step, rank)) for rank in range(2)]
        own.step([[*of_rank[:used], *[None] * (3 - used)] for of_rank in given])
        mean = by_tensor(mean_gradient(step, 2))
        box.step(step, [*mean[:used], *(torch.zeros_like(g) for g in mean[used:])])
        for found, x in zip(own.parameters(1), box.x, strict=True):
            torch.testing.assert_close(found, x, rtol=0, atol=1e-11)


def test_the_momentum_telescopes_in_the_common_scale() -> None:
    """rho (m_t - b1 m_(t-1)) adds up to (1 - b1) rho mean g and the errors, which are all in that scale."""
    size, warmup = 4, 5
    own = lamb(size, warmup_steps=warmup)
    for step in range(warmup):
        lamb_step(own, step)
    moved = given = torch.zeros(sum(LENGTHS), dtype=torch.float64)
    for step in range(warmup, 25):
        before = own.state(0, "momentum")[0].clone()
        lamb_step(own, step)
        rho = torch.cat([own.state(0, "fusion")[0][str(i)].expand(n) for i, n in enumerate(LENGTHS)])
        moved = moved + rho * (own.state(0, "momentum")[0] - BETA1 * before)
        given = given + (1 - BETA1) * rho * torch.cat(by_tensor(mean_gradient(step, size)))
    torch.testing.assert_close(moved, given - owed(own), rtol=0, atol=1e-10)
    assert owed(own).abs().max() > 1e-4
