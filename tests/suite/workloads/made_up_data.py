"""Small files of every format that workloads read, the same bytes in every process."""

from __future__ import annotations

import atexit
import gzip
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np

VOCABULARY = 300
CLASSES = ("ape", "bee", "cat")


def tokens(folder: Path) -> None:
    """Token files, as nanoGPT writes them; small tokens are frequent."""
    for name, count in (("train", 6000), ("val", 600)):
        _stream(count).astype("<u2").tofile(folder / f"{name}.bin")


def _stream(count: int) -> np.ndarray:
    uniform = (
        np.random.Generator(np.random.Philox(count)).bit_generator.random_raw(count) >> np.uint64(11)
    ) * 2.0**-53
    return (uniform**3 * VOCABULARY).astype(np.int64)


def text(folder: Path) -> None:
    """Folders of files of text, one of them in a folder of its own."""
    for part, count in (("train", 4), ("val", 1)):
        for i in range(count):
            path = folder / part / ("deep" if i else ".") / f"{i}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"Line {i} says: naïve sentences repeat. " * 40, encoding="utf-8")


def parquet(folder: Path, **columns: list[object]) -> None:
    """A folder of two files to train on, a file that judges, with lists of tokens; or `columns`, in all files."""
    import pyarrow
    import pyarrow.parquet

    (folder / "train.parquet").mkdir(exist_ok=True)
    for path, count in (("train.parquet/a", 3000), ("train.parquet/b", 3000), ("val", 600)):
        rows = np.array_split(_stream(count), 10)
        table = pyarrow.table(columns or {"tokens": [row.tolist() for row in rows], "id": list(range(10))})
        pyarrow.parquet.write_table(table, folder / f"{path}.parquet")


def cifar10(folder: Path) -> None:
    """Six files of 20 records; a class has a colour."""
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        _cifar(folder / "cifar-10-batches-bin" / f"{name}.bin", [np.arange(20) % 10], i)


def cifar100(folder: Path) -> None:
    """Two files, of 100 and 20 records with coarse and fine labels."""
    for i, (name, count) in enumerate((("train", 100), ("test", 20))):
        fine = np.arange(count) % 100
        _cifar(folder / "cifar-100-binary" / f"{name}.bin", [fine // 5, fine], i)


def _cifar(path: Path, labels: list[np.ndarray], seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.Generator(np.random.Philox(seed))
    count = len(labels[0])
    pixels = (rng.bit_generator.random_raw(count * 3072).reshape(count, 3072) % 64).astype(np.uint8)
    pixels += (labels[-1][:, None] * 19 % 191).astype(np.uint8)
    np.concatenate([*(one[:, None].astype(np.uint8) for one in labels), pixels], axis=1).tofile(path)


def fashion_mnist(folder: Path) -> None:
    """The four files, of 60 images to train on and 30 that judge; a class has a shade."""
    (folder / "fashion-mnist").mkdir()
    for name, count in (("train", 60), ("t10k", 30)):
        labels = np.arange(count, dtype=np.uint8) % 10
        rng = np.random.Generator(np.random.Philox(count))
        pixels = rng.bit_generator.random_raw(count * 784).reshape(count, 784) % 90 + 16 * labels[:, None]
        for kind, sizes, values in (
            ("images-idx3", (count, 28, 28), pixels),
            ("labels-idx1", (count,), labels),
        ):
            head = bytes([0, 0, 8, len(sizes)]) + np.array(sizes, ">u4").tobytes()
            packed = gzip.compress(head + values.astype(np.uint8).tobytes())
            (folder / "fashion-mnist" / f"{name}-{kind}-ubyte.gz").write_bytes(packed)


def images(folder: Path) -> None:
    """Folders of three classes, 12 images each to train on and 3 that judge: PNGs, one a JPEG, one grey."""
    from PIL import Image

    for part, count in (("train", 12), ("val", 3)):
        for number, name in enumerate(CLASSES):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                rng = np.random.Generator(np.random.Philox(100 * number + i))
                wide, high = 40 + 3 * i, 36 + 2 * i
                raw = rng.bit_generator.random_raw(high * wide * 3).reshape(high, wide, 3)
                image = Image.fromarray((raw % 100 + 70 * number).astype(np.uint8))
                if i == 1:
                    image = image.convert("L")
                image.save(folder / part / name / f"{i}.{'jpeg' if i == 2 else 'png'}")


MAKERS: Mapping[str, Callable[[Path], None]] = {
    "tokens": tokens,
    "text": text,
    "parquet": parquet,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "fashion-mnist": fashion_mnist,
    "images": images,
}


@cache
def folder_of(kind: str) -> Path:
    """A folder with the files of a format, one a process; nobody may change them."""
    folder = Path(tempfile.mkdtemp(prefix=f"bandwise-{kind}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    MAKERS[kind](folder)
    return folder
