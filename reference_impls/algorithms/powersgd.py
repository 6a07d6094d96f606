"""PowerSGD: the gradient of every matrix as two thin factors, with error feedback. arXiv 1905.13727.

M_i = g_i + e_i as a matrix [a, b]; P = mean of M_i Q, orthonormalised; Q = mean of M_i^T P; everybody applies P Q^T and
keeps e_i <- M_i - P Q^T. Q is kept for the next step (warm start), so steps together are a subspace iteration on a
gradient that changes slowly. Vectors, and matrices that would hardly shrink, are averaged as they are.

Differences: the paper's abstract and its authors' code could be read, not its body. Q is drawn by the parameter's name
(there: one stream over the parameters in their order), uniform instead of Gaussian. Rows that hold rounding noise are
dropped and drawn anew; there an eps keeps them finite, and a matrix whose gradient was exactly zero once stays at zero
for ever with ranks up to 2. P travels with the uncompressed tensors in one message. Gram-Schmidt for every rank (torch
takes QR above 2, of other bits on other machines). Their later code alternates P and Q, one all-reduce a step; not here.
No warm-up unless asked for (torch: 1000 steps). One worker compresses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

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
    View,
    option,
    per_tensor,
)
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs.low_rank import Reshape, compresses, matrix
from reference_impls.collectives import Exchange, Group
from reference_impls.reducers.low_rank import Matrix, low_rank_mean


@dataclass(frozen=True)
class PowerSGD(WithLocalOptimizer):
    """Kinds of step: ``warm-up`` (fp32 all-reduce) and ``compressed``."""

    rank: int = option(2, "rank of the factors; less for matrices with a smaller side", ge=1)
    reshape: Reshape = option("first", "matrix: first dimension against the rest, or the balanced cut")
    min_compression_rate: float = option(2.0, "matrices that would shrink by less stay uncompressed", ge=0)
    error_feedback: bool = option(True, "add what the last answer lacked to the next gradient")
    warm_start: bool = option(True, "begin at the last Q; False: a new draw in every step")
    warmup_steps: int = option(0, "first steps, in full precision", ge=0)

    @property
    def slots(self) -> Mapping[str, Slot]:
        found = {"q": per_tensor("replicated", self._factor)}
        if self.error_feedback:
            found["error"] = per_tensor("per_rank", self._error, fold="mean")
        return found

    def _factor(self, view: View, world: Group) -> tuple[int, ...] | None:
        found = self.size_of(tuple(view.param.shape), self.rank)
        return (found[2], found[1]) if found and world.size > 1 else None

    def _error(self, view: View, world: Group) -> tuple[int, ...] | None:
        return (view.param.numel(),) if self._factor(view, world) else None

    def size_of(self, shape: Sequence[int], rank: int) -> tuple[int, int, int] | None:
        """(a, b, rank) of a tensor of this shape, None if it is sent uncompressed."""
        found = matrix(shape, self.reshape)
        if found is None:
            return None
        rank = min(rank, *found)
        return (*found, rank) if compresses(*found, rank, self.min_compression_rate) else None

    def plan(self, clock: Clock) -> str:
        return "warm-up" if clock.step < self.warmup_steps else "compressed"

    def matrices(self, shard: Shard) -> list[Matrix]:
        """The parameters of the shard that are sent as factors in this step."""
        sizes = [(view, self.size_of(tuple(view.param.shape), self.rank)) for view in shard.views]
        return [Matrix(view, *size) for view, size in sizes if size is not None]

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if shard.kind == "warm-up" or shard.world.size == 1:
            return (yield from shard.world.mean(shard.grads, "gradient"))
        return (
            yield from low_rank_mean(
                shard, shard.grads, self.matrices(shard), shard.state["q"], "gradient",
                errors=shard.state["error"] if self.error_feedback else None, warm=self.warm_start,
            )
        )  # fmt: skip

    def steady(self) -> Mapping[str, Algorithm]:
        found: dict[str, Algorithm] = {"compressed": self.at_defaults("warmup_steps")}
        if self.warmup_steps:
            found["warm-up"] = type(self)(optimizer=self.optimizer, warmup_steps=FOREVER)
        return found

    def traits(self) -> Traits:
        return Traits(
            bits=f"2 (n-1)/n x 32 x {self.rank} (a+b)/(a b) for a matrix a x b"
            + ("; warm-up 2 (n-1)/n x 32" if self.warmup_steps else ""),
            unbiased=False,
            sums=True,
            warm_up=self.warmup_steps > 0,
        )

    @staticmethod
    def _bytes(
        shapes: Sequence[Sequence[int]], sizes: Sequence[tuple[int, int, int] | None], n: int
    ) -> float:
        """Bytes that a rank sends in a step in which tensors are sent as (a, b, rank), or as they are."""
        p, q = (sum(size[2] * size[side] for size in sizes if size) for side in (0, 1))
        exact = sum(prod(shape) for shape, size in zip(shapes, sizes, strict=True) if not size)
        return wire.all_reduce(4 * (p + exact), n) + wire.all_reduce(4 * q, n)

    def wire_bytes(self, shapes: Sequence[Sequence[int]], n: int) -> Mapping[str, Cost]:
        sizes = [self.size_of(shape, self.rank) for shape in shapes]
        found: dict[str, Cost] = {"compressed": self._bytes(shapes, sizes, n)}
        if self.warmup_steps:
            found["warm-up"] = wire.all_reduce(4 * wire.elements(shapes), n)
        return found
