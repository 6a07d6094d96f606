"""Compressed means for large tensors only: small ones and vectors travel in full precision, in one all-reduce.

Biases and norms are a small share of a model and a large share of its sensitivity, so QSGD's and CGX's implementations
leave them alone. The large tensors of a bucket are put behind one another and compressed as one vector; random streams,
blocks and, in two phases, the pieces that ranks serve count in that vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from torch import Tensor

from reference_impls import wire
from reference_impls.algorithm import Cost, Shard, Slot, option, per_rank
from reference_impls.algorithms.compressed_gradient import CompressedGradient
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.coded_mean import gather_mean, two_phase_mean
from reference_impls.reducers.parts import joined, spread


@dataclass(frozen=True)
class LargeTensors(CompressedGradient):
    """As `CompressedGradient`, for tensors of at least `smallest` elements and two dimensions; 0: for everything."""

    smallest: int = option(
        0, "tensors of fewer elements, or of one dimension, stay in fp32; 0: none do", ge=0
    )

    @property
    def slots(self) -> Mapping[str, Slot]:
        found = super().slots
        if self.smallest and "server_error" in found:  # of a piece of the joined tensors, not of the shard
            return {**found, "server_error": per_rank()}
        return found

    def check(self, world: Group) -> None:
        super().check(world)
        if self.smallest and (self.hierarchical or self.granularity != "bucket"):
            raise UnsupportedError("smallest > 0 goes with granularity='bucket' and without hierarchical")

    def _is_small(self, shape: Sequence[int]) -> bool:
        return self.smallest > 0 and (len(shape) <= 1 or prod(shape) < self.smallest)

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if shard.kind == "warm-up" or shard.world.size == 1 or not self.smallest:
            return (yield from super().reduce(shard))
        small = [v.part for v in shard.views if self._is_small(v.param.shape)]
        large = [v.part for v in shard.views if not self._is_small(v.param.shape)]
        out = shard.scratch("mean", shard.d, shard.grads.dtype)
        if small:
            spread(out, small, (yield from shard.world.mean(joined(shard.grads, small), "small")))
        if large:
            error = joined(shard.state["worker_error"], large) if self.error_feedback else None
            spread(out, large, (yield from self._coded(shard, joined(shard.grads, large), error)))
            if error is not None:
                spread(shard.state["worker_error"], large, error)
        return out

    def _coded(self, shard: Shard, x: Tensor, error: Tensor | None) -> Exchange[Tensor]:
        codec = self.codec(shard.world.size)
        if self.form == "gather":
            return (yield from gather_mean(shard, x, codec, "gradient", worker_error=error))
        server = shard.state["server_error"] if self.error_feedback else None
        return (
            yield from two_phase_mean(
                shard, x, codec, "gradient", worker_error=error, server_error=server
            )
        )  # fmt: skip

    def wire_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Mapping[str, Cost]:
        large = [shape for shape in shapes if not self._is_small(shape)]
        found = dict(super().wire_bytes(large if n > 1 else shapes, n))
        small = wire.elements(shapes) - wire.elements(large)
        if self.warmup_steps:
            found["warm-up"] = wire.all_reduce(4 * wire.elements(shapes), n)
        if n > 1:
            coded = found["compressed"] if large else 0.0
            assert not isinstance(coded, tuple)  # messages have a length of their own
            found["compressed"] = coded + wire.all_reduce(4 * small, n)
        return found
