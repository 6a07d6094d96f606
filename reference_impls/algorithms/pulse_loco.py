"""PULSELoCo: DiLoCo on the part of its progress that bfloat16 can see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reference_impls.algorithms.local_updates import TIMED_ROUNDS, Compression, DiLoCo
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket, StateSpec, Timed, option, per_rank
from reference_impls.core.collectives import Exchange


def visible(anchor: Tensor, move: Tensor) -> Tensor:
    """Where `anchor` - `move` is another number than `anchor` in bfloat16: bool [d]. NaN is another number."""
    moved = torch.sub(anchor, move, out=compute.empty_like(anchor))
    return anchor.to(torch.bfloat16) != moved.to(torch.bfloat16)


@dataclass(frozen=True)
class VisibleMean(Compression):
    """The entries of error + x that are `visible` from the anchor, gathered; the others stay in the error."""

    state: ClassVar[Mapping[str, StateSpec]] = {"compression_error": per_rank()}

    def mean(self, bucket: Bucket, x: Tensor, stage: str) -> Exchange[Tensor]:
        if bucket.world.size == 1:
            return x
        error = bucket.state["compression_error"].add_(x)
        fired = visible(bucket.state["anchor"], error)
        own = fired.nonzero().view(-1)
        count = torch.full((1,), own.numel(), dtype=torch.int32, device=x.device)
        most = int((yield from bucket.world.max(count, f"{stage}-count")))
        x.zero_()
        if not most:
            return x
        places = torch.zeros(most, dtype=torch.int32, device=x.device)  # zeros at place 0 change no sum
        values = torch.zeros(most, dtype=x.dtype, device=x.device)
        places[: own.numel()] = own
        values[: own.numel()] = error[own]
        error[own] = 0
        all_places = yield from bucket.world.gather(places, f"{stage}-places")
        all_values = yield from bucket.world.gather(values, f"{stage}-values")
        for places, values in zip(all_places, all_values, strict=True):
            x.index_add_(0, places, values)
        return x.div_(bucket.world.size)


@dataclass(frozen=True)
class PULSELoCo(DiLoCo):
    """PULSELoCo: DiLoCo whose workers send what bfloat16 can see of their progress. arXiv 2602.03839.

    After H = `period` local steps, on every worker:

        s <- e + (A - x)
        fired = bf16(A) != bf16(A - s)
        the entries of s that fired are sent;  e <- 0 there, s elsewhere
        D = 1/n sum of what all workers sent;  u <- b u + D;  A <- A - a (D + b u);  x <- A

    A is the anchor, a = `outer_lr`, b = `outer_momentum`. A move that would not change the anchor in bfloat16 waits in e until
    it has added up to one that does. Small steps, as of reinforcement learning, change few entries. At rates of pre-training
    nearly all fire, and an entry costs 8 bytes to every other worker, where DiLoCo's all-reduce costs 4 twice: measure first.
    A rank that takes its steps alone (`bandwise info`) begins at zeros, of which every move is visible: it tells the most.

    Traffic: an all-reduce of one int32, the largest number m of entries that fired on a rank; then m int32 places and m values
    in the dtype of the parameters from every rank to every rank, where a rank that has fewer adds zeros. Nothing follows where
    m = 0. How parameters are cut into buckets changes traffic, never results.

    Differences: of the paper the abstract was read, of the published code the outer step. That code sends places as int64, 12
    bytes an entry; here int32, 8 bytes. As there, an entry is tested against the anchor before the mean and the outer rate, what
    did not fire counts as 0 in the mean, and values are not rounded. The gate is bfloat16 whatever the dtype of the parameters;
    e and the anchor have that dtype (float32 or float64; parameters in bfloat16 are refused, as everywhere). One worker
    compresses nothing. Otherwise as DiLoCo.
    """

    period: int = option(10, "H: inner steps in a round, at least 1", ge=1)

    @property
    def compression(self) -> Compression:
        return VisibleMean()

    timed: ClassVar[Timed] = TIMED_ROUNDS
