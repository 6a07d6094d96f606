"""The table of workloads that drives the tests of the contract: adding a workload adds one row."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest
import torch

from suite import DATA
from suite.workloads import Task, Workload, fashion, get
from tests.suite.workloads.made_up_data import VOCABULARY, folder_of


@dataclasses.dataclass(frozen=True)
class Case:
    """One workload (small where it has sizes) and what is known of it."""

    name: str
    options: dict[str, Any]
    parameters: int
    batch: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    """Shape behind [world_size, batch_size] and dtype of each tensor of a batch."""
    draws: str
    """Digest of what seed 3 draws. Where it moves, runs before and after are not the same: raise the version."""
    data: str = ""
    """Of `made_up_data`, for a workload that reads files of the user's."""

    def workload(self) -> Workload:
        return get(self.name, **self.options)

    def task(
        self, seed: int = 0, world_size: int = 4, sharding: str = "iid", batch_size: int | None = 3
    ) -> Task:
        with pytest.MonkeyPatch.context() as patch:
            if self.data:
                patch.setenv(DATA, str(folder_of(self.data)))
                patch.setattr(fashion, "check_sha256", lambda *_: None)  # made-up files are not the real ones
            return self.workload().task(seed, world_size, sharding, batch_size)


_WORDS = {"vocabulary": VOCABULARY, "context": 16}
_CLASS = ((), torch.int64)
_IMAGES = ((3, 32, 32), torch.float32)


def _tokens(*lengths: int) -> tuple[tuple[tuple[int, ...], torch.dtype], ...]:
    return tuple(((length,), torch.int64) for length in lengths)


CASES = (
    Case("byte-mlm", {}, 137_280, _tokens(64, 10, 10), "8be555b10db3ca6a"),
    Case("code-packages", {}, 297_360, (((1024,), torch.uint8), _CLASS), "50a22f1e81feaa7d"),
    Case("ctr-zipf", {}, 40_961, (((8,), torch.int64), ((), torch.float32)), "d5b4907abb38521d"),
    Case("digits-cnn", {}, 7_234, (((64,), torch.float32), _CLASS), "40dbfa365b49c325"),
    Case("digits-mlp", {}, 301_066, (((64,), torch.float32), _CLASS), "5c40b6548618e36d"),
    Case("digits-noisy", {}, 301_066, (((64,), torch.float32), _CLASS), "7900330390cfecb0"),
    Case("label-noise-diagonal", {}, 200, (((100,), torch.float32), ((), torch.float32)), "e0420d0f3b318918"),
    Case("quadratic", {"dim": 20, "condition": 10.0}, 20, (((20,), torch.float32),), "674223c3fbad7962"),
    Case("python-gpt", {}, 492_160, _tokens(256, 256), "a86555e524e29ed5"),
    Case("python-gpt-fp32", {}, 492_160, _tokens(256, 256), "a86555e524e29ed5"),
    Case("python-gpt-fp32-128", {}, 475_776, _tokens(128, 128), "089f404eebbc290c"),
    Case("code-gpt", {}, 141_312, _tokens(128, 128), "755d7192acb07e19"),
    Case("causal-lm", {"model": "gpt2-mini", **_WORDS}, 39_168, _tokens(16, 16), "78a09ee47c27a54c", "tokens"),
    Case("masked-lm", {"model": "bert-mini", **_WORDS}, 52_940, _tokens(16, 2, 2), "c23f80460292b798", "tokens"),
    Case("cifar10", {"model": "resnet-mini"}, 11_490, (_IMAGES, _CLASS), "c21540c2a482ca1a", "cifar10"),
    Case("cifar100", {"model": "vit-mini"}, 32_452, (_IMAGES, _CLASS), "288573a4b39b2ebd", "cifar100"),
    Case("fashion-mnist", {}, 26_826, (((784,), torch.uint8), _CLASS), "26cfd915e36563e2", "fashion-mnist"),
    Case("image-folder", {"model": "resnet-mini", "classes": 3, "pixels": 64}, 12_331,
         (((3, 64, 64), torch.float32), _CLASS), "89cda0b1d5be1cd7", "images"),
)  # fmt: skip


def draws(case: Case) -> str:
    """16 hex digits of SHA-256 over the initial parameters and two batches of seed 3, bytes as they lie."""
    task = case.task(seed=3)
    digest = hashlib.sha256()
    for tensor in (*task.initial().values(), *task.batch(0), *task.batch(40)):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
