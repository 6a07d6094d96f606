"""`fashion-mnist`: where its files are looked for, who trains on which images, and that its convolutions are torch's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from suite import DATA
from suite.workloads import DataError, fashion, get
from suite.workloads.digits import DigitsTask
from suite.workloads.fashion import FOLDER, Network, folder_of_images, load_images
from tests.suite.workloads.cases import CASES
from tests.suite.workloads.made_up_data import fashion_mnist

(CASE,) = [case for case in CASES if case.name == "fashion-mnist"]
REMEDY = "github.com/zalandoresearch/fashion-mnist .*--data-dir DIR .*apt install dataset-fashion-mnist"


def test_files_of_the_users_go_before_debians(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fashion, "DEBIANS", tmp_path / "debians")
    for own in ("", str(tmp_path)):
        monkeypatch.setenv(DATA, own)
        with pytest.raises(DataError, match=f"there is no .*debians: .*{REMEDY}"):
            get("fashion-mnist").task(0, 4)
    (tmp_path / "debians").mkdir()
    assert folder_of_images() == tmp_path / "debians"
    (tmp_path / FOLDER).mkdir()
    assert folder_of_images() == tmp_path / FOLDER


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: None, "train-images-idx3-ubyte.gz has SHA-256 .*, expected c59f468a.*"),
        (lambda file: file.write_bytes(file.read_bytes()[:500]), "cannot read .*train-images-idx3-ubyte.gz"),
        (lambda file: file.write_bytes(b"no gzip"), "cannot read .*train-images-idx3-ubyte.gz"),
        (lambda file: file.unlink(), "cannot read .*train-images-idx3-ubyte.gz"),
    ],
)
def test_other_bytes_are_refused_with_what_helps(damage: object, message: str, tmp_path: Path) -> None:
    fashion_mnist(tmp_path)
    assert callable(damage)
    damage(tmp_path / FOLDER / "train-images-idx3-ubyte.gz")
    with pytest.raises(DataError, match=f"{message}.*{REMEDY}"):
        load_images(tmp_path / FOLDER)


def test_convolutions_are_torchs() -> None:
    task, model = CASE.task(), Network()
    model.load_state_dict(task.initial(), assign=True)
    images = task.batch(0)[0][0]
    x = (images.double().reshape(-1, 1, 28, 28) - 73) / 90
    for layer in (model.first, model.second):
        assert layer.bias is not None
        x = F.relu(F.conv2d(x, layer.weight.double(), layer.bias.double(), 2, layer.padding))
    x = F.relu(model.hidden.double()(x.permute(0, 2, 3, 1).flatten(1)))
    expected = model.head.double()(x)
    found = CASE.task().workload.module(0)(images)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("world_size", "labels_each"), [(4, 3), (16, 2)])
def test_by_class_every_rank_has_as_many_images_of_few_classes(world_size: int, labels_each: int) -> None:
    labels = torch.arange(1600) % 10
    shards = fashion._shards("by-class", labels, world_size, seed=0)
    assert {len(shard) for shard in shards} == {1600 // world_size}
    assert sorted(np.concatenate(shards)) == list(range(1600))
    assert max(len(set(labels[shard].tolist())) for shard in shards) == labels_each


def test_points_of_a_curve_are_of_some_of_the_images_that_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    task = CASE.task()
    assert isinstance(task, DigitsTask)
    params = task.initial()
    assert task.watch(params) == task.evaluate(params), "there are fewer than 2,000"
    monkeypatch.setattr(fashion.FashionTask, "watched", 3)
    some = torch.tensor([60, 74, 89])
    logits = torch.func.functional_call(Network(), params, (task.images[some],))
    nll = float(F.cross_entropy(logits, task.labels[some]))
    assert task.watch(params)["nll"] == pytest.approx(nll, rel=1e-5)


@pytest.mark.skipif(not fashion.DEBIANS.is_dir(), reason="needs Debian's package dataset-fashion-mnist")
def test_the_real_images() -> None:
    images, labels, count = load_images(fashion.DEBIANS)
    assert (images.shape, count) == ((70_000, 784), 60_000)
    assert labels[:count].bincount().tolist() == [6000] * 10
    assert labels[count:].bincount().tolist() == [1000] * 10
    for pixels in (images[:count].float(), images[count:].float()):
        scaled = (pixels - fashion.PIXEL_SHIFT) / fashion.PIXEL_SCALE
        assert abs(float(scaled.mean())) < 0.01
        assert abs(float(scaled.std()) - 1) < 0.01
