"""Sketched-SGD, its theory's version, and gs-SGD: sums of Count-Sketches (`compressors.count_sketch`), values fetched after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reference_impls.aggregators import folds
from reference_impls.aggregators.folds import Fold
from reference_impls.compressors.count_sketch import CountSketch
from reference_impls.compressors.sparse import kept, largest, magnitude
from reference_impls.core import compute
from reference_impls.core.algorithm import Algorithm, Bucket, StateSpec, option, per_rank
from reference_impls.core.collectives import Exchange, Group

_HEAVY = 1 << 40  # above all magnitudes and random numbers


@dataclass(frozen=True)
class SketchSize(Algorithm):
    """Sketched-SGD: Count-Sketches are summed, large coordinates are read off the sum, exact values fetched. arXiv 1903.04488.

    Options: how much of the sketched coordinates a step updates, and how large the sketch is.

    ``sketched-sgd`` is the paper's practical version (Algorithm 3 and the authors' code). On every worker u <- m u + g, v <-
    v + u; the sketches of all v are averaged; the P k coordinates with the largest estimates are candidates, the same on all
    workers; a second round averages their exact values; the k largest make up the update x <- x - lr update; u and v are set
    to 0 there (momentum factor masking, error feedback). ``sketched-sgd-theory`` is Algorithm 2: p = lr g + e is sketched
    whole; heavy coordinates, estimate^2 >= |mean p|^2 / k as the sketch tells it, and if these are fewer than k random
    others, are fetched and subtracted: x <- x - update, e <- p - update.

    Sizes. k = max(1, floor(ratio d)), c = ceil(column_ratio d) columns, r rows, d being what is sketched. The defaults make
    2 d / (r c + P k + k), the paper's accounting, 40. What a worker sends as an all-reduce: 2 (n-1)/n 4 (r c + P k) bytes and the
    dense part.

    Differences: the mean is taken in both rounds (the paper averages sketches and sums values). Hashes are 4-wise
    independent (`compressors.count_sketch`); in the published code 61-bit arithmetic wraps at 64 bits. Ties go to the lowest
    index. 1-D tensors (the code: biases) travel uncompressed with ordinary momentum, in the same all-reduce as the sketch.
    The code's cut of v to its own largest coordinates before sketching is left out. Theory version: the estimate is squared
    where the paper prints it unsquared; of more than k heavy coordinates the k largest; its weighted average of iterates is
    not formed; lr is the schedule of the training. All of it also runs with one worker, so results do not depend on how a
    batch is spread.
    """

    ratio: float = option(0.001, "k: share of the sketched coordinates that a step updates", gt=0, le=1)
    rows: int = option(5, "rows of the sketch, odd", ge=1)
    column_ratio: float = option(0.009, "columns of the sketch, as a share of the sketched coordinates", gt=0)

    scope: ClassVar[Literal["bucket", "model"]] = "model"
    reduces_gradient: ClassVar[bool] = False

    def check(self, world: Group) -> None:
        self.sketch_of(8)

    def sketch_of(self, sketched: int, seed: int = 0) -> CountSketch:
        """The sketch of `sketched` coordinates; `UnsupportedError` for rows that cannot be."""
        return CountSketch(self.rows, max(1, ceil(self.column_ratio * sketched)), seed)


@dataclass(frozen=True)
class SketchedSGD(SketchSize):
    """Algorithm 3: momentum and error on the workers, P k candidates."""

    candidates: int = option(4, "P: candidates whose exact values are fetched, as a multiple of k", ge=1)
    dense_vectors: bool = option(True, "send 1-D tensors uncompressed")

    defaults: ClassVar[Mapping[str, Any]] = {"lr": 1e-2, "momentum": 0.9, "weight_decay": 0.0}
    state: ClassVar[Mapping[str, StateSpec]] = {"momentum": per_rank(), "error": per_rank()}

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        u, v, g = bucket.state["momentum"], bucket.state["error"], bucket.grads
        for part, decay in bucket.decays():
            g[part].add_(bucket.params[part], alpha=decay)
        for part, h in bucket.groups():
            u[part].mul_(h["momentum"]).add_(g[part])
        v.add_(u)
        places = torch.arange(bucket.d, device=v.device)
        dense = torch.cat(
            [places[view.part] for view in bucket.views if self._whole(view.param.shape)] or [places[:0]]
        )
        whole = torch.zeros(bucket.d, dtype=torch.bool, device=v.device).index_fill_(0, dense, True)
        sketched = bucket.d - dense.numel()
        sketch = self.sketch_of(sketched, bucket.train_state.seed)
        table = v.new_zeros(sketch.rows, sketch.columns if sketched else 0)
        if sketched:
            sketch.encode(v.masked_fill(whole, 0), table)
        first = yield from self.mean(bucket, torch.cat([table.view(-1), v[dense]]), "sketch")
        nonfinite = (first * 0).sum()  # 0, or NaN: whatever is not finite shows in every coordinate
        update = torch.zeros_like(v)
        update[dense] = first[table.numel() :]
        v[dense] = 0
        if sketched:
            estimates = torch.empty(bucket.d, dtype=v.dtype, device=v.device)
            sketch.decode(first[: table.numel()].view_as(table), estimates)
            order = magnitude(estimates.to(torch.float32)).masked_fill(whole, -1)
            places = largest(order, self._second(sketched))
            values = yield from self.mean(bucket, v[places], "values")
            best = largest(magnitude(values.to(torch.float32)), kept(self.ratio, sketched))
            top, values = places[best], values[best]  # the k largest of the exact values of P k candidates
            nonfinite = nonfinite + (values * 0).sum()
            update[top] = values
            u[top] = 0
            v[top] = 0
        return update.add_(nonfinite)

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        for part, h in bucket.groups():
            compute.add_scaled(bucket.params[part], reduced[part], -h["lr"])

    def mean(self, bucket: Bucket, x: Tensor, stage: str) -> Exchange[Tensor]:
        """Mean over all ranks of a buffer of this rank, which is consumed."""
        return (yield from bucket.world.mean(x, stage))

    def _whole(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape travels uncompressed."""
        return self.dense_vectors and len(shape) <= 1

    def _second(self, sketched: int) -> int:
        """Values that the second round fetches."""
        return min(sketched, self.candidates * kept(self.ratio, sketched))


@dataclass(frozen=True)
class SketchedSGDTheory(SketchSize):
    """Algorithm 2: error feedback on lr g, heavy coordinates of the mean."""

    defaults: ClassVar[Mapping[str, Any]] = {"lr": 1e-2, "weight_decay": 0.0}
    state: ClassVar[Mapping[str, StateSpec]] = {"error": per_rank()}

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        error, g = bucket.state["error"], bucket.grads
        for part, decay in bucket.decays():
            g[part].add_(bucket.params[part], alpha=decay)
        for part, h in bucket.groups():
            compute.add_scaled(error[part], g[part], h["lr"])
        sketch = self.sketch_of(bucket.d, bucket.train_state.seed)
        table = error.new_zeros(sketch.rows, sketch.columns)
        sketch.encode(error, table)
        table = (yield from bucket.world.mean(table.view(-1), "sketch")).view_as(table)
        places = self._mixed(bucket, sketch, table)
        values = yield from bucket.world.mean(error[places], "values")
        nonfinite = (table * 0).sum() + (values * 0).sum()
        error[places] -= values
        return torch.zeros_like(error).index_copy_(0, places, values).add_(nonfinite)

    def _mixed(self, bucket: Bucket, sketch: CountSketch, table: Tensor) -> Tensor:
        """HEAVYMIX: heavy coordinates, largest first, then random ones; k in all."""
        k = kept(self.ratio, bucket.d)
        estimates = torch.empty(bucket.d, dtype=table.dtype, device=table.device)
        sketch.decode(table, estimates)
        # times a power of two, which changes no comparison: squares of 1e19 and more are none of float32
        exponent = torch.frexp(table.abs().amax()).exponent.clamp(-100, 100)
        small = torch.ldexp(torch.ones((), dtype=table.dtype, device=table.device), -exponent)
        heavy = ~((estimates * small).square() < sketch.squared_norm(table * small) / k)
        drawn = bucket.key("others", shared=True).bits(bucket.d, table.device).long()
        return largest(torch.where(heavy, magnitude(estimates.to(torch.float32)).long() + _HEAVY, drawn), k)

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        bucket.params.sub_(reduced)


@dataclass(frozen=True)
class GsSGD(SketchedSGD):
    """gs-SGD, our reading: Sketched-SGD whose sums run over a tree, without a server. arXiv 2108.06004 (abstract only).

    The abstract says that gradients are put into Count-Sketches and exchanged in a decentralised way with communication O(log
    d log P) for P workers. Read here as: the worker's and the selection rule of Sketched-SGD (`algorithms.sketched_sgd`), and
    both rounds summed pair by pair in ceil(log2 n) rounds (`aggregators.folds`) instead of a parameter server or an all-reduce.

    Differences: everything but the abstract is our reading, never the paper's: its algorithm, k, rows and columns were not to be
    had, and no code was found. ``form="doubling"`` sends log2 n times the table from every worker, ``tree`` (to rank 0 and back)
    less than twice on average and ceil(log2 n) times from rank 0. Pairwise sums have the same bits on every backend.
    """

    form: Fold = option(
        "doubling", "doubling (log2 n messages from every worker) or tree (to rank 0 and back)"
    )

    def mean(self, bucket: Bucket, x: Tensor, stage: str) -> Exchange[Tensor]:
        total = yield from folds.fold(bucket.world, x, lambda a, b, accounts: a + b, stage, self.form)
        return total / bucket.world.size
