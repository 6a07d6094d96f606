"""SparseLoCo: DiLoCo whose workers send a few 2-bit values of their progress, with error feedback. arXiv 2508.15706.

After H = `period` local steps: e <- b e + (A - x); of every chunk of 4096 elements of a tensor the k largest of e are sent
as 12-bit places and 2-bit values; e keeps what was not sent; A <- A - a mean(sent). Error feedback stands in the place
of the outer momentum. 14 bits a value: k = 64 is 146 times less than fp32, besides 16 bytes of levels a tensor.

Differences: the paper could not be read; codes and summaries of others were. Chunks are 4096 neighbouring elements of a
tensor (there 64 x 64), a short one at its end keeps its share of k, rounded up. The four levels are our choice: by sign
and by magnitude above or below the mean, each decoded to the mean of its bin (there bins over 6 standard deviations).
The mean divides by all workers, as in the formula (in the code by those that sent the place, which is up to n times
larger). e takes A - x (in the code a (A - x), and a is applied again in the outer step). Outer rate and momentum are
options; buffers are not touched. One worker compresses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

from reference_impls import buffers, wire
from reference_impls.algorithm import Algorithm, Clock, Shard, Slot, option, per_rank
from reference_impls.algorithms.model_averaging import (
    ModelAveraging,
    average,
    begin_round,
    round_kind,
)
from reference_impls.codecs.chunk_top_k import ChunkTopK
from reference_impls.codecs.codec import PerTensor
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.compression import Compression
from reference_impls.schedules.rules import Constant


@dataclass(frozen=True)
class ChunkedMean:
    """The largest values of each chunk of each tensor, gathered, with decaying error feedback.

    e <- b e + x on every rank; its message is what `codecs.chunk_top_k` makes of e, tensor by tensor; e <- e - decoded, so
    that decoded + e_new = b e_old + x holds element by element. The answer is the mean of the decoded messages over all ranks.
    """

    codec: ChunkTopK
    decay: float = 1.0

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"compression_error": per_rank()}

    def check(self, n: int) -> None:
        return None

    def mean(self, shard: Shard, x: Tensor, stage: str) -> Exchange[Tensor]:
        if shard.world.size == 1:
            return x
        codec = PerTensor(self.codec, tuple(view.part.stop - view.part.start for view in shard.views))
        error = shard.state["compression_error"].mul_(self.decay).add_(x)
        message = buffers.empty(codec.wire_bytes(shard.d), torch.uint8, x.device)
        decoded = buffers.empty_like(x, torch.float32)
        exact = error if error.dtype == decoded.dtype else decoded.copy_(error)
        codec.encode(exact, shard.key(stage), message)
        codec.decode(message, decoded)
        error.sub_(decoded)
        rows = yield from shard.world.gather(message, stage)
        x.zero_()
        for row in rows:
            codec.decode(row, decoded)
            x.add_(decoded)
        return x.div_(shard.world.size)

    def sent(self, shapes: Sequence[Sequence[int]], n: int) -> Sequence[float]:
        message = sum(self.codec.wire_bytes(prod(shape)) for shape in shapes)
        return (wire.all_gather(message, n),)


@dataclass(frozen=True)
class SparseLoCo(ModelAveraging):
    """Local updates whose progress travels as the largest values of each chunk. Kinds: ``local``, ``average``."""

    period: int = option(30, "H: inner steps in a round, at least 1", ge=1)
    k: int = option(64, "values that are sent of a chunk", ge=1)
    chunk: int = option(4096, "elements of a chunk", ge=1)
    value_bits: Literal[2, 32] = option(2, "bits of a value: 2 or 32")
    error_decay: float = option(0.95, "b: what is kept of the error of earlier rounds", ge=0, le=1)

    @property
    def anchored(self) -> bool:
        return True

    @property
    def compression(self) -> Compression:
        """e <- b e + (A - x); the k largest of a chunk are sent; e keeps what was not."""
        codec = ChunkTopK(self.k, self.chunk, self.value_bits)
        return ChunkedMean(codec, self.error_decay)

    def check(self, world: Group) -> None:
        super().check(world)
        if self.carrier != "fp32":
            raise UnsupportedError(
                f"SparseLoCo has a compression of its own: leave carrier={self.carrier!r} out"
            )

    def plan(self, clock: Clock) -> str:
        return round_kind(clock, Constant(self.period, total=self.total_steps))

    def reduce(self, shard: Shard) -> Tensor:
        if shard.step == 0:
            begin_round(self, shard)  # A <- x
        return shard.grads  # a step of the local optimizer

    def synchronize(self, shard: Shard) -> Exchange[None]:
        if shard.kind == "average":
            yield from average(self, shard)  # A <- A - a mean(sent); x <- A

    def steady(self) -> Mapping[str, Algorithm]:
        return self.own_rounds()
