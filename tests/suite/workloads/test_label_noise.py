"""Label noise against its closed forms: gradient, Hessian, test loss; and that the noise finds flat places."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.func import grad, hessian

from suite.workloads import get
from suite.workloads.label_noise import BLOCK, SAMPLES, LabelNoiseTask


def task(
    seed: int = 0, world_size: int = 4, batch_size: int | None = None, **options: bool
) -> LabelNoiseTask:
    made = get("label-noise-diagonal", **options).task(seed, world_size, batch_size=batch_size)
    assert isinstance(made, LabelNoiseTask)
    return made


def test_the_teacher_is_sparse_and_redrawn() -> None:
    teachers = [task(seed).teacher for seed in range(20)]
    for teacher in teachers:
        assert sorted(np.abs(teacher)) == [0.0] * 95 + [1.0] * 5
    assert len({tuple(teacher) for teacher in teachers}) == 20
    assert {-1.0, 1.0} <= set(np.concatenate(teachers))


def test_the_gradient_is_the_closed_form() -> None:
    made = task(batch_size=3)
    params = made.initial()
    x, y = (part[1] for part in made.batch(7))
    error = x @ (params["u"] ** 2 - params["v"] ** 2) - y
    found = grad(made.loss)(params, x, y)
    torch.testing.assert_close(
        found["u"], (2 * error[:, None] * x * params["u"]).mean(0), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        found["v"], (-2 * error[:, None] * x * params["v"]).mean(0), rtol=1e-4, atol=1e-5
    )


def test_scores_are_exact() -> None:
    made = task(seed=2)
    params = {name: value.double() for name, value in made.initial().items()}
    scored = made.evaluate(params)
    x, y = torch.from_numpy(made.inputs).double(), torch.from_numpy(made.labels).double()
    assert scored["clean_loss"] == pytest.approx(float(made.loss(params, x, y)), rel=1e-6)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        return made.loss({"u": flat[:100], "v": flat[100:]}, x, y)

    curvature = hessian(loss)(torch.cat([params["u"], params["v"]]))
    assert scored["hessian_trace"] == pytest.approx(float(curvature.trace()), rel=1e-9)

    new = torch.randn(200_000, 100, generator=torch.Generator().manual_seed(0))
    squared = (new @ (params["u"] ** 2 - params["v"] ** 2 - torch.from_numpy(made.teacher)).float()) ** 2
    bound = 4 * float(squared.std()) / 200_000**0.5
    assert scored["test_loss"] == pytest.approx(float(squared.mean()), abs=bound)

    there = {
        "u": torch.from_numpy(made.teacher.clip(0)),
        "v": torch.from_numpy((-made.teacher).clip(0)),
    }
    assert made.evaluate(there)["test_loss"] == 0.0
    assert made.evaluate(there)["clean_loss"] == 0.0


def test_samples_are_a_workers_own_and_the_noise_is_fresh() -> None:
    made = task(seed=1)
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
    bound = 4 / np.sqrt(signs.size)
    assert abs(signs.mean()) < bound
    for lag in (1, BLOCK):
        assert abs((signs[lag:] * signs[:-lag]).mean()) < 4 / np.sqrt(signs[lag:].size)
    assert abs((signs[:, 0] * signs[:, 1]).mean()) < 4 / np.sqrt(len(signs))


def test_shared_samples_are_everybodys() -> None:
    made = task(shared=True)
    for rank in range(4):
        seen = {tuple(made.batch(step)[0][rank, 0].numpy()) for step in range(600)}
        assert len(seen) == SAMPLES


def test_noise_finds_flat_places() -> None:
    """Fresh noise takes the trace and the test loss down; the same steps on true labels leave both."""
    made = task(seed=4)
    found = {}
    for noisy in (True, False):
        u, v = (value.numpy().copy() for value in made.initial().values())
        for step in range(8000):
            x, y = (part[:, 0].numpy() for part in made.batch(step))
            if not noisy:
                y = made.labels[(made.inputs @ x.T).argmax(axis=0)]
            error = x @ (u * u - v * v) - y
            pull = 2 * (error[:, None] * x).mean(axis=0)
            u, v = u - 0.02 * pull * u, v + 0.02 * pull * v
        found[noisy] = made.evaluate({"u": torch.from_numpy(u), "v": torch.from_numpy(v)})
    assert found[False]["clean_loss"] < 1e-6
    assert found[True]["hessian_trace"] < 0.7 * found[False]["hessian_trace"]
    assert found[True]["test_loss"] < 0.7 * found[False]["test_loss"]
