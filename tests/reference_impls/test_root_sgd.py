"""ROOT-SGD: the recursion, and rates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster, create
from tests.reference_impls.averages import normal
from tests.reference_impls.problem import at_reference_points

D = 19
CURVATURE = torch.logspace(-1, 0, D, dtype=torch.float64)


def start() -> Tensor:
    return normal(D, seed=1, dtype=torch.float64)


def noise(step: int, rank: int) -> Tensor:
    return normal(D, seed=97 * step + rank, dtype=torch.float64)


def true_gradient(x: Tensor) -> Tensor:
    """Not linear: x + sin(x)/2 in a diagonal metric."""
    return CURVATURE * (x + 0.5 * torch.sin(x))


def sampled(x: Tensor, step: int, rank: int) -> Tensor:
    """Noise that depends on the point: the gradient of one sample's own function."""
    return true_gradient(x) + noise(step, rank) * torch.cos(x)


def cluster(size: int, rate: float = 0.1, **options: Any) -> SimulatedCluster:
    return SimulatedCluster("root-sgd", [start()], size, lr=rate, **options)


def advance(own: SimulatedCluster, step: int, gradient: Any) -> None:
    def gradients(parameters: list[Tensor], rank: int, step: int) -> list[Tensor | None]:
        return [gradient(parameters[0], step, rank)]

    grads = [gradients(own.parameters(rank), rank, step) for rank in range(own.world_size)]
    own.step(grads, reference_points=at_reference_points(own, step, gradients))


@pytest.mark.parametrize(("size", "burn_in", "decay"), [(1, 1, 0.0), (3, 2, 0.3), (3, 10, 0.0)])
def test_it_is_the_recursion(size: int, burn_in: int, decay: float) -> None:
    """Against the box, with the mean over workers and two gradients at every step, the first one included.

    Weight decay is a part of the function.
    """
    own = cluster(size, burn_in=burn_in, weight_decay=decay)
    theta, before = start(), start()
    v = torch.full_like(theta, 3.0)  # whatever v_0 is
    for step in range(25):
        advance(own, step, sampled)
        t = step + 1
        here, there = (
            torch.stack([sampled(x, step, r) for r in range(size)]).mean(0) + decay * x
            for x in (theta, before)
        )
        v = here + (t - 1) / t * (v - there)
        before, theta = theta, theta - (0.1 if t >= burn_in else 0.0) * v
        assert own.kind == ("step" if t > burn_in else "burn-in")
        torch.testing.assert_close(own.state(0, "direction")[0], v, rtol=0, atol=1e-12)
        torch.testing.assert_close(own.parameters(size - 1)[0], theta, rtol=0, atol=1e-12)
        assert t < burn_in or not torch.equal(theta, start())


def test_rates_shrink_by_the_rules() -> None:
    constant, power, inverse = (
        create("root-sgd", step_size=rule, exponent=exponent, slope=2.0).algorithm
        for rule, exponent in (("constant", 1.0), ("power", 0.5), ("inverse", 2.0))
    )
    assert [constant.rate(t, 0.5) for t in (1, 100)] == [0.5, 0.5]
    assert power.rate(16, 0.4) == pytest.approx(0.1)
    shared = torch.tensor(0.4)  # by all ranks and buckets, as on a GPU
    assert [float(power.rate(16, shared)) for _ in range(2)] == pytest.approx([0.1, 0.1])
    assert [inverse.rate(t, 0.5) for t in (1, 4)] == pytest.approx([1 / 4, 1 / 34])
    assert inverse.rate(9, 0.0) == 0.0
    own, x = cluster(1, rate=0.4, burn_in=1, step_size="power", exponent=0.5), start()
    for step in range(10):
        advance(own, step, lambda x, step, rank: true_gradient(x))
        x = x - 0.4 * (step + 1) ** -0.5 * true_gradient(x)
    torch.testing.assert_close(own.parameters(0)[0], x, rtol=0, atol=1e-13)


SEEDS, STEPS = 400, 2000


def last_iterates() -> tuple[Tensor, Tensor]:
    """theta_T - theta* of many seeds at once, [seeds, 5], and the curvature. Noise of covariance 1 in each coordinate.

    The seeds are the rows of one parameter: nothing mixes them.
    """
    curvature = torch.tensor([0.5, 0.875, 1.25, 1.625, 2.0], dtype=torch.float64)
    own = SimulatedCluster("root-sgd", [torch.zeros(SEEDS, 5, dtype=torch.float64)], 1, lr=0.25, burn_in=40)
    source = torch.Generator().manual_seed(11)
    for _ in range(STEPS):
        xi = torch.randn(SEEDS, 5, generator=source, dtype=torch.float64)
        reference_points = {
            p: [[own.reference_parameters(0, p)[0] * curvature + xi]] for p in own.reference_points
        }
        own.step([[own.parameters(0)[0] * curvature + xi]], reference_points=reference_points)
    return own.parameters(0)[0], curvature


@pytest.mark.full  # 2,000 steps, which a claim rests on
def test_the_last_iterate_has_the_best_covariance_there_is() -> None:
    """T Cov(theta_T) = A^-1 A^-1, the mean of 400 squares in each of 5 coordinates."""
    theta, curvature = last_iterates()
    ratio = STEPS * theta.square().mean(0) * curvature**2
    low, high = 0.758, 1.285  # chi-square with 400 degrees of freedom / 400 at 1e-4 and at 1 - 1e-4
    assert (ratio > low).all(), ratio
    assert (ratio < high).all(), ratio
