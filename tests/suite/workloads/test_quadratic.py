"""The quadratic against its closed forms: gradient, optimum, noise, descent, stationary error."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import grad, vmap

from suite.workloads.quadratic import Quadratic, QuadraticTask, spectrum


def test_the_spectrum_is_the_one_asked_for() -> None:
    values = spectrum(5, 16.0)
    np.testing.assert_allclose(values, [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1], rtol=1e-6)
    assert spectrum(1, 4.0) == pytest.approx(0.25)


def test_the_gradient_is_the_closed_form() -> None:
    """A (w - 1 - b_i) minus the mean of the batch's noise, the slopes being noise plus A b_i."""
    task = Quadratic(dim=30, condition=50.0, sigma=0.5).task(1, 3, "by-class", batch_size=4)
    curvature = torch.from_numpy(spectrum(30, 50.0).copy())
    (slopes,) = task.batch(7)
    w = task.initial()["w"]
    for rank in range(3):
        shift = torch.from_numpy(task.shifts[rank])
        noise = (slopes[rank] - curvature * shift).mean(0)
        expected = curvature * (w - 1.0 - shift) - noise
        found = grad(task.loss)({"w": w}, slopes[rank])["w"]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    # and by differences, in the direction of the gradient
    direction = found / found.norm()
    up, down = (task.loss({"w": w + sign * 0.05 * direction}, slopes[2]) for sign in (1.0, -1.0))
    assert float((up - down) / 0.1) == pytest.approx(float(found.norm()), rel=1e-3)


def test_optima_of_the_workers_and_of_their_mean() -> None:
    task = Quadratic(dim=40, sigma=0.0).task(0, 5, "by-class")
    assert task.shifts.std() > 0.5
    ones = torch.ones(40)
    (slopes,) = task.batch(0)
    per_worker = vmap(grad(task.loss), in_dims=(None, 0))({"w": ones}, slopes)["w"]
    assert per_worker.abs().amax(dim=1).min() > 0.1
    torch.testing.assert_close(per_worker.mean(0), torch.zeros(40), rtol=0, atol=1e-6)
    for rank in range(5):
        own = grad(task.loss)({"w": ones + torch.from_numpy(task.shifts[rank])}, slopes[rank])["w"]
        torch.testing.assert_close(own, torch.zeros(40), rtol=0, atol=1e-6)
    assert task.evaluate({"w": ones}) == {"excess_loss": 0.0}
    assert not Quadratic(dim=40).task(0, 5, "iid").shifts.any()


def test_the_mean_loss_of_the_workers_is_the_excess_loss() -> None:
    task = Quadratic(dim=40, sigma=0.0).task(2, 4, "by-class")
    params = task.initial()
    losses = vmap(task.loss, in_dims=(None, 0))(params, *task.batch(0))
    assert float(losses.mean()) == pytest.approx(task.evaluate(params)["excess_loss"], rel=1e-5)
    expected = 0.5 * float((spectrum(40, 100.0) * (params["w"].double().numpy() - 1.0) ** 2).sum())
    assert task.evaluate(params)["excess_loss"] == pytest.approx(expected, rel=1e-6)


def noise(task: QuadraticTask, steps: int) -> np.ndarray:
    """The slopes of `steps` steps, float64 [steps, world_size, batch_size, dim]."""
    return np.stack([task.batch(step)[0].numpy() for step in range(steps)]).astype(np.float64)


def test_the_noise_is_normal_and_independent() -> None:
    drawn = noise(Quadratic(dim=50, sigma=0.3).task(0, 2, batch_size=2), 250) / 0.3
    count = drawn.size
    assert abs(drawn.mean()) < 4 / np.sqrt(count)
    assert abs(drawn.var() - 1) < 4 * np.sqrt(2 / count)
    assert abs((drawn**4).mean() - 3) < 4 * np.sqrt(96 / count)
    for one, other in (
        (drawn[:, 0], drawn[:, 1]),
        (drawn[:, :, 0], drawn[:, :, 1]),
        (drawn[1:], drawn[:-1]),
        (drawn[..., 1:], drawn[..., :-1]),
    ):
        assert abs((one * other).mean()) < 4 / np.sqrt(one.size)


def test_gradient_descent_contracts_as_it_should() -> None:
    task = Quadratic(dim=10, condition=10.0, sigma=0.0).task(0, 2, "by-class")
    start = w = task.initial()["w"]
    for step in range(50):
        w = w - 0.5 * vmap(grad(task.loss), in_dims=(None, 0))({"w": w}, *task.batch(step))["w"].mean(0)
    factor = (1 - 0.5 * torch.from_numpy(spectrum(10, 10.0).copy())) ** 50
    torch.testing.assert_close(w - 1, factor * (start - 1), rtol=1e-3, atol=1e-6)


def test_sgd_settles_at_the_closed_form() -> None:
    """Stationary excess of SGD: sum over a of lr sigma^2 / (2 m (2 - lr a)), m examples a step; within 10 %."""
    lr, sigma, world_size, batch_size = 0.4, 0.5, 2, 2
    task = Quadratic(dim=200, condition=4.0, sigma=sigma).task(0, world_size, batch_size=batch_size)
    curvature = torch.from_numpy(spectrum(200, 4.0).copy())
    params, excess = {"w": torch.ones(200)}, []
    for step in range(600):
        gradient = curvature * (params["w"] - 1) - task.batch(step)[0].mean(dim=(0, 1))
        params = {"w": params["w"] - lr * gradient}
        if step >= 100:
            excess.append(task.evaluate(params)["excess_loss"])
    expected = float((lr * sigma**2 / (2 * world_size * batch_size * (2 - lr * curvature))).sum())
    assert np.mean(excess) == pytest.approx(expected, rel=0.1)


def test_one_average_at_the_end_loses_nothing() -> None:
    """Why no verdict on equal accuracy can rest on this workload: SGD is linear on it."""
    task = Quadratic(dim=20, sigma=0.5).task(0, 4, "by-class")
    start = task.initial()["w"]
    together, apart = start, start.expand(4, -1)
    gradient = vmap(grad(task.loss))
    for step in range(60):
        batch = task.batch(step)
        together = together - 0.3 * gradient({"w": together.expand(4, -1)}, *batch)["w"].mean(0)
        apart = apart - 0.3 * gradient({"w": apart}, *batch)["w"]
    assert float((apart - together).abs().max()) > 0.3
    torch.testing.assert_close(apart.mean(0), together, rtol=0, atol=1e-5)
