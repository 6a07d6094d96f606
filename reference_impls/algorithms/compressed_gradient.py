"""One composition of which many methods are made: a codec x a way to carry its messages x a local optimizer.

p_i = g_i + e_i -> message_i = C(p_i) -> mean over workers of what messages decode to -> the local optimizer's step;
e_i <- p_i - decoded message_i with error feedback (arXiv 1901.09847), else e_i = 0. A method of this kind is its options and
the `codec` C; forms, error feedback, warm-up in full precision, scales a bucket or a tensor, full precision
for small tensors are written here once and go with any codec.

Small tensors: biases and norms are a small share of a model and a large share of its sensitivity, so QSGD's and CGX's
implementations leave them alone. They travel in full precision, in one all-reduce; the large tensors of a bucket are put
behind one another and compressed as one vector; random streams, blocks and, in two phases, the pieces that ranks serve count
in that vector.

Differences: one worker compresses nothing. Error feedback on both ways in the two-phase form (worker and server), as in
1-bit Adam. Without error feedback a biased codec is biased: nothing is corrected in silence.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

from torch import Tensor

from reference_impls.algorithm import (
    DEFAULT,
    FOREVER,
    Clock,
    Shard,
    Slot,
    Timed,
    option,
    owned,
    per_rank,
)
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs.codec import Codec, PerTensor
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.coded_mean import gather_mean, joined, spread, two_phase_mean


@dataclass(frozen=True)
class CompressedGradient(WithLocalOptimizer):
    """Kinds of step: ``warm-up`` (fp32 all-reduce of gradients) and ``compressed``."""

    form: Literal["gather", "two-phase"] = option(
        "gather", "gather (all messages to everybody) or two-phase (a server for each piece, coded twice)"
    )
    granularity: Literal["bucket", "tensor"] = option(
        "bucket", "what a codec sees at once: a bucket, or one tensor (form=gather)"
    )
    error_feedback: bool = option(False, "add what the last message lost to the next one")
    warmup_steps: int = option(0, "first steps, in full precision", ge=0)

    @abstractmethod
    def codec(self, n: int) -> Codec:
        """C, the codec for n workers; `UnsupportedError` for impossible options."""

    @property
    def smallest(self) -> int:
        """Tensors of fewer elements, or of one dimension, stay in fp32; 0: none do. An option where a paper has it so."""
        return 0

    def _is_small(self, shape: Sequence[int]) -> bool:
        return self.smallest > 0 and (len(shape) <= 1 or prod(shape) < self.smallest)

    @property
    def slots(self) -> Mapping[str, Slot]:
        if not self.error_feedback:
            return {}
        if self.form == "gather":
            return {"worker_error": per_rank()}
        # of large tensors alone a rank serves a piece that is not the one that slots can own
        return {"worker_error": per_rank(), "server_error": per_rank() if self.smallest else owned()}

    def check(self, world: Group) -> None:
        if self.granularity == "tensor" and self.form != "gather":
            raise UnsupportedError(
                "granularity='tensor' needs form='gather': the pieces of form='two-phase' cut through tensors"
            )
        self.codec(world.size)
        if self.smallest and self.granularity != "bucket":
            raise UnsupportedError("smallest > 0 goes with granularity='bucket'")

    def plan(self, clock: Clock) -> str:
        return "warm-up" if clock.step < self.warmup_steps else "compressed"

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if shard.kind == "warm-up":
            return (yield from shard.world.mean(shard.grads, "gradient"))
        if self.smallest and shard.world.size > 1:
            return (yield from self._large_tensors(shard))
        codec = self.codec(shard.world.size)
        if self.granularity == "tensor":
            codec = PerTensor(codec, tuple(v.part.stop - v.part.start for v in shard.views))
        error = shard.state["worker_error"] if self.error_feedback else None
        return (yield from self._coded(shard, shard.grads, codec, error))

    def _large_tensors(self, shard: Shard) -> Exchange[Tensor]:
        """The mean of small tensors in full precision, and of the large ones behind one another by the codec."""
        small = [v.part for v in shard.views if self._is_small(v.param.shape)]
        large = [v.part for v in shard.views if not self._is_small(v.param.shape)]
        out = shard.scratch("mean", shard.d, shard.grads.dtype)
        if small:
            spread(out, small, (yield from shard.world.mean(joined(shard.grads, small), "small")))
        if large:
            x = joined(shard.grads, large)
            error = joined(shard.state["worker_error"], large) if self.error_feedback else None
            spread(out, large, (yield from self._coded(shard, x, self.codec(shard.world.size), error)))
            if error is not None:
                spread(shard.state["worker_error"], large, error)
        return out

    def _coded(self, shard: Shard, x: Tensor, codec: Codec, error: Tensor | None) -> Exchange[Tensor]:
        """The mean of the messages C(x + e), gathered or in two phases."""
        if self.form == "gather":
            return (yield from gather_mean(shard, x, codec, "gradient", worker_error=error))
        server = shard.state["server_error"] if self.error_feedback else None
        return (
            yield from two_phase_mean(shard, x, codec, "gradient", worker_error=error, server_error=server)
        )

    timed: ClassVar[Timed] = {
        "compressed": {"warmup_steps": DEFAULT},
        "warm-up": {"warmup_steps": FOREVER},
    }
