"""Workloads of made data against what is known of them: closed forms, laws of their draws, exact scores."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import grad, hessian, vmap

from suite.workloads import get
from suite.workloads.synthetic import BLOCK, SAMPLES, TEST_SIZE, TRAIN_SIZE, Quadratic, spectrum

# ---- the quadratic ---------------------------------------------------------------------------------------------------------


def test_the_gradient_of_the_quadratic_is_the_closed_form() -> None:
    """A (w - 1 - b_i) minus the mean of the batch's noise, the slopes being noise plus A b_i."""
    np.testing.assert_allclose(spectrum(5, 16.0), [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1], rtol=1e-6)
    task = Quadratic(dim=30, condition=50.0, sigma=0.5).task(1, 3, "by-class", batch_size=4)
    curvature = torch.from_numpy(spectrum(30, 50.0).copy())
    (slopes,), w = task.batch(7), task.initial()["w"]
    for rank in range(3):
        shift = torch.from_numpy(task.shifts[rank])
        noise = (slopes[rank] - curvature * shift).mean(0)
        found = grad(task.loss)({"w": w}, slopes[rank])["w"]
        torch.testing.assert_close(found, curvature * (w - 1.0 - shift) - noise, rtol=1e-5, atol=1e-6)


def test_optima_of_the_workers_and_of_their_mean() -> None:
    task = Quadratic(dim=40, sigma=0.0).task(0, 5, "by-class")
    ones, (slopes,) = torch.ones(40), task.batch(0)
    per_worker = vmap(grad(task.loss), in_dims=(None, 0))({"w": ones}, slopes)["w"]
    assert per_worker.abs().amax(dim=1).min() > 0.1
    torch.testing.assert_close(per_worker.mean(0), torch.zeros(40), rtol=0, atol=1e-6)
    for rank in range(5):
        own = grad(task.loss)({"w": ones + torch.from_numpy(task.shifts[rank])}, slopes[rank])["w"]
        torch.testing.assert_close(own, torch.zeros(40), rtol=0, atol=1e-6)
    assert task.evaluate({"w": ones}) == {"excess_loss": 0.0}
    assert not Quadratic(dim=40).task(0, 5, "iid").shifts.any()
    params = task.initial()
    losses = vmap(task.loss, in_dims=(None, 0))(params, slopes)
    assert float(losses.mean()) == pytest.approx(task.evaluate(params)["excess_loss"], rel=1e-5)


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


# ---- label noise -----------------------------------------------------------------------------------------------------------


def label_noise(seed: int = 0, batch_size: int | None = None, **options: bool) -> Any:
    return get("label-noise-diagonal", **options).task(seed, 4, batch_size=batch_size)


def test_the_gradient_under_label_noise_is_the_closed_form() -> None:
    made = label_noise(batch_size=3)
    params = made.initial()
    x, y = (part[1] for part in made.batch(7))
    error = x @ (params["u"] ** 2 - params["v"] ** 2) - y
    found = grad(made.loss)(params, x, y)
    for name, sign in (("u", 2), ("v", -2)):
        expected = (sign * error[:, None] * x * params[name]).mean(0)
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-5)


def test_scores_under_label_noise_are_exact() -> None:
    made = label_noise(seed=2)
    params = {name: value.double() for name, value in made.initial().items()}
    scored = made.evaluate(params)
    x, y = torch.from_numpy(made.inputs).double(), torch.from_numpy(made.labels).double()
    assert scored["clean_loss"] == pytest.approx(float(made.loss(params, x, y)), rel=1e-6)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = made.loss({"u": flat[:100], "v": flat[100:]}, x, y)
        return found

    curvature = hessian(loss)(torch.cat([params["u"], params["v"]]))
    assert scored["hessian_trace"] == pytest.approx(float(curvature.trace()), rel=1e-9)
    new = torch.randn(200_000, 100, generator=torch.Generator().manual_seed(0))
    squared = (new @ (params["u"] ** 2 - params["v"] ** 2 - torch.from_numpy(made.teacher)).float()) ** 2
    bound = 4 * float(squared.std()) / 200_000**0.5
    assert scored["test_loss"] == pytest.approx(float(squared.mean()), abs=bound)


def test_samples_are_a_workers_own_or_everybodys_and_the_noise_is_fresh() -> None:
    made = label_noise(seed=1)
    known = {tuple(row): index for index, row in enumerate(made.inputs)}
    seen: list[set[int]] = [set() for _ in range(4)]
    noise = []
    for step in range(2 * BLOCK):
        x, y = made.batch(step)
        for rank in range(4):
            index = known[tuple(x[rank, 0].numpy())]
            seen[rank].add(index)
            noise.append(float(y[rank, 0]) - made.labels[index])
    assert [len(own) for own in seen] == [10] * 4
    assert len(set.union(*seen)) == SAMPLES
    signs = np.array(noise).reshape(-1, 4)
    np.testing.assert_allclose(np.abs(signs), 1.0, atol=1e-5)
    assert abs(signs.mean()) < 4 / np.sqrt(signs.size)
    for lag in (1, BLOCK):
        assert abs((signs[lag:] * signs[:-lag]).mean()) < 4 / np.sqrt(signs[lag:].size)
    assert abs((signs[:, 0] * signs[:, 1]).mean()) < 4 / np.sqrt(len(signs))
    shared = label_noise(shared=True)
    assert len({tuple(shared.batch(step)[0][3, 0].numpy()) for step in range(600)}) == SAMPLES


# ---- clicks ----------------------------------------------------------------------------------------------------------------


def clicks(seed: int = 0) -> Any:
    return get("ctr-zipf").task(seed, 4)


def test_the_machine_is_the_sum_over_all_pairs_and_hardly_any_gradient_is_not_zero() -> None:
    made, module = clicks(), get("ctr-zipf").module(3)
    buckets = made.batch(0)[0]
    table = dict(module.named_parameters())["table"].detach().double()
    with torch.no_grad():
        logits = module(buckets[1])
    for row, logit in zip(buckets[1, :5], logits[:5], strict=True):
        picked = table[row]
        pairs = sum(float(a @ b) for a, b in itertools.combinations(picked[:, 1:], 2))
        expected = module.get_parameter("intercept").item() + float(picked[:, 0].sum()) + pairs
        assert float(logit) == pytest.approx(expected, abs=1e-5)
    gradient = grad(made.loss)(made.initial(), *(part[2] for part in made.batch(0)))["table"]
    touched = gradient.abs().sum(dim=1).nonzero().flatten().tolist()
    assert sorted(touched) == sorted(buckets[2].unique().tolist())
    assert float((gradient == 0).double().mean()) > 0.95


def test_scores_of_clicks_are_exact() -> None:
    made, module = clicks(seed=2), get("ctr-zipf").module(2)
    with torch.no_grad():
        q = torch.sigmoid(module(made.buckets[TRAIN_SIZE:]).double())
    scored = made.evaluate(dict(module.named_parameters()))
    for name, p in (("log_loss", made.probabilities), ("nll", made.clicks.double())):
        own = p[TRAIN_SIZE:]
        expected = float(-(own * q.log() + (1 - own) * (1 - q).log()).mean())
        assert scored[name] == pytest.approx(expected, rel=1e-6)
    assert made.test_size == TEST_SIZE == len(q)
