"""The compression of SparseLoCo: the largest values of each chunk of each tensor, gathered, with decaying error feedback.

e <- b e + x on every rank; its message is what `codecs.chunk_top_k` makes of e, tensor by tensor; e <- e - decoded, so that
decoded + e_new = b e_old + x holds element by element. The answer is the sum of the decoded messages over all ranks,
divided by their number, or element by element by the ranks whose value there is not zero. One rank compresses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import Shard, Slot, per_rank
from reference_impls.codecs.chunk_top_k import ChunkTopK
from reference_impls.codecs.codec import PerTensor
from reference_impls.collectives import Exchange

__all__ = ["ChunkedMean"]


@dataclass(frozen=True)
class ChunkedMean:
    """A `reducers.compression.Compression`. decay: b. senders: divide by the ranks that sent."""

    codec: ChunkTopK
    decay: float = 1.0
    senders: bool = False
    form: str = "gather"

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"carrier_error": per_rank(fold=None if self.senders else "mean")}  # among senders, no mean

    @property
    def sums(self) -> bool:
        return False

    @property
    def unbiased(self) -> bool:
        return False

    def check(self, n: int) -> None:
        return None

    def mean(self, shard: Shard, x: Tensor, stage: str) -> Exchange[Tensor]:
        if shard.world.size == 1:
            return x
        codec = PerTensor(self.codec, tuple(view.part.stop - view.part.start for view in shard.views))
        error = shard.state["carrier_error"].mul_(self.decay).add_(x)
        message = buffers.empty(codec.wire_bytes(shard.d), torch.uint8, x.device)
        decoded = buffers.empty_like(x, torch.float32)
        exact = error if error.dtype == decoded.dtype else decoded.copy_(error)
        codec.encode(exact, shard.key(stage), message)
        codec.decode(message, decoded)
        error.sub_(decoded)
        rows = yield from shard.world.gather(message, stage)
        x.zero_()
        count = buffers.empty_like(x).zero_() if self.senders else None
        for row in rows:
            codec.decode(row, decoded)
            x.add_(decoded)
            if count is not None:
                count.add_(torch.ne(decoded, 0, out=decoded))
        return x.div_(shard.world.size) if count is None else x.div_(count.clamp_(min=1))

    def sent(self, shapes: Sequence[Sequence[int]], n: int) -> Sequence[float]:
        message = sum(self.codec.wire_bytes(prod(shape)) for shape in shapes)
        return (wire.all_gather(message, n),)
