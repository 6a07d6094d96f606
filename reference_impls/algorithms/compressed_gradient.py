"""The shape of every method that averages coded gradients: a codec, a way to carry it, error feedback, a warm-up.

g_i (+ e_i) -> message -> mean over workers -> the local optimizer's step. A method of this shape is its options and one
`codec`; forms, error feedback, warm-up in full precision, scales a bucket or a tensor, and full precision within nodes
come from here and go with any codec. Error feedback: e_i <- g_i + e_i - decoded message (arXiv 1901.09847).

Differences: one worker compresses nothing. Error feedback on both ways in the two-phase form (worker and server), as in
1-bit Adam. Without error feedback a biased codec is biased: nothing is corrected in silence.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from torch import Tensor

from reference_impls import wire
from reference_impls.algorithm import (
    FOREVER,
    Algorithm,
    Clock,
    Cost,
    Shard,
    Slot,
    Traits,
    option,
    owned,
    per_rank,
)
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs.codec import Codec, PerTensor
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.reducers.coded_mean import gather_mean, hierarchical_mean, two_phase_mean

_PER_ELEMENT = 1 << 20  # elements over which a message's bits are averaged for `traits`


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
    hierarchical: bool = option(False, "full precision within a node, the codec across nodes")
    warmup_steps: int = option(0, "first steps, in full precision", ge=0)

    @abstractmethod
    def codec(self, n: int) -> Codec:
        """The codec for n workers; `UnsupportedError` for impossible options."""

    @property
    def slots(self) -> Mapping[str, Slot]:
        if not self.error_feedback:
            return {}
        fold: Literal["mean"] | None = (
            None if self.hierarchical else "mean"
        )  # else ranks of a node have pieces
        if self.form == "gather":
            return {"worker_error": per_rank(fold=fold)}
        # within nodes a rank serves a piece of its node's piece, which is not the piece that slots can own
        return {
            "worker_error": per_rank(fold=fold),
            "server_error": per_rank() if self.hierarchical else owned(),
        }

    def check(self, world: Group) -> None:
        if self.granularity == "tensor" and (self.form != "gather" or self.hierarchical):
            raise UnsupportedError(
                "granularity='tensor' needs form='gather' without hierarchical: the pieces of the others cut "
                "through tensors"
            )
        self.codec(world.size)

    def plan(self, clock: Clock) -> str:
        return "warm-up" if clock.step < self.warmup_steps else "compressed"

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if shard.kind == "warm-up":
            return (yield from shard.world.mean(shard.grads, "gradient"))
        if self.hierarchical and shard.node.size > 1:
            return (
                yield from hierarchical_mean(
                    shard,
                    shard.grads,
                    "gradient",
                    lambda x, start, width: self._across(shard, x, start, width),
                )
            )
        return (yield from self._across(shard, shard.grads, 0, shard.d))

    def _across(self, shard: Shard, x: Tensor, start: int, width: int) -> Exchange[Tensor]:
        group = shard.cross if self.hierarchical else shard.world
        codec = self.codec(group.size)
        if self.granularity == "tensor":
            codec = PerTensor(codec, tuple(v.part.stop - v.part.start for v in shard.views))
        error = shard.state["worker_error"][start : start + x.numel()] if self.error_feedback else None
        if self.form == "gather":
            return (
                yield from gather_mean(
                    shard, x, codec, "gradient", group=group, start=start, width=width, worker_error=error
                )
            )
        return (
            yield from two_phase_mean(
                shard, x, codec, "gradient", group=group, start=start, width=width, worker_error=error,
                server_error=shard.state["server_error"] if self.error_feedback else None,
            )
        )  # fmt: skip

    def steady(self) -> Mapping[str, Algorithm]:
        found: dict[str, Algorithm] = {"compressed": self.at_defaults("warmup_steps")}
        if self.warmup_steps:
            found["warm-up"] = type(self)(optimizer=self.optimizer, warmup_steps=FOREVER)
        return found

    def traits(self) -> Traits:
        codec = self.codec(2)
        bits = 8 * codec.wire_bytes(_PER_ELEMENT) / _PER_ELEMENT
        times = "(n-1)" if self.form == "gather" else "2 (n-1)/n"
        return Traits(
            bits=f"{times} x {bits:.4g}" + ("; warm-up 2 (n-1)/n x 32" if self.warmup_steps else ""),
            unbiased=codec.unbiased and not self.error_feedback,
            sums=False,
            warm_up=self.warmup_steps > 0,
        )

    def wire_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Mapping[str, Cost]:
        """For nodes of one rank; see `Algorithm.wire_bytes`."""
        d = wire.elements(shapes)
        found: dict[str, Cost] = {"warm-up": wire.all_reduce(4 * d, n)} if self.warmup_steps else {}
        codec = self.codec(n)
        if n == 1:
            return {**found, "compressed": 0.0}
        if self.form == "two-phase":
            message = codec.wire_bytes(wire.piece(d, n))
            return {**found, "compressed": wire.all_to_all(n * message, n) + wire.all_gather(message, n)}
        if self.granularity == "tensor":
            codec = PerTensor(codec, tuple(prod(shape) for shape in shapes))
        return {**found, "compressed": wire.all_gather(codec.wire_bytes(d), n)}
