"""Sparsifiers beside top-k (`algorithms.compressed_gradient`): random-k, gTop-k and Deep Gradient Compression."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from reference_impls.aggregators import folds
from reference_impls.aggregators.coded_mean import gather_mean
from reference_impls.aggregators.folds import Fold
from reference_impls.compressors.compressor import Compressor, PerTensor
from reference_impls.compressors.sparse import TopK, kept, largest, magnitude, pack_pairs, unpack_pairs
from reference_impls.core import compute
from reference_impls.core.algorithm import (
    DEFAULT,
    Algorithm,
    Bucket,
    StateSpec,
    Timed,
    TrainState,
    option,
    per_rank,
)
from reference_impls.core.collectives import Exchange
from reference_impls.core.optimizers import WithLocalOptimizer


@dataclass(frozen=True)
class RandomKGradient(WithLocalOptimizer):
    """Random-k sparsification: the same random coordinates on all workers, so that their values can be summed on the way.

    g <- d/k times the mean of k random coordinates of g.

    k = max(1, floor(ratio d)) coordinates of a bucket (or tensor) are drawn without replacement from a stream that all workers
    share; an all-reduce averages these k values; the others count as 0. Without error feedback the result is multiplied by d/k
    and is unbiased, with variance (d/k - 1) |g|^2; with error feedback it is not, and e_i keeps what was not sent
    (arXiv 1809.07599).

    Differences: places need no room on the wire. GRACE's code draws with replacement (fewer than k coordinates), leaves out the
    factor, and reseeds the global generator at every call from the sum of the letters of the tensor's name; here every step and
    bucket draws from a stream of its own. One more value travels, 0 or NaN: it says whether all gradients were finite, since a
    value that is not might otherwise wait unseen in a coordinate that is not drawn. One worker compresses nothing.
    """

    ratio: float = option(0.01, "share of the coordinates that is sent", gt=0, le=1)
    error_feedback: bool = option(False, "send g + e unscaled and keep what was not sent")
    granularity: Literal["bucket", "tensor"] = option(
        "bucket", "k coordinates of a bucket, or of each tensor"
    )

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {"worker_error": per_rank()} if self.error_feedback else {}

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if bucket.world.size == 1:
            return bucket.grads
        x = bucket.grads
        places, scale = self._draw(
            bucket, [v.part for v in bucket.views] if self.granularity == "tensor" else []
        )
        sent = torch.empty(places.numel() + 1, dtype=x.dtype, device=x.device)
        if self.error_feedback:
            error = bucket.state["worker_error"].add_(x)
            torch.index_select(error, 0, places, out=sent[:-1])
            sent[-1] = (error * 0).sum()
            error[places] -= sent[:-1]  # and not = 0: what is not finite stays so
        else:
            torch.index_select(x, 0, places, out=sent[:-1])
            sent[-1] = (x * 0).sum()
        mean = yield from bucket.world.mean(sent, "values")
        values = mean[:-1] if self.error_feedback else mean[:-1] * scale
        return x.zero_().index_copy_(0, places, values).add_(mean[-1])

    def _draw(self, bucket: Bucket, tensors: Sequence[slice]) -> tuple[Tensor, Tensor | float]:
        """Places in the bucket, ascending, and the factor d/k (for tensors: one a place)."""
        order = bucket.key("places", shared=True).bits(
            bucket.d, bucket.grads.device
        )  # a stream has no number twice
        if not tensors:
            return largest(order, kept(self.ratio, bucket.d)), bucket.d / kept(self.ratio, bucket.d)
        places, scales = [], []
        for part in (t for t in tensors if t.stop > t.start):
            length = part.stop - part.start
            k = kept(self.ratio, length)
            places.append(largest(order[part], k) + part.start)
            scales.append(torch.full((k,), length / k, dtype=bucket.grads.dtype, device=order.device))
        return torch.cat(places), torch.cat(scales)


@dataclass(frozen=True)
class GTopK(WithLocalOptimizer):
    """gTop-k: the k largest coordinates of all workers together, merged pair by pair. arXiv 1901.04359 (text not read).

    g <- 1/n times the k largest coordinates of the sum of everybody's k largest, as a tree finds them.

    p_i = g_i + e_i; every worker's k largest coordinates meet on a tree; at each merge equal places are added and the k largest
    of the sum go on (`merge`), so that a message has k entries on every edge, whatever the number of workers;
    what comes out, divided by n, is the gradient, and e_i keeps what was not used.

    Differences: from the authors' published code and README alone. ``put_back="merger"``: an entry that drops out at a merge
    is kept by the worker that merged, so that nothing is ever lost: n mean(x_t) + sum e_{t-1} = n answer_t + sum e_t. The
    published rule, ``put_back="mask"``, has each worker keep what it did not send or what is not among the final places; a
    value that dropped out on the way at a place that comes out by another branch is then kept by nobody. ``form="tree"`` (the
    published one: to rank 0 and back) or ``doubling`` (half the rounds, as many messages on every rank). Any number of
    workers; the published loop stops with an error unless it is a power of two. Places in ceil(log2 d) bits; the published
    code sends them as floats. k is of a bucket. One worker compresses nothing.
    """

    ratio: float = option(0.01, "share of the coordinates that is sent over each edge", gt=0, le=1)
    form: Fold = option("tree", "tree (to rank 0 and back) or doubling")
    put_back: Literal["merger", "mask"] = option(
        "merger", "who keeps what drops out: merger or mask (published)"
    )

    state: ClassVar[Mapping[str, StateSpec]] = {"worker_error": per_rank()}

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if bucket.world.size == 1:
            return bucket.grads
        d, compressor = bucket.d, TopK(self.ratio)
        k = kept(self.ratio, d)
        error = bucket.state["worker_error"].add_(bucket.grads)
        message = torch.zeros(compressor.wire_bytes(d), dtype=torch.uint8, device=error.device)
        compressor.encode(error.to(torch.float32), bucket.key("largest"), message)
        places, values = unpack_pairs(message, d, k)
        if self.put_back == "merger":
            error[places] -= values.to(error.dtype)

        def combine(mine: Tensor, came: Tensor, accounts: bool) -> Tensor:
            both, (out, left) = merge(mine, came, d, k)
            if accounts and self.put_back == "merger":
                error[out] += left.to(error.dtype)
            return both

        message = yield from folds.fold(bucket.world, message, combine, "largest", self.form)
        final, total = unpack_pairs(message, d, k)
        if self.put_back == "mask":
            used = places[torch.isin(places, final)]
            error[used] = 0
        mean = (total / bucket.world.size).to(error.dtype)
        return bucket.grads.zero_().index_copy_(0, final, mean)


def merge(mine: Tensor, came: Tensor, numel: int, k: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Two messages uint8 [bytes] of k entries each (fp32 values) -> the merged message, and what it leaves out.

    Entries at the same place are added (one float32 addition, the same in both orders); of the up to 2k places that
    result, the k largest stay, ties to the lowest index, NaN and inf first.

    Returns:
        (message, (places int64 [m], values float32 [m])): 0 <= m <= k entries that were not among the largest.
    """
    (a, x), (b, y) = (unpack_pairs(m, numel, k) for m in (mine, came))
    places, order = torch.sort(torch.cat([a, b]), stable=True)
    values = torch.cat([x, y])[order]
    twice = (places[1:] == places[:-1]).nonzero().view(-1)
    values[twice] += values[twice + 1]
    single = torch.ones_like(places, dtype=torch.bool)
    single[twice + 1] = False
    places, values = places[single], values[single]
    stay = torch.zeros_like(places, dtype=torch.bool)
    stay[largest(magnitude(values), k)] = True
    message = torch.zeros_like(mine)
    pack_pairs(places[stay], values[stay], numel, message)
    return message, (places[~stay], values[~stay])


@dataclass(frozen=True)
class DGC(Algorithm):
    """Deep Gradient Compression: top-k of accumulated momentum. arXiv 1712.01887 (from a reader's notes and the authors' code).

    Kinds of step: ``ratio-<share that is sent>``.

    On every worker, with the gradient clipped to local_clip / sqrt(n): u <- m u + g (momentum correction: the momentum is
    local and is what accumulates), v <- v + u; the largest coordinates of v are sent and set to 0 in v, and in u as well
    (momentum factor masking); x <- x - lr mean of what was sent. The share that is sent falls exponentially in a warm-up: in
    its stage s = 1 .. S it is ratio^(s / (S+1)), which for ratio 0.001 and S = 4 is 0.25, 0.063, 0.016, 0.004.

    Differences: selection is exact and k = max(1, floor(ratio d)) fixed; the published code estimates a threshold from a
    sample of 1 % and corrects it. The norm that is clipped is that of the whole model, hence one bucket, without overlap with
    backward; per tensor in the published code. k is of a tensor (the published code; 1-D tensors included, which it leaves
    out) or of the model. Where what is sent is 0, u is not masked. Weight decay is added to the gradient before the momentum,
    as in torch's SGD. One worker compresses nothing and is SGD with momentum.
    """

    scope: ClassVar[Literal["bucket", "model"]] = "model"
    defaults: ClassVar[Mapping[str, Any]] = {
        "lr": 1e-2,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "nesterov": False,
    }
    reduces_gradient: ClassVar[bool] = False
    clipping: ClassVar[str] = "local_clip"
    state: ClassVar[Mapping[str, StateSpec]] = {"momentum": per_rank(), "velocity": per_rank()}

    ratio: float = option(0.001, "share of the coordinates that is sent, after the warm-up", gt=0, le=1)
    local_clip: float = option(
        0.0, "largest norm of the gradient of n workers together; 0: no clipping", ge=0
    )
    granularity: Literal["tensor", "model"] = option(
        "tensor", "k coordinates of each tensor, or of the model"
    )
    warmup_steps: int = option(0, "first steps, in which the share falls to ratio", ge=0)
    warmup_stages: int = option(4, "shares that the warm-up goes through, equally long each", ge=1)

    def share(self, step: int) -> float:
        """The share of the coordinates that is sent in this step."""
        if step >= self.warmup_steps:
            return self.ratio
        stage = 1 + step * self.warmup_stages // self.warmup_steps
        return float(self.ratio ** (stage / (self.warmup_stages + 1)))

    def _compressor(self, ratio: float, lengths: Sequence[int]) -> Compressor:
        compressor = TopK(ratio)
        return compressor if self.granularity == "model" else PerTensor(compressor, tuple(lengths))

    def plan(self, train_state: TrainState) -> str:
        return _kind(self.share(train_state.step))

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        u, v, g = bucket.state["momentum"], bucket.state["velocity"], bucket.grads
        if self.local_clip:
            norm = torch.linalg.vector_norm(g, dtype=torch.float64)
            limit = self.local_clip / math.sqrt(bucket.world.size)
            g.mul_((limit / norm).clamp(max=1.0).to(g.dtype))  # lets NaN through
        for part, decay in bucket.decays():
            if decay:
                g[part].add_(bucket.params[part], alpha=decay)
        step: Tensor = u.clone()
        for part, h in bucket.groups():
            u[part].mul_(h["momentum"]).add_(g[part])
            step[part] = g[part].add(u[part], alpha=h["momentum"]) if h["nesterov"] else u[part]
        if bucket.world.size == 1:
            return step
        before = v + step
        share = bucket.train_state.choice(lambda now: self.share(now.step))
        compressor = self._compressor(share, [view.param.numel() for view in bucket.views])
        mean = yield from gather_mean(bucket, step, compressor, "velocity", worker_error=v)
        u.masked_fill_(before != v, 0)
        return mean

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        for part, h in bucket.groups():
            compute.add_scaled(bucket.params[part], reduced[part], -h["lr"])

    @property
    def timed(self) -> Timed:  # type: ignore[override]
        shares = {self.share(step) for step in range(self.warmup_steps + 1)}
        return {
            _kind(share): {"ratio": share, "warmup_steps": DEFAULT, "warmup_stages": DEFAULT}
            for share in shares
        }


def _kind(share: float) -> str:
    return f"ratio-{share:.4g}"
