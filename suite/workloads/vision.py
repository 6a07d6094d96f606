"""`cifar10`, `cifar100`, `image-folder`: ResNets and vision transformers on images that you have.

*CIFAR*: the files of the binary version (`cifar-10-batches-bin`, `cifar-100-binary`) as they come. Training images are padded by
4, cropped and flipped; CIFAR-100 is learnt by its fine labels.

*A folder of images*: `train/<class>/<image>` and `val/<class>/<image>`, JPEG or PNG, as ImageNet is unpacked; classes are
numbered in the order of their names. Training images are cropped at random (8 to 100 % of the area, 3:4 to 4:3) and flipped;
what judges is scaled to 256/224 of the side and cropped in the middle.

Crops and flips are drawn by seed, rank and step. BatchNorm's statistics for judging are those of up to 2,048 training images, in
chunks, averaged as `torch.optim.swa_utils.update_bn` averages them.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from suite.workloads.base import DataError, skeleton
from suite.workloads.models import (
    SMALL_PIXELS,
    Model,
    ModelTask,
    ModelWorkload,
    evenly,
    extra,
    transformers_model,
)
from suite.workloads.sampling import (
    Indices,
    ShardSampler,
    Stream,
    by_class_shards,
    generator,
    iid_shards,
)

SIDE: Final = 32
"""Pixels a side of an image of CIFAR."""
PADDING: Final = 4
CALIBRATION: Final = 2048
"""Training images at the most whose statistics BatchNorm judges with."""
WATCHED: Final = 1024
"""Images of the test part, at the most, that the curve on the way is of."""
_CHUNK: Final = 64
Pixels = npt.NDArray[np.uint8]


class ImageModel(Model):
    """`forward(images [batch, 3, side, side])` gives logits [batch, classes]; with labels [batch], their mean cross entropy."""

    def outputs(self, *inputs: Tensor) -> Tensor:
        logits: Tensor = self.inner(pixel_values=inputs[0]).logits
        return logits.float()

    def mean_loss(self, *batch: Tensor) -> Tensor:
        return F.cross_entropy(self.outputs(batch[0]), batch[1])


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

    augment: bool = dataclasses.field(
        default=True, metadata={"help": "crop and flip training images at random"}
    )

    @property
    def image_side(self) -> int:
        """Pixels a side of what the model is given."""
        return SIDE

    @property
    def class_count(self) -> int:
        """Classes that the model tells apart."""
        raise NotImplementedError

    @property
    def nominal_test_size(self) -> int:
        """Images that judge, where the data are not at hand."""
        return 10_000

    def build(self) -> nn.Module:
        return image_model(self)

    def example(self, batch_size: int) -> tuple[Tensor, ...]:
        side = self.image_side
        images = torch.empty(batch_size, 3, side, side)
        return images, torch.empty(batch_size, dtype=torch.int64)

    def judged(self) -> tuple[int, int]:
        return min(WATCHED, self.nominal_test_size), self.nominal_test_size

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> ImageTask:
        size = self.check(seed, world_size, sharding, batch_size)
        train, test = self.sources()
        every = np.arange(len(train.labels), dtype=np.int64)
        if sharding == "by-class":
            shards = by_class_shards(every, train.labels, world_size)
        else:
            shards = iid_shards(every, world_size, seed)
        return ImageTask(
            workload=self,
            seed=seed,
            world_size=world_size,
            sharding=sharding,
            batch_size=size,
            train_size=len(train.labels),
            test_size=len(test.labels),
            train=train,
            test=test,
            sampler=ShardSampler(shards, size, seed),
        )

    def sources(self) -> tuple[Images, Images]:
        """The images to train on and those that judge. Raises DataError for data that are not as they should be."""
        raise NotImplementedError


def image_model(workload: ImageWorkload, tracked: bool = False) -> nn.Module:
    """The model of a workload; `tracked`: its BatchNorm layers average the statistics of the batches that they are given."""
    small = workload.image_side < SMALL_PIXELS
    more: dict[str, Any] = {"num_labels": workload.class_count}
    if workload.architecture.family == "ViT":
        more |= {"image_size": workload.image_side, "patch_size": 4 if small else 16}
    inner = transformers_model(workload.model, f"workload {workload.name}", **more)
    if workload.architecture.family == "ResNet" and small:
        stem = inner.get_submodule("resnet.embedder")
        wide = workload.architecture.shape["embedding_size"]
        first = inner.get_submodule("resnet.embedder.embedder")
        first.convolution = nn.Conv2d(3, wide, 3, padding=1, bias=False, device="meta")
        stem.pooler = nn.Identity()
    if tracked:
        for module in inner.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.track_running_stats, module.momentum = True, None
                module.register_buffer("running_mean", torch.zeros(module.num_features))
                module.register_buffer("running_var", torch.ones(module.num_features))
                module.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))
    return ImageModel(inner, workload)


@lru_cache(maxsize=4)
def tracked_skeleton(workload: ImageWorkload) -> nn.Module:
    """The model whose BatchNorm layers keep statistics, one for all tasks; its buffers are given by who calls it."""
    return image_model(workload, tracked=True)


class Images:
    """Labelled images, and how one is read. labels: int64 [count]."""

    labels: npt.NDArray[np.int64]

    def train_image(self, index: int, rng: np.random.Generator | None) -> npt.NDArray[np.float32]:
        """An image to train on, float32 [3, side, side], standardised; cropped and flipped by `rng` where there is one."""
        raise NotImplementedError

    def test_image(self, index: int) -> npt.NDArray[np.float32]:
        """An image that judges, likewise."""
        return self.train_image(index, None)


@dataclasses.dataclass(frozen=True, eq=False)
class ImageTask(ModelTask):
    """Images for one seed, which draws the model, the shards, their order, the crops and the flips.

    `batch(step)` is images float32 [world_size, batch_size, 3, side, side] and labels int64 [world_size, batch_size]. `evaluate`
    gives `accuracy` in percent and `nll` in nats an image over all test images; `watch` the same of up to 1,024 of them.
    """

    train: Images = dataclasses.field(repr=False)
    test: Images = dataclasses.field(repr=False)
    sampler: ShardSampler = dataclasses.field(repr=False)

    def own_batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        chosen = self.sampler.indices(step)[rank]
        augment = self.workload.options["augment"]
        rng = generator(self.seed, Stream.NOISE, rank, step) if augment else None
        images = np.stack([self.train.train_image(int(index), rng) for index in chosen])
        return torch.from_numpy(images), torch.from_numpy(self.train.labels[chosen])

    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        return self._score(params, np.arange(self.test_size))

    def watch(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        return self._score(params, evenly(self.test_size, WATCHED))

    def _score(self, params: Mapping[str, Tensor], test: Indices) -> dict[str, float]:
        model, values = self._judge(params)
        correct, nll = 0, 0.0
        with torch.no_grad():
            for start in range(0, len(test), _CHUNK):
                chunk = test[start : start + _CHUNK]
                images = np.stack([self.test.test_image(int(index)) for index in chunk])
                labels = torch.from_numpy(self.test.labels[chunk])
                logits = functional_call(model, values, (torch.from_numpy(images),))
                correct += int((logits.argmax(dim=-1) == labels).sum())
                nll += float(F.cross_entropy(logits.double(), labels, reduction="sum"))
        return {"accuracy": 100.0 * correct / len(test), "nll": nll / len(test)}

    def _judge(self, params: Mapping[str, Tensor]) -> tuple[nn.Module, dict[str, Tensor]]:
        """The model that judges, with its parameters and, where it has BatchNorm, statistics of training images."""
        workload = self.workload
        if not isinstance(workload, ImageWorkload) or workload.architecture.family != "ResNet":
            return skeleton(workload), dict(params)
        model = tracked_skeleton(workload)
        values = {
            **params,
            **{name: torch.full_like(value, name.endswith("var")) for name, value in model.named_buffers()},
        }
        chosen = evenly(self.train_size, CALIBRATION)
        with torch.no_grad():
            for start in range(0, len(chosen), _CHUNK):
                chunk = chosen[start : start + _CHUNK]
                images = np.stack([self.train.test_image(int(index)) for index in chunk])
                functional_call(model.train(), values, (torch.from_numpy(images),))
        return model.eval(), values


# ---- CIFAR -----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _CIFAR(ImageWorkload):
    """The binary version: records of labels, one byte each, and 3,072 pixels, red, green and blue planes of 32 x 32."""

    label_bytes: ClassVar[int]
    """Bytes of labels before the pixels; the last of them counts."""
    classes: ClassVar[int]
    folder: ClassVar[str]
    train_files: ClassVar[tuple[str, ...]]
    test_file: ClassVar[str]
    mean: ClassVar[tuple[float, float, float]]
    sd: ClassVar[tuple[float, float, float]]

    model: str = dataclasses.field(default="resnet18", metadata={"help": "architecture"})

    @property
    def class_count(self) -> int:
        return self.classes

    def sources(self) -> tuple[Images, Images]:
        pixels, labels = zip(*(self._read(name) for name in self.train_files), strict=True)
        test = CifarImages(*self._read(self.test_file), self.mean, self.sd)
        return CifarImages(np.concatenate(pixels), np.concatenate(labels), self.mean, self.sd), test

    def _read(self, name: str) -> tuple[Pixels, npt.NDArray[np.int64]]:
        """Pixels uint8 [count, 3, 32, 32] and labels int64 [count] of a file. Raises DataError naming what is wrong with it."""
        path = self.path(f"{self.folder}/{name}")
        if not path.is_file():
            raise DataError(f"workload {self.name}: {path} is a folder: put the file {name} there")
        size, record = path.stat().st_size, self.label_bytes + 3 * SIDE * SIDE
        if size == 0 or size % record:
            raise DataError(
                f"workload {self.name}: {path} has {size} bytes, no multiple of a record's {record}: it is truncated, or "
                f"not of the binary version; unpack {self.folder} anew"
            )
        records = np.fromfile(path, dtype=np.uint8).reshape(-1, record)
        for place in range(self.label_bytes):
            most = self.classes if place == self.label_bytes - 1 else 20
            wrong = np.flatnonzero(records[:, place] >= most)
            if len(wrong):
                raise DataError(
                    f"workload {self.name}: {path} has the label {records[wrong[0], place]} in record {wrong[0]}: labels are "
                    f"0 to {most - 1}; it is another file, or damaged"
                )
        labels = records[:, self.label_bytes - 1].astype(np.int64)
        return records[:, self.label_bytes :].reshape(-1, 3, SIDE, SIDE), labels


@dataclasses.dataclass(frozen=True)
class Cifar10(_CIFAR):
    """CIFAR-10."""

    name = "cifar10"
    summary = "CIFAR-10, files of yours: ResNets and vision transformers"
    label_bytes, classes, folder = 1, 10, "cifar-10-batches-bin"
    train_files, test_file = tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"
    files: ClassVar[Mapping[str, str]] = {
        f"cifar-10-batches-bin/{name}": "10,000 records of a label and 3,072 pixels, of CIFAR-10's binary version"
        for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
    }
    mean, sd = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


@dataclasses.dataclass(frozen=True)
class Cifar100(_CIFAR):
    """CIFAR-100, by its 100 fine labels."""

    name = "cifar100"
    summary = "CIFAR-100 by its fine labels, files of yours: ResNets and vision transformers"
    label_bytes, classes, folder = 2, 100, "cifar-100-binary"
    train_files, test_file = ("train.bin",), "test.bin"
    files: ClassVar[Mapping[str, str]] = {
        f"cifar-100-binary/{name}": f"{count} records of two labels and 3,072 pixels, of CIFAR-100's binary version"
        for name, count in (("train.bin", "50,000"), ("test.bin", "10,000"))
    }
    mean, sd = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


class CifarImages(Images):
    """Images of CIFAR. pixels: uint8 [count, 3, 32, 32]."""

    def __init__(
        self,
        pixels: Pixels,
        labels: npt.NDArray[np.int64],
        mean: Sequence[float],
        sd: Sequence[float],
    ) -> None:
        self.labels = labels
        self._pixels = pixels
        self._mean = np.array(mean, np.float32).reshape(3, 1, 1)
        self._sd = np.array(sd, np.float32).reshape(3, 1, 1)

    def train_image(self, index: int, rng: np.random.Generator | None) -> npt.NDArray[np.float32]:
        pixels = self._pixels[index].astype(np.float32) / np.float32(255.0)
        image: npt.NDArray[np.float32] = (pixels - self._mean) / self._sd
        if rng is None:
            return image
        words = rng.bit_generator.random_raw(3)
        padded = np.pad(image, ((0, 0), (PADDING, PADDING), (PADDING, PADDING)))
        top, left = (int(word % np.uint64(2 * PADDING + 1)) for word in words[:2])
        cropped = padded[:, top : top + SIDE, left : left + SIDE]
        return np.ascontiguousarray(cropped[:, :, ::-1] if words[2] & np.uint64(1) else cropped)


# ---- a folder of images ----------------------------------------------------------------------------------------------------

STANDARD_MEAN, STANDARD_SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet, by colour."""
TAIL_BYTES: Final = 1024
"""How far before its end a JPEG may have its end marker."""
_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_ENDS: Final = {_JPEG: b"\xff\xd9", _PNG: b"IEND"}


@dataclasses.dataclass(frozen=True)
class ImageFolder(ImageWorkload):
    """Images in folders of classes, as ImageNet's."""

    name = "image-folder"
    summary = "images of yours in folders of classes, as ImageNet's: ResNets and vision transformers"
    files: ClassVar[Mapping[str, str]] = {
        "train": "a folder for each class, with JPEG or PNG images",
        "val": "the same classes, with the images that judge",
    }

    model: str = dataclasses.field(default="resnet50", metadata={"help": "architecture"})
    classes: int = dataclasses.field(default=1000, metadata={"help": "classes, as many as there are folders"})
    pixels: int = dataclasses.field(
        default=224, metadata={"help": "side of what the model is given; a multiple of 32"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand("classes", self.classes >= 2, "at least 2")
        self.demand("pixels", self.pixels >= SIDE and self.pixels % SIDE == 0, "a multiple of 32")

    @property
    def image_side(self) -> int:
        return self.pixels

    @property
    def class_count(self) -> int:
        return self.classes

    @property
    def nominal_test_size(self) -> int:
        return 50 * self.classes

    def sources(self) -> tuple[Images, Images]:
        extra("PIL", f"workload {self.name}")
        train, test = (listed(self.path(part), self.name) for part in self.files)
        names = [sorted(found) for found in (train, test)]
        if len(names[0]) != self.classes:
            raise DataError(
                f"workload {self.name}: {self.path('train')} has {len(names[0])} folders of classes, and the model tells "
                f'{self.classes} apart: give the option "classes", or look for folders that are too many or missing'
            )
        if other := sorted({*names[0]} ^ {*names[1]}):
            where, lacks = ("train", "val") if other[0] in names[0] else ("val", "train")
            raise DataError(
                f"workload {self.name}: the class {other[0]} is in {self.path(where)} and not in {self.path(lacks)}: both "
                "have to have the same folders"
            )
        return FolderImages(train, self.pixels), FolderImages(test, self.pixels)


@lru_cache(maxsize=8)
def _listed(root: str, workload: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    with os.scandir(root) as entries:
        folders = sorted(
            (entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name
        )
    for folder in folders:
        if not folder.is_dir():
            raise DataError(
                f"workload {workload}: {folder.path} lies beside the folders of classes: move it into its class, or away"
            )
        images = sorted(name for name in os.listdir(folder.path) if not name.startswith("."))
        if not images:
            raise DataError(
                f"workload {workload}: the folder {folder.path} of a class is empty: put its images there"
            )
        found[folder.name] = [os.path.join(folder.path, name) for name in images]
        for path in found[folder.name]:
            _check_image(path, workload)
    if not found:
        raise DataError(
            f"workload {workload}: {root} has no folders of classes: put train/<class>/<image> there"
        )
    return found


def listed(root: Path, workload: str) -> dict[str, list[str]]:
    """The images of each class of a folder, sorted; each has been looked at.

    Args:
        root: Holds a folder for each class.
        workload: Its name, for the error.

    Returns:
        Class -> paths.

    Raises:
        DataError: There is no class, one is empty, or a file is no whole JPEG or PNG; it is named.
    """
    return _listed(str(root), workload)


def _check_image(path: str, workload: str) -> None:
    """Refuse what does not begin and end as a JPEG or PNG does; one with an unusual end is decoded to see."""
    if os.path.isdir(path):
        raise DataError(
            f"workload {workload}: {path} is a folder inside that of a class: images lie in train/<class>/<image>"
        )
    with open(path, "rb") as file:
        begin = file.read(len(_PNG))
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        tail = file.read()
    kind = next((magic for magic in _ENDS if begin.startswith(magic)), None)
    if kind is None:
        raise DataError(f"workload {workload}: {path} is neither JPEG nor PNG: convert it, or take it away")
    if _ENDS[kind] not in tail:
        try:
            decoded(path)
        except OSError as error:
            raise DataError(
                f"workload {workload}: {path} is truncated or damaged ({error}): copy it anew"
            ) from error


def decoded(path: str) -> Any:
    """The image of a file in RGB. Raises OSError where it is damaged."""
    library = extra("PIL.Image", "workload image-folder")
    try:
        with library.open(path) as image:
            return image.convert("RGB")
    except (SyntaxError, ValueError, EOFError) as error:
        raise OSError(str(error)) from error


class FolderImages(Images):
    """Images of folders, read when they are asked for. classes: name -> paths."""

    def __init__(self, classes: Mapping[str, Sequence[str]], side: int) -> None:
        self._paths = [path for name in sorted(classes) for path in classes[name]]
        self.labels = np.repeat(
            np.arange(len(classes), dtype=np.int64), [len(classes[name]) for name in sorted(classes)]
        )
        self._side = side

    def train_image(self, index: int, rng: np.random.Generator | None) -> npt.NDArray[np.float32]:
        if rng is None:
            return self.test_image(index)
        image = self._open(index)
        left, top, width, height = random_crop(image.width, image.height, rng)
        side = self._side
        small = image.resize((side, side), 2, box=(left, top, left + width, top + height))
        flipped = bool(rng.bit_generator.random_raw() & 1)
        return _standardised(small, flipped)

    def test_image(self, index: int) -> npt.NDArray[np.float32]:
        image, side = self._open(index), self._side
        whole = min(image.size) * side / round(side * 256 / 224)  # of the original, what the crop takes
        left, top = ((extent - whole) / 2 for extent in image.size)
        return _standardised(image.resize((side, side), 2, box=(left, top, left + whole, top + whole)), False)

    def _open(self, index: int) -> Any:
        try:
            return decoded(self._paths[index])
        except OSError as error:
            raise DataError(
                f"{self._paths[index]} is truncated or damaged ({error}): copy it anew"
            ) from error


def random_crop(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """A part of an image: 8 to 100 % of its area, 3:4 to 4:3, uniform in area and in the logarithm of the ratio.

    Args:
        width: Of the image, in pixels.
        height: Likewise.
        rng: Where it is drawn from; of ten trials the first that fits is taken, else the largest square in the middle.

    Returns:
        Left, top, width, height, in pixels.
    """
    for area, ratio, across, down in _uniform(rng, 10, 4):
        wanted = width * height * (0.08 + 0.92 * area)
        aspect = math.exp(math.log(3 / 4) + ratio * math.log(16 / 9))
        wide, high = round(math.sqrt(wanted * aspect)), round(math.sqrt(wanted / aspect))
        if 0 < wide <= width and 0 < high <= height:
            return int(across * (width - wide + 1)), int(down * (height - high + 1)), wide, high
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def _uniform(rng: np.random.Generator, rows: int, columns: int) -> Iterator[list[float]]:
    """Rows of numbers in [0, 1), straight from raw words."""
    words = rng.bit_generator.random_raw(rows * columns) >> np.uint64(11)
    yield from (words.astype(np.float64) * 2.0**-53).reshape(rows, columns).tolist()


def _standardised(image: Any, flipped: bool) -> npt.NDArray[np.float32]:
    pixels = np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / np.float32(255.0)
    mean, sd = (np.array(three, np.float32).reshape(3, 1, 1) for three in (STANDARD_MEAN, STANDARD_SD))
    standard = (pixels - mean) / sd
    return np.ascontiguousarray(standard[:, :, ::-1] if flipped else standard)
