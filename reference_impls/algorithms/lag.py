"""LAG: lazily aggregated gradients. A worker sends its gradient only when it has changed enough. arXiv 1805.09965.

Worker m keeps the gradient it sent last, g_m'. It sends g_m - g_m' if |g_m - g_m'|^2 >= (1 / lr^2) sum_d xi |x_{k+1-d} -
x_{k-d}|^2 over the last `depth` moves; everybody keeps the mean of all g_m' and steps with it. The rule is meant for full
gradients: noise of mini-batches changes a gradient more than a small step does, so with them nearly everybody sends.

Differences: written from knowledge of the rule; the paper's text could not be read. Its objective is a sum over workers,
here a mean, by which the number of workers cancels from the condition. In the paper a silent worker saves its upload to a
server. Here there is no server: a byte a rank says who wants to send, and only if nobody does is the all-reduce left out;
`uploads` counts what a server would have received. Values that are not finite are always sent. The
condition is about the whole model and takes the learning rate of the first parameter group that has one above 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from reference_impls.compressors.sums import fixed_sum
from reference_impls.core import compute
from reference_impls.core.algorithm import (
    Bucket,
    StateSpec,
    option,
    per_rank,
    per_tensor,
    replicated,
)
from reference_impls.core.collectives import Exchange
from reference_impls.core.optimizers import WithLocalOptimizer


@dataclass(frozen=True)
class LAG(WithLocalOptimizer):
    """g <- mean of the gradients that workers sent last. The condition is about the whole gradient."""

    xi: float = option(
        0.1, "weight of each of the last moves in the condition; 0: everybody always sends", ge=0
    )
    depth: int = option(10, "D: how many moves the condition looks back", ge=1)

    scope: ClassVar[Literal["bucket", "model"]] = "model"

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {
            "sent": per_rank(),
            "mean": replicated(),
            "moves": per_tensor("replicated", lambda view, world: (self.depth,)),
            "uploads": per_tensor("replicated", lambda view, world: None if view.start else (1,)),
        }

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        sent, mean, moves = bucket.state["sent"], bucket.state["mean"], bucket.state["moves"]
        self._before(bucket).copy_(bucket.params)
        change = torch.sub(bucket.grads, sent, out=compute.empty_like(sent))
        allowed = self.xi * torch.stack([fixed_sum(squares) for squares in moves.values()]).sum()
        wants = ~(
            fixed_sum(change, "square") * bucket.train_state.lr**2 < allowed
        )  # the first step, too, and NaN
        votes = yield from bucket.world.gather(wants.to(torch.uint8).view(1), "wants")
        for count in bucket.state["uploads"].values():
            count.add_(votes.sum())
        if bool(votes.any()):
            change.masked_fill_(~wants, 0.0)
            sent.add_(change)
            mean.add_((yield from bucket.world.mean(change, "change")))
        return compute.empty_like(mean).copy_(mean)

    def synchronize(self, bucket: Bucket) -> None:
        before = self._before(bucket)
        for view in bucket.views:
            moves, moved = bucket.state["moves"][view.name], before[view.part]
            moves.copy_(moves.roll(1))
            moves[0] = fixed_sum(torch.sub(bucket.params[view.part], moved, out=moved), "square")

    @staticmethod
    def _before(bucket: Bucket) -> Tensor:
        """The parameters before this step's update."""
        return bucket.scratch("before", bucket.d, bucket.params.dtype)
