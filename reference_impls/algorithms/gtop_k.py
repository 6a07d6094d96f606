"""gTop-k: the k largest coordinates of all workers together, merged pair by pair. arXiv 1901.04359 (text not read).

p_i = g_i + e_i; every worker's k largest coordinates meet on a tree; at each merge equal places are added and the k largest
of the sum go on (`merge`), so that a message has k entries on every edge, whatever the number of workers;
what comes out, divided by n, is the gradient, and e_i keeps what was not used.

Differences: from the authors' published code and README alone. ``put_back="merger"``: an entry that drops out at a merge
is kept by the worker that merged, so that nothing is ever lost: n mean(x_t) + sum e_{t-1} = n answer_t + sum e_t. The published
rule, ``put_back="mask"``, has each worker keep what it did not send or what is not among the final places; a value that
dropped out on the way at a place that comes out by another branch is then kept by nobody. ``form="tree"`` (the published
one: to rank 0 and back) or ``doubling`` (half the rounds, as many messages on every rank). Any number of workers; the
published loop stops with an error unless it is a power of two. Places in ceil(log2 d) bits; the published code sends them
as floats. k is of a bucket. One worker compresses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from reference_impls.algorithm import Shard, Slot, option, per_rank
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs import sparse
from reference_impls.codecs.sparse import TopK, kept, pack_pairs, unpack_pairs
from reference_impls.collectives import Exchange
from reference_impls.reducers import folds
from reference_impls.reducers.folds import Fold


@dataclass(frozen=True)
class GTopK(WithLocalOptimizer):
    """g <- 1/n times the k largest coordinates of the sum of everybody's k largest, as a tree finds them."""

    ratio: float = option(0.01, "share of the coordinates that is sent over each edge", gt=0, le=1)
    form: Fold = option("tree", "tree (to rank 0 and back) or doubling")
    put_back: Literal["merger", "mask"] = option(
        "merger", "who keeps what drops out: merger or mask (published)"
    )

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"worker_error": per_rank()}

    def _codec(self) -> TopK:
        return TopK(self.ratio)

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if shard.world.size == 1:
            return shard.grads
        d, codec = shard.d, self._codec()
        k = kept(self.ratio, d)
        error = shard.state["worker_error"].add_(shard.grads)
        message = torch.zeros(codec.wire_bytes(d), dtype=torch.uint8, device=error.device)
        codec.encode(error.to(torch.float32), shard.key("largest"), message)
        places, values = unpack_pairs(message, d, k)
        if self.put_back == "merger":
            error[places] -= values.to(error.dtype)

        def combine(mine: Tensor, came: Tensor, accounts: bool) -> Tensor:
            both, (out, left) = merge(mine, came, d, k)
            if accounts and self.put_back == "merger":
                error[out] += left.to(error.dtype)
            return both

        message = yield from folds.fold(shard.world, message, combine, "largest", self.form)
        final, total = unpack_pairs(message, d, k)
        if self.put_back == "mask":
            used = places[torch.isin(places, final)]
            error[used] = 0
        mean = (total / shard.world.size).to(error.dtype)
        return shard.grads.zero_().index_copy_(0, final, mean)


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
    stay[sparse.largest(sparse.magnitude(values), k)] = True
    message = torch.zeros_like(mine)
    pack_pairs(places[stay], values[stay], numel, message)
    return message, (places[~stay], values[~stay])
