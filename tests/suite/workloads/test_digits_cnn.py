"""The convolutional digits workload against torch's own layers, and where its batch statistics come from."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad

from suite.workloads import get
from suite.workloads.digits_cnn import LAYERS, BatchNorm, Convolution, NormalisedDigitsTask


def task(sharding: str = "iid", world_size: int = 4) -> NormalisedDigitsTask:
    made = get("digits-cnn").task(0, world_size, sharding)
    assert isinstance(made, NormalisedDigitsTask)
    return made


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


@pytest.mark.parametrize("stride", [1, 2])
def test_the_convolution_is_torchs(stride: int) -> None:
    layer = Convolution(3, 5, stride)
    weight = torch.randn(5, 3, 3, 3, generator=torch.Generator().manual_seed(0))
    layer.load_state_dict({"weight": weight}, assign=True)
    images = torch.randn(3, 7, 8, 8, generator=torch.Generator().manual_seed(2))
    expected = F.conv2d(images.transpose(0, 1), weight, stride=stride, padding=1).transpose(0, 1)
    torch.testing.assert_close(layer(images), expected, rtol=1e-5, atol=1e-5)


def test_the_norm_is_torchs() -> None:
    layer, theirs = BatchNorm(4), nn.BatchNorm2d(4)
    values = {"weight": torch.rand(4) + 0.5, "bias": torch.rand(4)}
    layer.load_state_dict(values, assign=True)
    theirs.load_state_dict(values, strict=False)
    images = 3.0 + 2.0 * torch.randn(4, 9, 5, 5, generator=torch.Generator().manual_seed(0))
    expected = theirs(images.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(layer(images, images), expected, rtol=1e-5, atol=1e-5)
    # with the statistics of others: what torch does in evaluation
    others = torch.randn(4, 30, 5, 5, generator=torch.Generator().manual_seed(1))
    flat = others.flatten(1)
    theirs.running_mean, theirs.running_var = flat.mean(1), flat.var(1, correction=0)
    expected = theirs.eval()(images.transpose(0, 1)).transpose(0, 1)
    torch.testing.assert_close(layer(images, others), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sharding", ["iid", "by-class"])
def test_training_normalises_with_the_workers_own_batch(sharding: str) -> None:
    made = task(sharding)
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
    made = task()
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
    assert task("by-class", world_size=2).evaluate(params) == scored
    some, all_of_them = made.images[made.test[:5]], made.images[made.test]
    torch.testing.assert_close(
        made.logits(params, some), made.logits(params, all_of_them)[:5], rtol=1e-5, atol=1e-5
    )


def test_there_are_no_buffers() -> None:
    module = get("digits-cnn").module(0)
    assert not list(module.buffers())
    assert set(module.state_dict()) == {name for name, _ in module.named_parameters()}
