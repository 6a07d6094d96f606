"""The digits workloads: the real bytes, splits and shards of them, exact scores, and that they can be learnt."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import grad_and_value, vmap

from suite.workloads import DataError, get
from suite.workloads import digits as digits_module
from suite.workloads.digits import DigitsTask, load_digits


def task(sharding: str = "iid", seed: int = 0, world_size: int = 4) -> DigitsTask:
    made = get("digits-mlp").task(seed, world_size, sharding)
    assert isinstance(made, DigitsTask)
    return made


def test_the_images_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits as load_theirs

    theirs = load_theirs()
    images, labels = load_digits()
    assert (images == theirs.data).all()
    assert (labels == theirs.target).all()
    assert not images.flags.writeable


class FakeDistribution:
    def __init__(self, root: Path) -> None:
        self.root = root

    def locate_file(self, path: str) -> Path:
        return self.root / path


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[np.ndarray], None]:
    """Puts a table of digits where scikit-learn's would be."""

    def put(table: np.ndarray) -> None:
        path = tmp_path / "sklearn/datasets/data/digits.csv.gz"
        path.parent.mkdir(parents=True)
        with gzip.open(path, "wt") as file:
            np.savetxt(file, table, fmt="%d", delimiter=",")

    monkeypatch.setattr(digits_module, "find_distribution", lambda name, why: FakeDistribution(tmp_path))
    return put


@pytest.mark.parametrize("where", [None, (0, 0), (1796, 64)])
def test_the_bytes_are_held_against_their_hash(
    where: tuple[int, int] | None, plant: Callable[[np.ndarray], None]
) -> None:
    images, labels = load_digits()
    table = np.column_stack([images, labels])
    if where is None:
        plant(table)
        assert (load_digits.__wrapped__()[0] == images).all()
    else:
        table[where] += 1
        plant(table)
        with pytest.raises(DataError, match=r"digits data has SHA-256 .*, expected 87ff0c.*reinstall"):
            load_digits.__wrapped__()


def test_missing_data_says_what_to_install(plant: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="reinstall it from its wheel"):
        load_digits.__wrapped__()
    monkeypatch.undo()
    from suite.workloads.installed import find_distribution

    with pytest.raises(DataError, match="no-such-thing is not installed: pip install no-such-thing"):
        find_distribution("no-such-thing", "because")


@pytest.mark.parametrize("sharding", ["iid", "by-class"])
def test_shards_and_test_part_are_disjoint_and_cover_all_images(sharding: str) -> None:
    made = task(sharding)
    parts = [*made.sampler.shards, made.test.numpy()]
    assert sorted(np.concatenate(parts)) == list(range(1797))
    assert (made.train_size, made.test_size) == (1257, 540)
    assert made.steps_per_epoch == math.ceil(1257 / 128)


def test_the_split_is_redrawn_for_each_seed_and_shared_by_all_settings() -> None:
    assert torch.equal(task().test, task("by-class", world_size=2).test)
    assert not torch.equal(task().test, task(seed=1).test)


def test_by_class_batches_hold_their_labels() -> None:
    made = task("by-class")
    for step in range(30):
        labels = made.batch(step)[1]
        assert (labels % 4 == torch.arange(4)[:, None]).all()
    mixed = task("iid").batch(0)[1]
    assert all(row.unique().numel() > 3 for row in mixed)
    with pytest.raises(ValueError, match="leave some of 11 workers without data: use world_size <= 10"):
        task("by-class", world_size=11)


def test_images_and_labels_belong_together() -> None:
    made = task(seed=2)
    pixels, labels = load_digits()
    known = {tuple(image): int(label) for image, label in zip(pixels.tolist(), labels, strict=True)}
    images, targets = made.batch(3)
    restored = (images * 6.0 + 4.9).round().int()
    for image, target in zip(restored.flatten(0, 1).tolist(), targets.flatten(), strict=True):
        assert known[tuple(image)] == int(target)


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


def train(made: DigitsTask, steps: int, lr: float) -> dict[str, torch.Tensor]:
    """Plain SGD on the mean gradient of all workers."""
    params = made.initial()
    gradient = vmap(grad_and_value(made.loss), in_dims=(None, 0, 0))
    for step in range(steps):
        gradients, _ = gradient(params, *made.batch(step))
        params = {name: value - lr * gradients[name].mean(0) for name, value in params.items()}
    return params


@pytest.mark.parametrize("sharding", ["iid", "by-class"])
def test_sgd_learns_digits(sharding: str) -> None:
    made = task(sharding)
    before = made.evaluate(made.initial())
    after = made.evaluate(train(made, steps=60, lr=0.3))
    assert before["accuracy"] < 30
    assert after["accuracy"] > 93
    assert after["nll"] < 0.3
