"""The table of workloads that drives the tests of the contract: adding a workload adds one row."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import torch

from suite.workloads import Task, Workload, get


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

    def workload(self) -> Workload:
        return get(self.name, **self.options)

    def task(
        self, seed: int = 0, world_size: int = 4, sharding: str = "iid", batch_size: int | None = 3
    ) -> Task:
        return self.workload().task(seed, world_size, sharding, batch_size)


CASES = (
    Case(
        "byte-mlm",
        {},
        137_280,
        (((64,), torch.int64), ((10,), torch.int64), ((10,), torch.int64)),
        "d7f7123919f5b152",
    ),
    Case("ctr-zipf", {}, 40_961, (((8,), torch.int64), ((), torch.float32)), "d5b4907abb38521d"),
    Case("digits-cnn", {}, 7_234, (((64,), torch.float32), ((), torch.int64)), "40dbfa365b49c325"),
    Case("digits-mlp", {}, 301_066, (((64,), torch.float32), ((), torch.int64)), "5c40b6548618e36d"),
    Case("digits-noisy", {}, 301_066, (((64,), torch.float32), ((), torch.int64)), "7900330390cfecb0"),
    Case("digits-vit", {}, 136_010, (((64,), torch.float32), ((), torch.int64)), "6ba7ee523422b2df"),
    Case(
        "label-noise-diagonal",
        {"shared": False},
        200,
        (((100,), torch.float32), ((), torch.float32)),
        "e0420d0f3b318918",
    ),
    Case("quadratic", {"dim": 20, "condition": 10.0}, 20, (((20,), torch.float32),), "674223c3fbad7962"),
    Case(
        "code-gpt",
        {"size": "0.14m"},
        141_312,
        (((128,), torch.int64), ((128,), torch.int64)),
        "755d7192acb07e19",
    ),
)


def draws(case: Case) -> str:
    """16 hex digits of SHA-256 over the initial parameters and two batches of seed 3, bytes as they lie."""
    task = case.task(seed=3)
    digest = hashlib.sha256()
    for tensor in (*task.initial().values(), *task.batch(0), *task.batch(40)):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
