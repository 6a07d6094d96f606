"""Random-k sparsification: the same random coordinates on all workers, so that their values can be summed on the way.

k = max(1, floor(ratio d)) coordinates of a bucket (or tensor) are drawn without replacement from a stream that all workers
share; an all-reduce averages these k values; the others count as 0. Without error feedback the result is multiplied by d/k
and is unbiased, with variance (d/k - 1) |g|^2; with error feedback it is not, and e_i keeps what was not sent
(arXiv 1809.07599).

Differences: places need no room on the wire. GRACE's code draws with replacement (fewer than k coordinates), leaves out the
factor, and reseeds the global generator at every call from the sum of the letters of the tensor's name; here every step and
bucket draws from a stream of its own. One more value travels, 0 or NaN: it says whether all gradients were finite, since a
value that is not might otherwise wait unseen in a coordinate that is not drawn. One worker compresses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from reference_impls.algorithm import Shard, Slot, option, per_rank
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs.sparse import kept, largest
from reference_impls.collectives import Exchange


@dataclass(frozen=True)
class RandomKGradient(WithLocalOptimizer):
    """g <- d/k times the mean of k random coordinates of g."""

    ratio: float = option(0.01, "share of the coordinates that is sent", gt=0, le=1)
    error_feedback: bool = option(False, "send g + e unscaled and keep what was not sent")
    granularity: Literal["bucket", "tensor"] = option(
        "bucket", "k coordinates of a bucket, or of each tensor"
    )

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"worker_error": per_rank()} if self.error_feedback else {}

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if shard.world.size == 1:
            return shard.grads
        x = shard.grads
        places, scale = self._draw(
            shard, [v.part for v in shard.views] if self.granularity == "tensor" else []
        )
        sent = torch.empty(places.numel() + 1, dtype=x.dtype, device=x.device)
        if self.error_feedback:
            error = shard.state["worker_error"].add_(x)
            torch.index_select(error, 0, places, out=sent[:-1])
            sent[-1] = (error * 0).sum()
            error[places] -= sent[:-1]  # and not = 0: what is not finite stays so
        else:
            torch.index_select(x, 0, places, out=sent[:-1])
            sent[-1] = (x * 0).sum()
        mean = yield from shard.world.mean(sent, "values")
        values = mean[:-1] if self.error_feedback else mean[:-1] * scale
        return x.zero_().index_copy_(0, places, values).add_(mean[-1])

    def _draw(self, shard: Shard, tensors: Sequence[slice]) -> tuple[Tensor, Tensor | float]:
        """Places in the shard, ascending, and the factor d/k (for tensors: one a place)."""
        order = shard.key("places", shared=True).bits(
            shard.d, shard.grads.device
        )  # a stream has no number twice
        if not tensors:
            return largest(order, kept(self.ratio, shard.d)), shard.d / kept(self.ratio, shard.d)
        places, scales = [], []
        for part in (t for t in tensors if t.stop > t.start):
            length = part.stop - part.start
            k = kept(self.ratio, length)
            places.append(largest(order[part], k) + part.start)
            scales.append(torch.full((k,), length / k, dtype=shard.grads.dtype, device=order.device))
        return torch.cat(places), torch.cat(scales)
