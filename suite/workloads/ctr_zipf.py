"""`ctr-zipf`: click prediction from hashed categories; hardly any gradient entry differs from exactly zero.

Synthetic, and made like the click logs that public data sets stand for. An impression is one category in each of 8
fields, drawn from Zipf's law with exponent 1.1 over 30 to 30,000 categories. A teacher, redrawn for each seed, knows
a weight and a vector of 4 for every category; the click's probability is the logistic function of a factorisation
machine of them (Rendle, ICDM 2010). The model is a factorisation machine too, but over 8,192 buckets that field and
category are hashed to: rare categories share buckets and are seen a few times if at all. 32,768 impressions train it,
8,192 judge it. A batch of 32 touches at most 256 of the buckets; every other entry of the gradient is exactly zero,
which is what sign(0) and scales of the mean |g| are about.

The log loss is that against the teacher's probabilities, without the noise of the clicks; `nll` is that of the clicks
drawn, as one would measure it. Sharding "by-class" goes by the first field, as if each worker served other sites.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from suite.workloads.base import Task, Workload, predict
from suite.workloads.sampling import Indices, ShardSampler, Stream, generator, shards_of, uniforms

CATEGORIES = (30, 100, 300, 1_000, 1_000, 3_000, 10_000, 30_000)
"""Categories of each field; Zipf's law holds in each, the first category being the most frequent."""
EXPONENT = 1.1
BUCKETS, RANK = 8_192, 4
TRAIN_SIZE, TEST_SIZE = 32_768, 8_192
WEIGHT_SD, VECTOR_SD, INTERCEPT = 0.6, 0.35, -1.0
"""Of the teacher: about one impression in three is clicked."""
_HASH = np.uint64(0x9E3779B97F4A7C15)
_CHUNK = 2_048

Floats = npt.NDArray[np.float64]


class FactorisationMachine(nn.Module):
    """`forward(buckets [batch, fields])` gives logits [batch]; with clicks [batch], their mean cross entropy."""

    initial_sd = 0.05

    def __init__(self) -> None:
        super().__init__()
        self.intercept = nn.Parameter(torch.empty(1, device="meta"))
        self.table = nn.Parameter(torch.empty(BUCKETS, 1 + RANK, device="meta"))

    def forward(self, buckets: Tensor, clicks: Tensor | None = None) -> Tensor:
        rows = F.embedding(buckets, self.table)
        vectors = rows[..., 1:]
        pairs = vectors.sum(dim=-2).square() - vectors.square().sum(dim=-2)
        logits = self.intercept + rows[..., 0].sum(dim=-1) + 0.5 * pairs.sum(dim=-1)
        return logits if clicks is None else (F.softplus(logits) - clicks * logits).mean()


@dataclasses.dataclass(frozen=True)
class CtrZipf(Workload):
    """Log loss of the click's probability in nats; that of the drawn clicks beside it as NLL."""

    name = "ctr-zipf"
    version = 1
    summary = "factorisation machine on hashed Zipf categories (0.04 M parameters): gradients mostly zero"
    metric = "log_loss"
    unit = "nats"
    direction = "lower"
    margin = (
        0.008  # less than half of what the weakest control lost: 0.018 [0.017, 0.020], n = 12 (controls-ctr)
    )
    batch_size = 32
    shardings = ("iid", "by-class")

    def build(self) -> nn.Module:
        return FactorisationMachine()

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> CtrTask:
        size = self.check(seed, world_size, sharding, batch_size)
        categories, probabilities, clicks = impressions(seed)
        train = np.arange(TRAIN_SIZE)
        sampler = ShardSampler(shards_of(sharding, train, categories[:, 0], world_size, seed), size, seed)
        common = (self, seed, world_size, sharding, size, TRAIN_SIZE, TEST_SIZE)
        data = torch.from_numpy(hashed(categories)), torch.from_numpy(clicks), torch.from_numpy(probabilities)
        return CtrTask(*common, *data, sampler)


@lru_cache(maxsize=16)
def impressions(seed: int) -> tuple[Indices, Floats, npt.NDArray[np.float32]]:
    """Categories [40960, 8], probabilities of a click [40960] and clicks, 0 or 1 [40960]; training ones first."""
    count = TRAIN_SIZE + TEST_SIZE
    categories = np.empty((count, len(CATEGORIES)), dtype=np.int64)
    score = np.full(count, INTERCEPT)
    total, squares = np.zeros((count, RANK)), np.zeros((count, RANK))
    for field, size in enumerate(CATEGORIES):
        frequency = np.arange(1, size + 1, dtype=np.float64) ** -EXPONENT
        steps = np.cumsum(frequency)
        drawn = uniforms(count, generator(seed, Stream.EXAMPLE, field)) * steps[-1]
        own = categories[:, field] = np.minimum(np.searchsorted(steps, drawn, side="right"), size - 1)
        known = generator(seed, Stream.TEACHER, field).standard_normal((size, 1 + RANK))
        score += WEIGHT_SD * known[own, 0]
        vectors = VECTOR_SD * known[own, 1:]
        total += vectors
        squares += vectors**2
    probabilities = 1.0 / (1.0 + np.exp(-(score + 0.5 * (total**2 - squares).sum(axis=1))))
    clicks = uniforms(count, generator(seed, Stream.NOISE)) < probabilities
    return categories, probabilities, clicks.astype(np.float32)


def hashed(categories: Indices) -> Indices:
    """The bucket of each field's category, [..., fields] like `categories`: a multiplicative hash."""
    fields = np.arange(categories.shape[-1], dtype=np.uint64)
    words = (categories.astype(np.uint64) * np.uint64(len(CATEGORIES)) + fields + np.uint64(1)) * _HASH
    return (words >> np.uint64(64 - BUCKETS.bit_length() + 1)).astype(np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class CtrTask(Task):
    """Impressions for one seed.

    `batch(step)` is buckets int64 [world_size, batch_size, 8] and clicks float32 [world_size, batch_size].
    `evaluate` gives `log_loss` and `nll`, nats an impression.
    """

    buckets: Tensor = dataclasses.field(repr=False)
    clicks: Tensor = dataclasses.field(repr=False)
    probabilities: Tensor = dataclasses.field(repr=False)
    sampler: ShardSampler = dataclasses.field(repr=False)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        chosen = torch.from_numpy(self.sampler.indices(step))
        return self.buckets[chosen], self.clicks[chosen]

    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        expected = drawn = 0.0
        for start in range(TRAIN_SIZE, TRAIN_SIZE + TEST_SIZE, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            logits = predict(self, params, self.buckets[chunk]).double()
            normaliser = F.softplus(logits)
            expected += float((normaliser - self.probabilities[chunk] * logits).sum())
            drawn += float((normaliser - self.clicks[chunk] * logits).sum())
        return {"log_loss": expected / TEST_SIZE, "nll": drawn / TEST_SIZE}
