"""Workloads whose data are made, so that something about them is known exactly.

*`quadratic`*: a noisy strongly convex quadratic; optimum, excess loss and noise are known in closed form. Worker i has f_i(w) =
1/2 (w - 1)^T A (w - 1) - (A b_i)^T (w - 1), with A diagonal and its eigenvalues spaced evenly in the logarithm from 1/condition
to 1. Its own optimum is 1 + b_i; the b_i sum to zero, so the mean of the f_i is 1/2 (w - 1)^T A (w - 1), with optimum 1 (all
ones) and value 0 there. An example is a vector xi of independent N(0, sigma^2) entries, and its loss is f_i(w) - xi^T (w - 1):
the gradient of a batch is exact plus noise of variance sigma^2 / batch_size in every coordinate. Training starts at N(0, 1). A
is diagonal in the coordinates that methods see, which favours coordinate-wise methods (sign, Adam). And SGD is linear here:
averaging once at the end equals averaging every step, so the control without communication loses nothing. It is there for
closed forms; no verdict on equal accuracy can rest on it.

*`label-noise-diagonal`*: regression with squared weights under fresh label noise; flat minima generalise. f(x) = <u^2 - v^2,
x>, 100 inputs, 40 samples of N(0, 1) entries, a teacher with 5 entries of +-1 and 95 of 0. In every step every worker sees one
sample of its own under a label with fresh noise, +1 or -1. All of the samples can be fitted in many ways; the noise goes on
once they are, and drives the weights, over about 1/lr^2 steps, to where the trace of the Hessian is least, which is near the
sparse teacher (HaoChen et al., arXiv 2006.08680; Li, Wang and Arora, arXiv 2110.06914). Workers that step locally keep more of
the noise than workers whose gradients are averaged, so here local methods can beat the baseline, and no bound holds that they
come out alike. The test loss is exact: E (f(x) - teacher(x))^2 over new x is the squared distance of u^2 - v^2 from the
teacher. Beside it stand `hessian_trace`, of the loss on all samples without noise, and `clean_loss`, that loss itself. Sharding
"iid" gives every worker 10 of the 40 samples (at four workers), so that one that is never told of the others learns another
function. With the option `shared` every worker draws from all 40; then a worker alone with its noise generalises better than
the baseline, and the controls do not lose.

*`ctr-zipf`*: click prediction from hashed categories; hardly any gradient entry differs from exactly zero. It is made like the
click logs that public data sets stand for. An impression is one category in each of 8 fields, drawn from Zipf's law with
exponent 1.1 over 30 to 30,000 categories. A teacher, redrawn for each seed, knows a weight and a vector of 4 for every
category; the click's probability is the logistic function of a factorisation machine of them (Rendle, ICDM 2010). The model is
a factorisation machine too, but over 8,192 buckets that field and category are hashed to: rare categories share buckets and are
seen a few times if at all. 32,768 impressions train it, 8,192 judge it. A batch of 32 touches at most 256 of the buckets; every
other entry of the gradient is exactly zero, which is what sign(0) and scales of the mean |g| are about. The log loss is that
against the teacher's probabilities, without the noise of the clicks; `nll` is that of the clicks drawn, as one would measure
it. Sharding "by-class" goes by the first field, as if each worker served other sites.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reference_impls.core.options import option
from suite.workloads.base import (
    Indices,
    ShardSampler,
    Stream,
    Task,
    Workload,
    generator,
    iid_shards,
    permutation,
    predict,
    shards_of,
    uniform_integers,
    uniforms,
)

Floats = npt.NDArray[np.float32]


class QuadraticModel(nn.Module):
    """`forward(slopes [batch, dim])` is the mean over the batch of 1/2 (w-1)^T A (w-1) - slope^T (w-1)."""

    curvature: Tensor
    initial_sd = 1.0

    def __init__(self, dim: int, condition: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(dim, device="meta"))
        self.register_buffer("curvature", torch.from_numpy(spectrum(dim, condition).copy()), persistent=False)

    def forward(self, slopes: Tensor) -> Tensor:
        offset = self.w - 1.0
        return (offset * (0.5 * self.curvature * offset - slopes.mean(dim=-2))).sum()


@lru_cache(maxsize=8)
def spectrum(dim: int, condition: float) -> Floats:
    """The eigenvalues of A in coordinate order, float32 [dim], ascending from 1/condition to 1; read-only."""
    values = np.logspace(-math.log10(condition), 0.0, dim).astype(np.float32)
    values.flags.writeable = False
    return values


@dataclasses.dataclass(frozen=True)
class Quadratic(Workload):
    """Excess loss over the optimum, exact. Sharding "by-class" gives the workers different optima."""

    name = "quadratic"
    version = 1
    summary = "noisy quadratic with known spectrum, optimum and noise"
    metric = "excess_loss"
    unit = "1"
    direction = "lower"
    margin = 0.01
    no_verdict = "SGD is linear on it, so that one average at the end loses nothing"
    batch_size = 1
    shardings = ("iid", "by-class")

    dim: int = option(100, "number of parameters", ge=1)
    condition: float = option(100.0, "largest over smallest eigenvalue", ge=1)
    sigma: float = option(0.1, "standard deviation of the gradient noise, per coordinate and example", ge=0)
    heterogeneity: float = option(
        1.0, 'standard deviation of the workers\' optima with sharding "by-class"', ge=0
    )

    def build(self) -> nn.Module:
        return QuadraticModel(self.dim, self.condition)

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> QuadraticTask:
        size = self.check(seed, world_size, sharding, batch_size)
        shifts = np.zeros((world_size, self.dim), dtype=np.float32)
        if sharding == "by-class":
            drawn = generator(seed, Stream.SHIFT).standard_normal((world_size, self.dim))
            shifts = (self.heterogeneity * (drawn - drawn.mean(axis=0))).astype(np.float32)
        common = (self, seed, world_size, sharding, size, world_size * size, 0)
        return QuadraticTask(*common, spectrum(self.dim, self.condition), shifts, self.sigma)


@dataclasses.dataclass(frozen=True, eq=False)
class QuadraticTask(Task):
    """The quadratic for one seed.

    `batch(step)` is one tensor, the slopes xi + A b_i, float32 [world_size, batch_size, dim]. `evaluate`
    gives `excess_loss`, 1/2 (w-1)^T A (w-1) in float64. There is no finite training set: `train_size` is one
    batch of every worker, so that an epoch is one step; `test_size` is 0.
    """

    curvature: Floats = dataclasses.field(repr=False)
    shifts: Floats = dataclasses.field(repr=False)
    """b_i, [world_size, dim]; zero with sharding "iid"."""
    sigma: float

    def batch(self, step: int) -> tuple[Tensor]:
        if step < 0:
            raise ValueError(f"step must be >= 0, got {step}")
        slopes = np.empty((self.world_size, self.batch_size, len(self.curvature)), dtype=np.float32)
        for rank, own in enumerate(slopes):
            generator(self.seed, Stream.NOISE, rank, step).standard_normal(dtype=np.float32, out=own)
            own *= np.float32(self.sigma)
            own += self.curvature * self.shifts[rank]
        return (torch.from_numpy(slopes),)

    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        offset = params["w"].detach().cpu().double().numpy() - 1.0
        return {"excess_loss": float(0.5 * np.sum(self.curvature * offset * offset))}


DIM, SAMPLES, SPARSITY = 100, 40, 5
BLOCK = 512
"""Steps that are drawn at a time."""


class Diagonal(nn.Module):
    """`Diagonal()(x [batch, 100], y [batch])` is the mean of (f(x) - y)^2 / 2; without y, f(x) [batch]."""

    initial_sd = 0.3

    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.empty(DIM, device="meta"))
        self.v = nn.Parameter(torch.empty(DIM, device="meta"))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        f = (x * (self.u * self.u - self.v * self.v)).sum(dim=-1)
        return f if y is None else 0.5 * (f - y).square().mean()


@dataclasses.dataclass(frozen=True)
class LabelNoiseDiagonal(Workload):
    """Exact test loss; trace of the Hessian and the training loss without noise beside it."""

    name = "label-noise-diagonal"
    version = 1
    summary = "sparse regression by u^2 - v^2 (200 parameters) under fresh label noise: flatness"
    metric = "test_loss"
    unit = "1"
    direction = "lower"
    margin = 0.2  # the weakest control lost 3.76 [2.09, 5.43], n = 6, 5,000 steps (controls-label-noise)
    batch_size = 1
    shardings = ("iid",)

    shared: bool = option(False, "every worker draws from all samples, not from a share of its own")

    def build(self) -> nn.Module:
        return Diagonal()

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> LabelNoiseTask:
        size = self.check(seed, world_size, sharding, batch_size)
        rng = generator(seed, Stream.TEACHER)
        teacher = np.zeros(DIM, dtype=np.float32)
        teacher[permutation(DIM, rng)[:SPARSITY]] = 2 * uniform_integers(SPARSITY, 2, rng) - 1
        inputs = generator(seed, Stream.SPLIT).standard_normal((SAMPLES, DIM), dtype=np.float32)
        everything = np.arange(SAMPLES)
        labels = (inputs.astype(np.float64) @ teacher).astype(np.float32)
        shards = (everything,) * world_size if self.shared else iid_shards(everything, world_size, seed)
        common = (self, seed, world_size, sharding, size, SAMPLES, 0)
        return LabelNoiseTask(*common, inputs, teacher, labels, shards)


@dataclasses.dataclass(frozen=True, eq=False)
class LabelNoiseTask(Task):
    """The regression for one seed.

    `batch(step)` is inputs float32 [world_size, batch_size, 100] and noisy labels float32 [world_size, batch_size];
    samples are drawn with replacement from a worker's shard.
    """

    inputs: Floats = dataclasses.field(repr=False)
    teacher: Floats = dataclasses.field(repr=False)
    labels: Floats = dataclasses.field(repr=False)
    """Without noise, [samples]."""
    shards: tuple[Indices, ...] = dataclasses.field(repr=False)
    _blocks: dict[int, tuple[Indices, Floats]] = dataclasses.field(default_factory=dict, repr=False)
    """The block in use, as a cache: answers do not depend on it."""

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        if step < 0:
            raise ValueError(f"step must be >= 0, got {step}")
        chosen, noise = (part[:, step % BLOCK] for part in self._block(step // BLOCK))
        return torch.from_numpy(self.inputs[chosen]), torch.from_numpy(self.labels[chosen] + noise)

    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        u, v = (params[name].detach().cpu().double().numpy() for name in ("u", "v"))
        distance = u * u - v * v - self.teacher
        inputs = self.inputs.astype(np.float64)
        return {
            "test_loss": float(np.sum(distance**2)),
            "hessian_trace": float(4.0 * np.mean(inputs**2 @ (u * u + v * v))),
            "clean_loss": float(0.5 * np.mean((inputs @ distance) ** 2)),
        }

    def _block(self, index: int) -> tuple[Indices, Floats]:
        """Samples and noise of `BLOCK` steps, both [world_size, BLOCK, batch_size]."""
        if index not in self._blocks:
            count = BLOCK * self.batch_size
            chosen, noise = [], []
            for rank, shard in enumerate(self.shards):
                rng = generator(self.seed, Stream.NOISE, rank, index)
                chosen.append(shard[uniform_integers(count, len(shard), rng)])
                noise.append(2.0 * uniform_integers(count, 2, rng) - 1.0)
            shape = (self.world_size, BLOCK, self.batch_size)
            self._blocks.clear()
            self._blocks[index] = (
                np.stack(chosen).reshape(shape),
                np.stack(noise).astype(np.float32).reshape(shape),
            )
        return self._blocks[index]


CATEGORIES = (30, 100, 300, 1_000, 1_000, 3_000, 10_000, 30_000)
"""Categories of each field; Zipf's law holds in each, the first category being the most frequent."""
EXPONENT = 1.1
BUCKETS, RANK = 8_192, 4
TRAIN_SIZE, TEST_SIZE = 32_768, 8_192
WEIGHT_SD, VECTOR_SD, INTERCEPT = 0.6, 0.35, -1.0
"""Of the teacher: about one impression in three is clicked."""
_HASH = np.uint64(0x9E3779B97F4A7C15)
_CHUNK = 2_048


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
def impressions(seed: int) -> tuple[Indices, npt.NDArray[np.float64], Floats]:
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
            logits = predict(self, params, self.buckets[chunk]).cpu().double()
            normaliser = F.softplus(logits)
            expected += float((normaliser - self.probabilities[chunk] * logits).sum())
            drawn += float((normaliser - self.clicks[chunk] * logits).sum())
        return {"log_loss": expected / TEST_SIZE, "nll": drawn / TEST_SIZE}
