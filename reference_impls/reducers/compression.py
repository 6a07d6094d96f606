"""How the mean travels when local models are averaged: any of the reducers behind one name, with its state and its price.

fp32            all-reduce in the dtype of the vector                        2 (n-1)/n x 4 bytes an element
bf16            all-reduce of its bfloat16; sums are rounded on the way      2 (n-1)/n x 2
int16/int8/int4 dithered without bias to the levels that n ranks can sum in so many bits, on one scale a shard, and
                summed as integers (`reducers.integer_sum`)
sign            one bit an element and a scale a piece, in two phases, with error feedback on both ways
e3m0            4-bit floats, a sign and seven powers of two or zero, under the largest magnitude of each 512 elements,
                gathered and added in full precision
chunks          the largest values of each chunk of each tensor, gathered, with decaying error feedback (SparseLoCo's)
a `Codec`       any message (`codecs.codec`), gathered

All but fp32 are made for small numbers around zero, such as the progress of a round: a parameter that travels as
bfloat16 loses what a round has changed. One rank sends and compresses nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls import compute
from reference_impls.algorithm import Shard, Slot, owned, per_rank
from reference_impls.codecs import dithering
from reference_impls.codecs.codec import Codec, PerTensor
from reference_impls.codecs.levels import GeometricLevels
from reference_impls.codecs.signs import ScaledSigns
from reference_impls.codecs.sparse import ChunkTopK
from reference_impls.collectives import Exchange
from reference_impls.reducers.coded_mean import gather_mean, two_phase_mean
from reference_impls.reducers.integer_sum import standard_mean


class Compression(ABC):
    """A way to average."""

    @property
    def slots(self) -> Mapping[str, Slot]:
        """State that it keeps, which must be among the method's."""
        return {}

    def check(self, n: int) -> None:  # noqa: B027 - most serve any number of ranks
        """Raise `UnsupportedError` where n ranks cannot be served."""

    @abstractmethod
    def mean(self, shard: Shard, x: Tensor, stage: str) -> Exchange[Tensor]:
        """Mean of `x` [d] over all ranks, a tensor of the dtype of x that nothing else uses; x is consumed."""


@dataclass(frozen=True)
class Plain(Compression):
    """All-reduce, in the vector's own dtype or in bfloat16."""

    half: bool = False

    def mean(self, shard: Shard, x: Tensor, stage: str) -> Exchange[Tensor]:
        if not self.half or shard.world.size == 1:
            return (yield from shard.world.mean(x, stage))
        message = compute.empty_like(x, torch.bfloat16).copy_(x)
        return x.copy_((yield from shard.world.sum(message, stage))).div_(shard.world.size)


@dataclass(frozen=True)
class Integers(Compression):
    """Dithered integers of `bits`, summed on the way, on one scale a shard: the largest magnitude over all ranks."""

    bits: int

    def check(self, n: int) -> None:
        dithering.levels(self.bits, n)

    def mean(self, shard: Shard, x: Tensor, stage: str) -> Exchange[Tensor]:
        if shard.world.size == 1:
            return x
        mean = yield from standard_mean(shard, x, stage, bits=self.bits)
        return x.copy_(mean)  # the answer lies in a buffer that the next call reuses


@dataclass(frozen=True)
class Coded(Compression):
    """Messages of a codec, gathered; or with `feedback` in two phases, what a message lost being added to the next one."""

    codec: Codec
    feedback: bool = False

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"compression_error": per_rank(), "server_error": owned()} if self.feedback else {}

    def mean(self, shard: Shard, x: Tensor, stage: str) -> Exchange[Tensor]:
        if not self.feedback:
            return (yield from gather_mean(shard, x, self.codec, stage))
        worker, server = shard.state["compression_error"], shard.state["server_error"]
        return (
            yield from two_phase_mean(shard, x, self.codec, stage, worker_error=worker, server_error=server)
        )


@dataclass(frozen=True)
class ChunkedMean(Compression):
    """The `k` largest values of each `chunk` of each tensor, in `value_bits` each, gathered, with decaying error feedback.

    e <- b e + x on every rank, b = `decay`; its message is what `codecs.chunk_top_k` makes of e, tensor by tensor; e <- e -
    decoded, so that decoded + e_new = b e_old + x holds element by element. The answer is the mean of the decoded messages.
    """

    k: int
    chunk: int
    value_bits: Literal[2, 32]
    decay: float

    @property
    def codec(self) -> ChunkTopK:
        """Of one tensor."""
        return ChunkTopK(self.k, self.chunk, self.value_bits)

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"compression_error": per_rank()}

    def mean(self, shard: Shard, x: Tensor, stage: str) -> Exchange[Tensor]:
        if shard.world.size == 1:
            return x
        codec = PerTensor(self.codec, tuple(view.part.stop - view.part.start for view in shard.views))
        error = shard.state["compression_error"].mul_(self.decay).add_(x)
        message = compute.empty(codec.wire_bytes(shard.d), torch.uint8, x.device)
        decoded = compute.empty_like(x, torch.float32)
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


_NAMED: Final[Mapping[str, Compression]] = {
    "fp32": Plain(),
    "bf16": Plain(half=True),
    "int16": Integers(16),
    "int8": Integers(8),
    "int4": Integers(4),
    "e3m0": Coded(GeometricLevels(7, "linf", 512)),
    "sign": Coded(ScaledSigns("l1"), feedback=True),
}
COMPRESSIONS: Final = tuple(_NAMED)


def compression(which: str | Codec) -> Compression:
    """A compression by its name in `COMPRESSIONS`, or a codec whose messages are gathered."""
    return _NAMED[which] if isinstance(which, str) else Coded(which)
