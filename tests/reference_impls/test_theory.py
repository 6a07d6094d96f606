"""What theory says of compressed SGD on quadratics, against measurement: 12 seeds, closed forms, tests that can fail.

Worker i sees the gradient a * (w - b_i) + sigma N(0, 1) of a quadratic with eigenvalues a; the b_i sum to zero, so the
optimum is 0. This is the law of the workload `quadratic`. The seeds lie behind one another in one vector, and every
unbiased code here has a scale of its own for each (a block of D elements, or a tensor), so they do not know of each other.

theta as Global-QSGD defines it (arXiv 2305.18627): E |G - mean|^2 = theta / n * sum_i |x_i|^2. It is measured, on
gradients as they are at the end, and put into the closed forms.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster

SEEDS, N, D = 12, 4, 256

UNBIASED = {
    "qsgd, 1 level": ("qsgd", {"levels": 1, "block_size": D}),
    "qsgd, 4 levels": ("qsgd", {"levels": 4, "block_size": D}),
    "global-qsgd, 1 level": ("global-qsgd", {"bits": 4, "scale": "block", "block_size": D}),
    "global-qsgd, l2": (
        "global-qsgd",
        {"bits": 5, "form": "two-phase", "norm": "l2", "scale": "block", "block_size": D},
    ),
    "natural": ("natural-compression", {"form": "gather"}),
    "terngrad": ("terngrad", {"scale": "tensor"}),
}


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many shapes and short runs: compiling would take longer than running, with the same bits."""
    monkeypatch.setenv("BANDWISE_COMPILE", "0")


class Descent:
    """SEEDS quadratics of d coordinates, trained at once; `rows` [SEEDS, d] are the points, 0 the optimum."""

    def __init__(
        self,
        name: str,
        options: dict[str, Any],
        lr: float,
        d: int = D,
        n: int = N,
        start: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        initial = start * torch.randn(SEEDS, d, generator=self._generator)
        self.size, self._shape = n, (n, SEEDS, d)
        self._storage = (torch.zeros(n, SEEDS * d), torch.zeros(n, SEEDS * d))
        tensors = list(initial) if options.get("scale") == "tensor" else [initial.flatten()]
        self._cluster = SimulatedCluster(name, tensors, n, lr=lr, seed=seed, storage=self._storage, **options)

    def noise(self) -> Tensor:
        return torch.randn(self._shape, generator=self._generator)

    @property
    def rows(self) -> Tensor:
        return self._storage[0][0].view(self._shape[1:])

    def step(self, gradients: Tensor) -> None:
        """gradients: [n, SEEDS, d], or without n where all workers have the same."""
        self._storage[1].copy_(gradients.expand(self._shape).reshape(self.size, -1))
        self._cluster.step()


def theta_of(name: str, options: dict[str, Any], gradients: Tensor, draws: int = 8) -> float:
    """theta of a method on gradients [n, SEEDS, d], over several draws."""
    n, _, d = gradients.shape
    total = 0.0
    found = Descent(name, options, lr=1.0, d=d, n=n)
    for _ in range(draws):
        before = found.rows.clone()
        found.step(gradients)
        total += float((before - found.rows - gradients.mean(0)).double().square().sum())
    return n * total / draws / float(gradients.double().square().sum())


def identical(n: int, d: int = 2_000) -> Tensor:
    """The same Gaussian gradient on all workers."""
    return torch.randn(SEEDS, d, generator=torch.Generator().manual_seed(7)).expand(n, SEEDS, d)


def slope(x: list[float], y: list[float]) -> float:
    """Of log y against log x, by least squares."""
    a, b = (torch.tensor(v, dtype=torch.float64).log() for v in (x, y))
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / a.square().sum())


# ---- stationary error ------------------------------------------------------------------------------------------------


def stationary(lr: float, theta: float, n: int = N, a: float = 1.0, sigma: float = 1.0, d: int = D) -> float:
    """E |w|^2 of V = (1 - lr a)^2 V + lr^2 (sigma^2 d / n + theta (a^2 V + sigma^2 d))."""
    return lr**2 * sigma**2 * d * (1 / n + theta) / (1 - (1 - lr * a) ** 2 - lr**2 * theta * a**2)


@pytest.mark.parametrize(
    "label",
    [
        *(pytest.param(label, marks=() if label == "natural" else pytest.mark.full) for label in UNBIASED),
        "exact",
    ],
)
def test_stationary_error_of_unbiased_codes_is_that_of_the_closed_form(label: str) -> None:
    name, options = UNBIASED.get(label, ("allreduce", {"optimizer": "sgd"}))
    lr, burn, steps = 0.2, 40, 100
    found = Descent(name, options, lr, seed=3)
    total = torch.zeros(SEEDS, dtype=torch.float64)
    for step in range(burn + steps):
        found.step(found.rows + found.noise())
        if step >= burn:
            total += found.rows.double().square().sum(1)
    measured = total / steps
    theta = theta_of(name, options, found.rows + found.noise()) if label != "exact" else 0.0
    expected = stationary(lr, theta)
    error = float(measured.std(correction=1)) / math.sqrt(SEEDS)
    assert error < 0.03 * expected  # else 12 seeds could not tell 10 %
    assert float(measured.mean()) == pytest.approx(expected, rel=0.1)
    if (
        theta > 0.05
    ):  # the closed form without the code, or with one that averages no error away, would be refused
        assert float(measured.mean()) > 1.1 * stationary(lr, 0.0)
        assert abs(stationary(lr, N * theta) / expected - 1) > 0.1


# ---- iterations to a given error -------------------------------------------------------------------------------------


def iterations(name: str, options: dict[str, Any], lr: float, most: int, to: float = 1e-3) -> int:
    """Steps until the mean loss over the seeds has fallen to `to` of the first; curvatures from 0.05 to 1, no noise."""
    curvature = torch.logspace(math.log10(0.05), 0, D)
    found = Descent(name, options, lr, start=1.0, seed=5)
    first = float((curvature * found.rows.square()).sum())
    for step in range(1, most + 1):
        found.step(curvature * found.rows)
        loss = float((curvature * found.rows.square()).sum())
        if loss <= to * first:
            return step
        if not loss < 1e6 * first:
            return -1
    return -1


@pytest.mark.parametrize(
    "label",
    [
        pytest.param("qsgd, 1 level", marks=pytest.mark.full),
        "qsgd, 4 levels",
        pytest.param("global-qsgd, l2", marks=pytest.mark.full),
        "natural",
    ],
)
def test_iterations_to_an_error_grow_by_at_most_one_plus_theta_n(label: str) -> None:
    """At the largest rates that theory grants: 1 / L, and with a code 1 / (L (1 + theta)) where all gradients are one."""
    name, options = UNBIASED[label]
    theta = theta_of(name, options, identical(N, D), draws=3)
    plain = iterations("allreduce", {"optimizer": "sgd"}, 1.0, 1000)
    coded = iterations(name, options, 1 / (1 + theta), 4000)
    assert plain > 0
    assert 0 < coded <= (1 + theta * N) * plain


def test_a_rate_that_ignores_the_code_diverges() -> None:
    """So the factor above is there for a reason."""
    name, options = UNBIASED["qsgd, 1 level"]
    assert iterations("allreduce", {"optimizer": "sgd"}, 1.9, 1000) > 0
    assert iterations(name, options, 1.9, 1000) == -1


# ---- error against the number of workers -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "name", "options", "expected"),
    [
        ("independent codes: 1/n", "qsgd", {"bits": 4}, -1.0),
        ("independent codes, powers of two: 1/n", "natural-compression", {"form": "gather"}, -1.0),
        ("shared levels of a fixed width: n", "global-qsgd", {"bits": 8}, 1.0),
        ("levels of a fixed number: 1/n", "terngrad", {}, -1.0),
        ("exponential codes: a floor", "global-qsgd", {"dithering": "exponential"}, 0.0),
    ],
    ids=lambda value: value if isinstance(value, str) and ":" in value else "",
)  # fmt: skip
def test_slope_of_the_error_against_the_number_of_workers(
    label: str, name: str, options: dict[str, Any], expected: float
) -> None:
    """Squared error of the mean of identical gradients, relative to it."""
    sizes = [2.0, 4.0, 8.0, 16.0]
    found = [theta_of(name, options, identical(int(n), 500), draws=3) for n in sizes]
    assert slope(sizes, found) == pytest.approx(expected, abs=0.12), (label, found)


@pytest.mark.full
def test_the_floor_of_exponential_codes_is_there_at_64_workers() -> None:
    """Relative squared error 0.08 for identical gradients whatever n: the last addition rounds the whole sum."""
    options = {"dithering": "exponential"}
    found = {n: theta_of("global-qsgd", options, identical(n, 500), draws=3) for n in (4, 16, 64)}
    assert found == {n: pytest.approx(0.081, rel=0.1) for n in found}


# ---- error feedback --------------------------------------------------------------------------------------------------


def distance(lr: float, feedback: bool) -> float:
    """Mean squared distance to the optimum at the end; two workers with optima of their own, no noise."""
    found = Descent(
        "top-k",
        {"ratio": 0.1, "error_feedback": feedback},
        lr,
        d=64,
        n=2,
        start=1.0,
        seed=9,
    )
    shifts = found.noise()
    shifts -= shifts.mean(0)
    total, last = 0.0, 60
    steps = last + int(8 / lr)
    for step in range(steps):
        found.step(found.rows - shifts)
        if step >= steps - last:
            total += float(found.rows.double().square().sum(1).mean()) / last
    return total


@pytest.mark.full
def test_error_feedback_leaves_a_bias_of_the_square_of_the_rate() -> None:
    """And without it the bias does not go away with the rate."""
    rates = [0.05, 0.1, 0.2]
    with_feedback, without = ([distance(lr, on) for lr in rates] for on in (True, False))
    assert slope(rates, with_feedback) == pytest.approx(2.0, abs=0.25), with_feedback
    assert slope(rates, without) == pytest.approx(0.0, abs=0.25), without
    assert without[0] > 30 * with_feedback[0]
