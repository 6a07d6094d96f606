"""The digits workloads: the real bytes, splits and shards of them, exact scores, and that they can be learnt."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad

from suite.workloads import DataError, digits, get
from suite.workloads.digits import LAYERS, DigitsTask, load_digits


def task(sharding: str = "iid", seed: int = 0, world_size: int = 4, name: str = "digits-mlp") -> DigitsTask:
    made = get(name).task(seed, world_size, sharding)
    assert isinstance(made, DigitsTask)
    return made


def test_other_bytes_and_lost_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "_SHA256", "0" * 64)
    with pytest.raises(DataError, match=r"digits data has SHA-256 87ff0c.*, expected 000.*reinstall"):
        load_digits.__wrapped__()
    nowhere = SimpleNamespace(locate_file=lambda path: tmp_path / "digits.csv.gz")
    monkeypatch.setattr(digits, "find_distribution", lambda name, why: nowhere)
    with pytest.raises(DataError, match="reinstall it from its wheel"):
        load_digits.__wrapped__()


def test_scores_are_exact() -> None:
    workload = get("digits-mlp")
    made, module = workload.task(0, 4), workload.module(3)
    assert isinstance(made, DigitsTask)
    labels = made.labels[made.test]
    with torch.no_grad():
        logits = module(made.images[made.test])
    scored = made.evaluate(dict(module.named_parameters()))
    assert scored["accuracy"] == pytest.approx(
        100 * float((logits.argmax(-1) == labels).double().mean()), abs=1e-9
    )
    assert scored["nll"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)

    silent = {key: torch.zeros_like(value) for key, value in made.initial().items()}
    scored = made.evaluate(silent)
    assert scored["nll"] == pytest.approx(math.log(10), rel=1e-7)
    assert scored["accuracy"] == pytest.approx(100 * float((labels == 0).double().mean()), abs=1e-9)


# ---- a fifth of them mislabelled ---------------------------------------------------------------------------------------------


def test_a_fifth_of_the_training_labels_are_wrong_and_no_other() -> None:
    truth = torch.from_numpy(load_digits()[1].astype(np.int64))
    for seed in range(5):
        made = task(seed=seed, name="digits-noisy")
        wrong = made.labels != truth
        assert int(wrong[made.train].sum()) == int(wrong.sum()) == 60
        assert (len(made.train), len(made.test)) == (made.train_size, made.test_size) == (300, 1197)
        assert len({*made.train.tolist(), *made.test.tolist()}) == 1497
        assert made.labels.min() == 0
        assert made.labels.max() == 9


# ---- a convolutional network, and where its batch statistics come from ---------------------------------------------------------


def torchs(params: dict[str, Tensor]) -> nn.Sequential:
    """The same network of torch's layers, in training mode, in double precision."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in LAYERS:
        layers += [
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(LAYERS[-1][1] * 4, 10)).double()
    places = {f"convolutions.{i}": 3 * i for i in range(3)} | {f"norms.{i}": 3 * i + 1 for i in range(3)}
    places["head"] = len(model) - 1
    renamed = {}
    for name, value in params.items():
        layer, _, leaf = name.rpartition(".")
        renamed[f"{places[layer]}.{leaf}"] = value.double()
    missing, unexpected = model.load_state_dict(renamed, strict=False)
    assert not unexpected
    assert all("running" in name or "tracked" in name for name in missing)
    return model


def perturbed(params: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scales and shifts of the norms that matter."""
    noise = torch.Generator().manual_seed(1)
    return {name: value + 0.2 * torch.randn(value.shape, generator=noise) for name, value in params.items()}


@pytest.mark.parametrize("sharding", ["iid", "by-class"])
def test_training_normalises_with_the_workers_own_batch(sharding: str) -> None:
    made = task(sharding, name="digits-cnn")
    params = perturbed(made.initial())
    images, labels = made.batch(3)
    for rank in range(4):
        model = torchs(params)
        loss = F.cross_entropy(model(images[rank].double().reshape(-1, 1, 8, 8)), labels[rank])
        loss.backward()
        found = grad(made.loss)(params, images[rank], labels[rank])
        assert made.loss(params, images[rank], labels[rank]).item() == pytest.approx(loss.item(), rel=1e-5)
        weight = model[3].weight
        assert isinstance(weight, Tensor)
        assert weight.grad is not None
        torch.testing.assert_close(found["convolutions.1.weight"].double(), weight.grad, rtol=1e-3, atol=1e-6)
    # not with everybody's: that would be another loss
    together = made.loss(params, images.flatten(0, 1), labels.flatten())
    apart = torch.stack([made.loss(params, images[rank], labels[rank]) for rank in range(4)]).mean()
    assert abs(float(together - apart)) > 1e-3


def test_evaluation_normalises_with_all_training_images() -> None:
    made = task(name="digits-cnn")
    params = perturbed(made.initial())
    model = torchs(params)
    hidden = made.images[made.train].double().reshape(-1, 1, 8, 8)
    fitted = copy.deepcopy(model)
    for layer, own in zip(model, fitted, strict=True):
        if isinstance(own, nn.BatchNorm2d):
            flat = hidden.transpose(0, 1).flatten(1)
            own.running_mean, own.running_var = flat.mean(1), flat.var(1, correction=0)
        hidden = layer(hidden)
    with torch.no_grad():
        logits = fitted.eval()(made.images[made.test].double().reshape(-1, 1, 8, 8))
    labels = made.labels[made.test]
    scored = made.evaluate(params)
    assert scored["nll"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
    assert scored["accuracy"] == pytest.approx(100 * float((logits.argmax(-1) == labels).double().mean()))
    # workers, shards and the other images that are judged do not matter
    assert task("by-class", world_size=2, name="digits-cnn").evaluate(params) == scored
    some, all_of_them = made.images[made.test[:5]], made.images[made.test]
    torch.testing.assert_close(
        made.logits(params, some), made.logits(params, all_of_them)[:5], rtol=1e-5, atol=1e-5
    )
