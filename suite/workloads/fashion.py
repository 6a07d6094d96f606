"""`fashion-mnist`: a small convolutional network on 70,000 real grey images of clothes, 28x28, in ten classes.

*The images*: the four files of Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017, arXiv:1708.07747; MIT licence) as they are handed
out, in a folder `fashion-mnist` of the user's data (`bandwise --data-dir DIR`, or `BANDWISE_DATA`), else where Debian's package
dataset-fashion-mnist has them. What they unpack to is held against a SHA-256. The 60,000 for training train, the 10,000 for
testing judge, 2,000 of them on the way. Seeds draw the model, i.i.d. shards and orders, and share the images: an interval says
nothing about other images.

*By class* the training images, sorted by label, are cut into equal parts: of four workers each has two whole classes and half of
one, of sixteen one or two. As many from each, so that their mean is an unbiased gradient, and for more workers than classes.

*The model*: convolutions of 5x5 and 3x3 with stride 2, a layer of 32, ReLUs (26,826 parameters). No BatchNorm.
"""

from __future__ import annotations

import dataclasses
import gzip
import os
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite import DATA
from suite.workloads.base import DataError, Indices, ShardSampler, Workload, check_sha256, iid_shards
from suite.workloads.digits import CLASSES, DigitsTask

FOLDER: Final = "fashion-mnist"
DEBIANS: Final = Path("/usr/share/datasets", FOLDER)
SHA256: Final = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
"""Of the files unpacked, since who packs them anew gets other bytes."""
_REMEDY: Final = (
    f"put the four .gz files of github.com/zalandoresearch/fashion-mnist (data/fashion) into a folder {FOLDER}, and name the "
    "one that it lies in with --data-dir DIR before the verb; on Debian: apt install dataset-fashion-mnist"
)
SIDE: Final = 28
PIXEL_SHIFT, PIXEL_SCALE = 73.0, 90.0
"""Pixels are integers 0 to 255; round numbers near their mean and spread bring them to about 0 and 1."""


def folder_of_images() -> Path:
    """Where the files lie. Raises DataError, which says what helps, where they are nowhere."""
    own = os.environ.get(DATA, "")
    places = [Path(own, FOLDER), DEBIANS] if own else [DEBIANS]
    for place in places:
        if place.is_dir():
            return place
    raise DataError(f"workload fashion-mnist: there is no {' and no '.join(map(str, places))}: {_REMEDY}")


@lru_cache(maxsize=2)
def load_images(folder: Path) -> tuple[Tensor, Tensor, int]:
    """The images of a folder, read once a process.

    Args:
        folder: With the four files, packed.

    Returns:
        Pixels uint8 [images, 784], labels int64 [images], and how many of them, the first, are there to be trained on.

    Raises:
        DataError: A file is missing, damaged, or another one.
    """
    images, labels, judging, their_labels = (
        np.frombuffer(_unpacked(folder / f"{name}.gz"), np.uint8, offset=16 if "images" in name else 8)
        for name in SHA256
    )
    pixels = np.concatenate((images, judging)).reshape(-1, SIDE * SIDE)
    classes = np.concatenate((labels, their_labels)).astype(np.int64)
    return torch.from_numpy(pixels), torch.from_numpy(classes), len(labels)


def _unpacked(path: Path) -> bytes:
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"workload fashion-mnist cannot read {path} ({error}): {_REMEDY}") from error
    check_sha256(SHA256[path.stem], str(path), _REMEDY, content)
    return content


class Convolution(nn.Conv2d):
    """A convolution with stride 2 on [images, height, width, channels], the rim padded by zeros.

    It is one matrix product over all patches, so that a batch of workers is a batched product; torch's own convolution would
    become a grouped one, whose bits depend on the number of groups. Rows of the patches are cut out before columns: 2k slices,
    each of which has a backward pass of its own, and not k^2.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, stride=2, padding=kernel // 2, device="meta")

    def forward(self, images: Tensor) -> Tensor:
        kernel = self.weight.shape[-1]
        rim = kernel // 2
        padded = F.pad(images, (0, 0, rim, rim, rim, rim))
        ends = range(padded.shape[1] - kernel + 1, padded.shape[1] + 1)
        rows = torch.stack([padded[:, i:end:2] for i, end in enumerate(ends)], dim=-2)
        patches = torch.stack([rows[:, :, i:end:2] for i, end in enumerate(ends)], dim=-2)
        return F.linear(patches.flatten(3), self.weight.permute(0, 2, 3, 1).flatten(1), self.bias)


class Network(nn.Module):
    """`forward(images uint8 [batch, 784])` gives logits [batch, 10]; with labels [batch], their mean cross entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Convolution(1, 8, 5)
        self.second = Convolution(8, 16, 3)
        self.hidden = nn.Linear(16 * (SIDE // 4) ** 2, 32, device="meta")
        self.head = nn.Linear(32, CLASSES, device="meta")

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        x = (images.reshape(-1, SIDE, SIDE, 1).float() - PIXEL_SHIFT) / PIXEL_SCALE
        x = F.relu(self.second(F.relu(self.first(x)))).flatten(1)
        logits: Tensor = self.head(F.relu(self.hidden(x)))
        return logits if labels is None else F.cross_entropy(logits, labels)


class FashionTask(DigitsTask):
    """`batch(step)` is images uint8 [world_size, batch_size, 784] and labels int64 [world_size, batch_size].

    `evaluate` gives `accuracy` in percent and `nll` in nats an image over all images that judge; `watch` the same of up to 2,000.
    """

    watched = 2000


@dataclasses.dataclass(frozen=True)
class FashionMNIST(Workload):
    """Cross entropy of ten classes; accuracy in percent on the test images, NLL (nats an image) beside it."""

    name = "fashion-mnist"
    version = 1
    summary = (
        "a small convolutional network (26,826 parameters) on 60,000 grey images of clothes: Fashion-MNIST"
    )
    metric = "accuracy"
    unit = "points"
    direction = "higher"
    margin = 0.3
    batch_size = 32
    shardings = ("iid", "by-class")

    def build(self) -> nn.Module:
        return Network()

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> FashionTask:
        size = self.check(seed, world_size, sharding, batch_size)
        images, labels, count = load_images(folder_of_images())
        train, test = torch.arange(count), torch.arange(count, len(labels))
        sampler = ShardSampler(_shards(sharding, labels[train], world_size, seed), size, seed)
        common = (self, seed, world_size, sharding, size, len(train), len(test))
        return FashionTask(*common, sampler, images, labels, train, test)


def _shards(sharding: str, labels: Tensor, world_size: int, seed: int) -> tuple[Indices, ...]:
    """The images of each rank, by the name of a sharding, of training images with these labels."""
    if sharding == "by-class":
        return tuple(np.array_split(np.argsort(labels.numpy(), kind="stable"), world_size))
    return iid_shards(np.arange(len(labels)), world_size, seed)
