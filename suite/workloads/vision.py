"""`cifar10`, `cifar100`, `image-folder`: ResNets and vision transformers on images that you have.

*CIFAR*: the files of the binary version (`cifar-10-batches-bin`, `cifar-100-binary`) as they come. Training images are padded by
4, cropped and flipped; CIFAR-100 is learnt by its fine labels.

*A folder of images*: `train/<class>/<image>` and `val/<class>/<image>`, as ImageNet is unpacked; classes are numbered by their
names. Training images are cropped at random (8 to 100 % of the area, 3:4 to 4:3) and flipped; what judges is scaled to
256/224 of the side and cropped in the middle.

Crops and flips are drawn by seed, rank and step. BatchNorm's statistics for judging are those of up to 2,048 training images, in
chunks, averaged as `torch.optim.swa_utils.update_bn` averages them.
"""

from __future__ import annotations

import dataclasses
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_impls.core.options import option
from suite.workloads.base import (
    DataError,
    Indices,
    ShardSampler,
    Stream,
    chunks,
    evenly,
    generator,
    scores_of,
    shards_of,
    uniforms,
)
from suite.workloads.models import SMALL_PIXELS, Model, ModelTask, ModelWorkload, extra, transformers_model

SIDE: Final = 32
"""Pixels a side of an image of CIFAR."""
PADDING: Final = 4
CALIBRATION: Final = 2048
"""Training images at the most whose statistics BatchNorm judges with."""
Floats = npt.NDArray[np.float32]
Colours = tuple[float, float, float]


class ImageModel(Model):
    """`forward(images [batch, 3, side, side])` gives logits [batch, classes]; with labels [batch], their mean cross entropy."""

    def outputs(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.inner(pixel_values=inputs[0]).logits
        return logits.float()

    def mean_loss(self, *batch: Tensor) -> Tensor:
        return F.cross_entropy(self.outputs(batch[0]), batch[1])


class Images(ABC):
    """Labelled images, and how one is read.

    Args:
        labels: int64 [count].
        mean: By colour, of pixels from 0 to 1.
        sd: Likewise.
    """

    def __init__(self, labels: npt.NDArray[np.int64], mean: Colours, sd: Colours) -> None:
        self.labels = labels
        self._mean, self._sd = (np.array(three, np.float32).reshape(3, 1, 1) for three in (mean, sd))

    @abstractmethod
    def image(self, index: int, rng: np.random.Generator | None = None) -> Floats:
        """An image, float32 [3, side, side], standardised; cropped and flipped by `rng` where there is one."""

    def images(self, indices: Indices, rng: np.random.Generator | None = None) -> Tensor:
        """Several, float32 [count, 3, side, side]."""
        stacked = np.stack([self.image(int(index), rng) for index in indices])
        return torch.from_numpy(np.ascontiguousarray(stacked))

    def standardised(self, pixels: npt.NDArray[np.uint8]) -> Floats:
        """Pixels [3, side, side] about 0 and 1."""
        found: Floats = (pixels.astype(np.float32) / np.float32(255.0) - self._mean) / self._sd
        return found


@dataclasses.dataclass(frozen=True)
class ImageWorkload(ModelWorkload):
    """Cross entropy of classes; accuracy in percent on the test images, NLL (nats an image) beside it."""

    version = 1
    metric = "accuracy"
    unit = "points"
    direction = "higher"
    margin = 0.3
    batch_size = 32
    shardings = ("iid", "by-class")
    families = ("ResNet", "ViT")

    augment: bool = option(True, "crop and flip training images at random")

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Classes, pixels a side of what the model is given, and images that usually judge."""

    @abstractmethod
    def sources(self) -> tuple[Images, Images]:
        """The images to train on and those that judge. Raises DataError for data that are not as they should be."""

    def build(self) -> nn.Module:
        classes, side, _ = self.shape
        more: dict[str, Any] = {"num_labels": classes}
        if self.architecture.family == "ViT":
            more |= {"image_size": side, "patch_size": 4 if side < SMALL_PIXELS else 16}
        inner = transformers_model(self.model, f"workload {self.name}", **more)
        if self.architecture.family == "ResNet" and side < SMALL_PIXELS:
            first, wide = inner.get_submodule("resnet.embedder.embedder"), inner.config.embedding_size  # type: ignore[union-attr]
            first.convolution = nn.Conv2d(3, wide, 3, padding=1, bias=False, device="meta")  # type: ignore[arg-type]
            inner.get_submodule("resnet.embedder").pooler = nn.Identity()
        return ImageModel(inner, self)

    def example(self, batch_size: int) -> tuple[Tensor, ...]:
        _, side, _ = self.shape
        return torch.empty(batch_size, 3, side, side), torch.empty(batch_size, dtype=torch.int64)

    def judged(self) -> tuple[int, int]:
        return min(ImageTask.watched, self.shape[2]), self.shape[2]

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> ImageTask:
        size = self.check(seed, world_size, sharding, batch_size)
        train, test = self.sources()
        shards = shards_of(sharding, np.arange(len(train.labels)), train.labels, world_size, seed)
        sampler, counts = ShardSampler(shards, size, seed), (len(train.labels), len(test.labels))
        return ImageTask(self, seed, world_size, sharding, size, *counts, sampler, train, test)


@dataclasses.dataclass(frozen=True, eq=False)
class ImageTask(ModelTask):
    """Images for one seed, which draws the model, the shards, their order, the crops and the flips.

    `batch(step)` is images float32 [world_size, batch_size, 3, side, side] and labels int64 [world_size, batch_size]. `evaluate`
    gives `accuracy` in percent and `nll` in nats an image over all test images; `watch` the same of up to 1,024 of them.
    """

    chunk, watched = 64, 1024
    train: Images = dataclasses.field(repr=False)
    test: Images = dataclasses.field(repr=False)

    def own_batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        chosen = self.sampler.indices(step)[rank]
        rng = generator(self.seed, Stream.NOISE, rank, step) if self.workload.options["augment"] else None
        return self.train.images(chosen, rng), torch.from_numpy(self.train.labels[chosen])

    def judging(self, numbers: Indices) -> tuple[Tensor, Tensor]:
        return self.test.images(numbers), torch.from_numpy(self.test.labels[numbers])

    @torch.no_grad()
    def scores(self, params: Mapping[str, Tensor], chosen: Indices) -> dict[str, float]:
        model = self.judge(params)
        parts = (self.judging(numbers) for numbers in chunks(chosen, self.chunk))
        return scores_of("accuracy", ((model(images), labels) for images, labels in parts))

    @torch.no_grad()
    def judge(self, params: Mapping[str, Tensor]) -> nn.Module:
        """The model that judges: these parameters and, where it has BatchNorm, statistics of training images."""
        model = self.workload.build()
        model.load_state_dict(dict(params), assign=True)
        if norms := [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]:
            for norm in norms:
                norm.track_running_stats, norm.momentum = True, None
                norm.running_mean = torch.zeros(norm.num_features)
                norm.running_var = torch.ones(norm.num_features)
                norm.num_batches_tracked = torch.tensor(0)
            for numbers in chunks(evenly(self.train_size, CALIBRATION), self.chunk):
                model(self.train.images(numbers))
        return model.eval()


# ---- CIFAR -----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _CIFAR(ImageWorkload):
    """The binary version: records of labels, one byte each, and 3,072 pixels, red, green and blue planes of 32 x 32."""

    label_bytes: ClassVar[int]
    """Bytes of labels before the pixels; the last of them counts."""
    classes: ClassVar[int]
    mean: ClassVar[Colours]
    sd: ClassVar[Colours]

    model: str = option("resnet18", "architecture")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.classes, SIDE, 10_000

    def sources(self) -> tuple[Images, Images]:
        *train, test = (self._records(name) for name in self.files)
        return self._images(np.concatenate(train)), self._images(test)

    def _records(self, name: str) -> npt.NDArray[np.uint8]:
        """The records of a file, uint8 [count, bytes of one]. Raises DataError naming what is wrong with it."""
        path, record = self.path(name), self.label_bytes + 3 * SIDE * SIDE
        size = path.stat().st_size if path.is_file() else 0
        if size == 0 or size % record:
            raise DataError(
                f"workload {self.name}: {path} has {size} bytes, no multiple of a record's {record}: it is truncated, or "
                "not of the binary version; unpack it anew"
            )
        records = np.fromfile(path, dtype=np.uint8).reshape(-1, record)
        if (most := int(records[:, self.label_bytes - 1].max())) >= self.classes:
            raise DataError(
                f"workload {self.name}: {path} has the label {most}, and labels are 0 to {self.classes - 1}: it is another "
                "file, or damaged"
            )
        return records

    def _images(self, records: npt.NDArray[np.uint8]) -> Images:
        pixels = records[:, self.label_bytes :].reshape(-1, 3, SIDE, SIDE)
        return CifarImages(pixels, records[:, self.label_bytes - 1].astype(np.int64), self.mean, self.sd)


@dataclasses.dataclass(frozen=True)
class Cifar10(_CIFAR):
    """CIFAR-10."""

    name = "cifar10"
    summary = "CIFAR-10, files of yours: ResNets and vision transformers"
    label_bytes, classes = 1, 10
    files: ClassVar[Mapping[str, str]] = {
        f"cifar-10-batches-bin/{name}.bin": "10,000 records of a label and 3,072 pixels, of CIFAR-10's binary version"
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
    }
    mean, sd = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclasses.dataclass(frozen=True)
class Cifar100(_CIFAR):
    """CIFAR-100, by its 100 fine labels."""

    name = "cifar100"
    summary = "CIFAR-100 by its fine labels, files of yours: ResNets and vision transformers"
    label_bytes, classes = 2, 100
    files: ClassVar[Mapping[str, str]] = {
        f"cifar-100-binary/{name}.bin": f"{count} records of two labels and 3,072 pixels, of CIFAR-100's binary version"
        for name, count in (("train", "50,000"), ("test", "10,000"))
    }
    mean, sd = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


class CifarImages(Images):
    """Images of CIFAR. pixels: uint8 [count, 3, 32, 32]."""

    def __init__(
        self, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], mean: Colours, sd: Colours
    ) -> None:
        super().__init__(labels, mean, sd)
        self._pixels = pixels

    def image(self, index: int, rng: np.random.Generator | None = None) -> Floats:
        image = self.standardised(self._pixels[index])
        if rng is None:
            return image
        words = rng.bit_generator.random_raw(3)
        padded = np.pad(image, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
        top, left = (int(word % np.uint64(2 * PADDING + 1)) for word in words[:2])
        cropped = padded[:, top : top + SIDE, left : left + SIDE]
        return cropped[:, :, ::-1] if words[2] & np.uint64(1) else cropped


# ---- a folder of images ----------------------------------------------------------------------------------------------------

STANDARD_MEAN, STANDARD_SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet, by colour."""


@dataclasses.dataclass(frozen=True)
class ImageFolder(ImageWorkload):
    """Images in folders of classes, as ImageNet's."""

    name = "image-folder"
    summary = "images of yours in folders of classes, as ImageNet's: ResNets and vision transformers"
    files: ClassVar[Mapping[str, str]] = {
        "train": "a folder for each class, with JPEG or PNG images",
        "val": "the same classes, with the images that judge",
    }

    model: str = option("resnet50", "architecture")
    classes: int = option(1000, "classes, as many as there are folders", ge=2)
    pixels: int = option(224, "side of what the model is given; a multiple of 32", ge=SIDE)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand("pixels", self.pixels % SIDE == 0, f"a multiple of {SIDE}")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.classes, self.pixels, 50 * self.classes

    def sources(self) -> tuple[Images, Images]:
        extra("PIL", f"workload {self.name}")
        train, test = (self._listed(self.path(part)) for part in self.files)
        if len(train) != self.classes:
            raise DataError(
                f"workload {self.name}: {self.path('train')} has {len(train)} folders of classes, and the model tells "
                f'{self.classes} apart: give the option "classes", or look for folders that are too many or missing'
            )
        if other := sorted(train.keys() ^ test.keys()):
            raise DataError(
                f"workload {self.name}: the class {other[0]} is in one of {self.path('train')} and {self.path('val')}: both "
                "have to have the same folders"
            )
        return FolderImages(train, self.pixels), FolderImages(test, self.pixels)

    def _listed(self, root: Path) -> dict[str, list[str]]:
        """The images of each class, both sorted. Raises DataError for an empty class, and for what is no image by its name."""
        classes = [name for name in _shown(root) if (root / name).is_dir()]
        found = {name: [os.path.join(root, name, file) for file in _shown(root / name)] for name in classes}
        for name, paths in found.items():
            wrong = [path for path in paths if not path.lower().endswith((".jpeg", ".jpg", ".png"))]
            if wrong or not paths:
                raise DataError(
                    f"workload {self.name}: {wrong[0] if paths else root / name} is no JPEG or PNG: images lie in "
                    f"{root.name}/<class>/<image>; put them there, and other files away"
                )
        return found


def _shown(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith("."))


class FolderImages(Images):
    """Images of folders, read when they are asked for. classes: name -> paths, by name."""

    def __init__(self, classes: Mapping[str, Sequence[str]], side: int) -> None:
        counts = [len(paths) for paths in classes.values()]
        super().__init__(np.repeat(np.arange(len(classes)), counts), STANDARD_MEAN, STANDARD_SD)
        self._paths = [path for paths in classes.values() for path in paths]
        self._side = side

    def image(self, index: int, rng: np.random.Generator | None = None) -> Floats:
        path, side, flipped = self._paths[index], self._side, False
        library = extra("PIL.Image", "workload image-folder")
        try:
            with library.open(path) as opened:
                image = opened.convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:  # what Pillow says of files that are no images
            raise DataError(f"{path} is no image, or damaged ({error}): copy it anew") from error
        box: tuple[float, float, float, float]
        if rng is None:
            whole = min(image.size) * side / round(side * 256 / 224)  # of the original, what the crop takes
            left, top = ((extent - whole) / 2 for extent in image.size)
            box = left, top, left + whole, top + whole
        else:
            across, down, width, height = _random_crop(image.width, image.height, rng)
            box = across, down, across + width, down + height
            flipped = bool(rng.bit_generator.random_raw() & 1)
        pixels = np.asarray(image.resize((side, side), 2, box=box)).transpose(2, 0, 1)
        standard = self.standardised(pixels)
        return standard[:, :, ::-1] if flipped else standard


def _random_crop(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Left, top, width and height of a part of an image, in pixels: 8 to 100 % of its area, 3:4 to 4:3, uniform in area and in
    the logarithm of the ratio. Of ten trials the first that fits is taken, else the largest square in the middle.
    """
    for area, ratio, across, down in uniforms(40, rng).reshape(10, 4).tolist():
        wanted = width * height * (0.08 + 0.92 * area)
        aspect = math.exp(math.log(3 / 4) + ratio * math.log(16 / 9))
        wide, high = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < wide <= width and 0 < high <= height:
            return int(across * (width - wide + 1)), int(down * (height - high + 1)), wide, high
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side
