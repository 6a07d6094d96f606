"""The data of the digits-* family: 1797 real 8x8 images of handwritten digits, shipped with scikit-learn.

Source: the test part of the UCI set "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak,
1998).
"""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from suite.workloads.base import DataError, Task, Workload, predict
from suite.workloads.installed import assert_sha256, find_distribution, sha256
from suite.workloads.sampling import (
    ShardSampler,
    Stream,
    by_class_shards,
    generator,
    iid_shards,
    permutation,
    split,
    uniform_integers,
)

CLASSES = 10
PIXELS = 64
TRAIN_SIZE, TEST_SIZE = 1257, 540
EXAMPLES = TRAIN_SIZE + TEST_SIZE
PIXEL_SHIFT, PIXEL_SCALE = 4.9, 6.0
"""Pixels are integers 0 to 16; round numbers near their mean and spread bring them to about 0 and 1."""

_FILE = "sklearn/datasets/data/digits.csv.gz"
_SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"
_CHUNK = 270


@lru_cache(maxsize=1)
def load_digits() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Pixels uint8 [1797, 64], row by row of the image, 0 to 16; labels uint8 [1797]. Raises DataError."""
    path = find_distribution("scikit-learn", "the digits images come with scikit-learn").locate_file(_FILE)
    try:
        with gzip.open(str(path), "rt", encoding="ascii") as lines:
            table = np.loadtxt(lines, delimiter=",", dtype=np.float64).astype(np.uint8)
    except FileNotFoundError as error:
        raise DataError(f"scikit-learn came without {_FILE}: reinstall it from its wheel") from error
    images, labels = np.ascontiguousarray(table[:, :-1]), np.ascontiguousarray(table[:, -1])
    assert_sha256(
        sha256(images.tobytes(), labels.tobytes()),
        _SHA256,
        "the digits data",
        "reinstall scikit-learn from its wheel",
    )
    images.flags.writeable = labels.flags.writeable = False
    return images, labels


@dataclasses.dataclass(frozen=True, eq=False)
class DigitsTask(Task):
    """Digits for one seed: images to train on and images to judge, redrawn for each seed.

    `batch(step)` is images float32 [world_size, batch_size, 64] and labels int64 [world_size, batch_size];
    `evaluate` gives `accuracy` in percent (0 to 100) and `nll` in nats per image.
    """

    images: Tensor = dataclasses.field(repr=False)
    labels: Tensor = dataclasses.field(repr=False)
    train: Tensor = dataclasses.field(repr=False)
    test: Tensor = dataclasses.field(repr=False)
    sampler: ShardSampler = dataclasses.field(repr=False)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(self.sampler.indices(step))
        return self.images[chosen], self.labels[chosen]

    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        correct, nll = 0, 0.0
        for start in range(0, self.test_size, _CHUNK):
            chunk = self.test[start : start + _CHUNK]
            logits, labels = self.logits(params, self.images[chunk]), self.labels[chunk]
            correct += int((logits.argmax(dim=-1) == labels).sum())
            nll += float(F.cross_entropy(logits.double(), labels, reduction="sum"))
        return {"accuracy": 100.0 * correct / self.test_size, "nll": nll / self.test_size}

    def logits(self, params: Mapping[str, Tensor], images: Tensor) -> Tensor:
        """What the model says of images [batch, 64] that are judged."""
        return predict(self, params, images)


AnyDigitsTask = TypeVar("AnyDigitsTask", bound=DigitsTask)


def digits_task(
    workload: Workload,
    seed: int,
    world_size: int,
    sharding: str,
    batch_size: int | None,
    made: type[AnyDigitsTask] = DigitsTask,  # type: ignore[assignment]
    train_size: int = TRAIN_SIZE,
    test_size: int = TEST_SIZE,
    flipped: int = 0,
) -> AnyDigitsTask:
    """The digits task of `workload`, of class `made`; `flipped` training images carry another digit's label.

    Images in neither part are not used.

    Sharding "iid", or "by-class": rank r holds the digits d with d % world_size == r.
    """
    size = workload.check(seed, world_size, sharding, batch_size)
    pixels, targets = load_digits()
    labels = targets.astype(np.int64)
    train, test = split(len(labels), test_size, seed)
    if train_size < len(train):
        train = np.sort(train[permutation(len(train), generator(seed, Stream.SPLIT, 1))[:train_size]])
    if flipped:
        rng = generator(seed, Stream.FLIP)
        chosen = train[permutation(len(train), rng)[:flipped]]
        labels[chosen] = (labels[chosen] + 1 + uniform_integers(flipped, CLASSES - 1, rng)) % CLASSES
    by_class = sharding == "by-class"
    shards = by_class_shards(train, labels, world_size) if by_class else iid_shards(train, world_size, seed)
    return made(
        workload=workload,
        seed=seed,
        world_size=world_size,
        sharding=sharding,
        batch_size=size,
        train_size=len(train),
        test_size=len(test),
        images=(torch.from_numpy(pixels.astype(np.float32)) - PIXEL_SHIFT) / PIXEL_SCALE,
        labels=torch.from_numpy(labels),
        train=torch.from_numpy(train),
        test=torch.from_numpy(test),
        sampler=ShardSampler(shards, size, seed),
    )
