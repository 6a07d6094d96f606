"""PowerSGD: the gradient of every matrix as two thin factors, with error feedback. arXiv 1905.13727.

M_i = g_i + e_i as a matrix [a, b]; P = mean of Q M_i^T, orthonormalised by everybody alike; Q = mean of P M_i; everybody
applies P^T Q and keeps e_i <- M_i - P^T Q. Factors are kept row by row: P [r, a], Q [r, b]. Q is kept
for the next step (warm start), so steps together are a subspace iteration on a gradient that changes slowly. Vectors, and
matrices that would hardly shrink, are averaged as they are.

Differences: the paper's abstract and its authors' code could be read, not its body. Q is drawn by the parameter's name
(there: one stream over the parameters in their order), uniform instead of Gaussian. Rows that hold rounding noise are
dropped and drawn anew; there an eps keeps them finite, and a matrix whose gradient was exactly zero once stays at zero
for ever with ranks up to 2. P travels with the uncompressed tensors in one message. Gram-Schmidt for every rank (torch
takes QR above 2, of other bits on other machines). Their later code alternates P and Q, one all-reduce a step; not here.
No warm-up unless asked for (torch: 1000 steps). One worker compresses nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import (
    DEFAULT,
    FOREVER,
    Clock,
    Shard,
    Slot,
    Timed,
    View,
    option,
    per_tensor,
)
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs.low_rank import compresses, matrix, orthonormal, refreshed
from reference_impls.codecs.sums import BLOCK
from reference_impls.collectives import Exchange, Group


@dataclass(frozen=True)
class Matrix:
    """A parameter that is sent as factors: its place, and its size and rank as a matrix."""

    view: View
    rows: int
    columns: int
    rank: int


@dataclass(frozen=True)
class PowerSGD(WithLocalOptimizer):
    """Kinds of step: ``warm-up`` (fp32 all-reduce) and ``compressed``."""

    rank: int = option(2, "rank of the factors; less for matrices with a smaller side", ge=1)
    min_compression_rate: float = option(2.0, "matrices that would shrink by less stay uncompressed", ge=0)
    error_feedback: bool = option(True, "add what the last answer lacked to the next gradient")
    warm_start: bool = option(True, "begin at the last Q; False: a new draw in every step")
    warmup_steps: int = option(0, "first steps, in full precision", ge=0)

    @property
    def slots(self) -> Mapping[str, Slot]:
        found = {"q": per_tensor("replicated", self._factor)}
        if self.error_feedback:
            found["error"] = per_tensor("per_rank", self._error)
        return found

    def _factor(self, view: View, world: Group) -> tuple[int, ...] | None:
        found = self.size_of(tuple(view.param.shape), self.rank)
        return (found[2], found[1]) if found and world.size > 1 else None

    def _error(self, view: View, world: Group) -> tuple[int, ...] | None:
        return (view.param.numel(),) if self._factor(view, world) else None

    def size_of(self, shape: Sequence[int], rank: int) -> tuple[int, int, int] | None:
        """(a, b, rank) of a tensor of this shape, None if it is sent uncompressed."""
        found = matrix(shape)
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
        return (yield from self.low_rank_mean(shard))

    def low_rank_mean(self, shard: Shard) -> Exchange[Tensor]:
        """Mean over all ranks, approximated for `matrices` and exact for the other parameters, in two collectives.

        The factors of all matrices of a shard travel together, those of P with the tensors that are not compressed.
        """
        x, matrices, errors = shard.grads, self.matrices(shard), shard.state.get("error")
        held = {m.view.name: x[m.view.part] if errors is None else errors[m.view.name] for m in matrices}
        sources = [held[m.view.name].view(m.rows, m.columns) for m in matrices]  # M_i
        if errors is not None:
            for m, source in zip(matrices, sources, strict=True):
                source.add_(x[m.view.part].view_as(source))  # g_i + e_i
        exact = [x[v.part] for v in shard.views if v.name not in held]  # sent as they are, with P

        starts = [self._start(shard, m) for m in matrices]
        message, parts = _room([*((m.rank, m.rows) for m in matrices), *(tuple(e.shape) for e in exact)], x)
        for q, source, p in zip(starts, sources, parts, strict=False):
            torch.mm(q, source.T, out=p)  # P_i = Q M_i^T
        for own, part in zip(exact, parts[len(matrices) :], strict=True):
            part.copy_(own)
        parts = _cut((yield from shard.world.mean(message, "gradient-p")), parts)
        for own, part in zip(exact, parts[len(matrices) :], strict=True):
            own.copy_(part)
        if not matrices:
            return x

        bases = _orthonormal(parts[: len(matrices)])
        message, parts = _room([(m.rank, m.columns) for m in matrices], x)
        for p, source, q in zip(bases, sources, parts, strict=True):
            torch.mm(p, source, out=q)  # Q_i = P M_i
        parts = _cut((yield from shard.world.mean(message, "gradient-q")), parts)
        for m, source, p, q in zip(matrices, sources, bases, parts, strict=True):
            answer = torch.mm(p.T, q, out=x[m.view.part].view(m.rows, m.columns))
            if errors is not None:
                source.sub_(answer)  # e_i <- M_i - P^T Q
            shard.state["q"][m.view.name][: m.rank].copy_(q)
        return x

    def _start(self, shard: Shard, m: Matrix) -> Tensor:
        """The Q with which a step begins: the last one, its zero rows drawn anew; or a new draw."""
        q = shard.state["q"][m.view.name][: m.rank]
        key = shard.key("gradient-q", shared=True, view=m.view)
        return refreshed(q if self.warm_start else torch.zeros_like(q), key)

    timed: ClassVar[Timed] = {
        "compressed": {"warmup_steps": DEFAULT},
        "warm-up": {"warmup_steps": FOREVER},
    }


def _room(shapes: Sequence[tuple[int, ...]], like: Tensor) -> tuple[Tensor, list[Tensor]]:
    """A message for tensors of these shapes, and where each of them lies in it."""
    message = buffers.empty(sum(prod(shape) for shape in shapes), like.dtype, like.device)
    pieces = torch.split(message, [prod(shape) for shape in shapes])
    return message, [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _cut(message: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a message that has those of `like`."""
    pieces = torch.split(message, [part.numel() for part in like])
    return [piece.view(part.shape) for piece, part in zip(pieces, like, strict=True)]


def _orthonormal(factors: Sequence[Tensor]) -> list[Tensor]:
    """Each orthonormalised; those together whose sums have trees of one size, which changes no bit.

    A tree is of blocks, the last of which is filled up with zeros anyhow (`codecs.sums`).
    """
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i, p in enumerate(factors):
        alike[p.shape[0], -(-p.shape[1] // BLOCK)].append(i)
    found = list(factors)
    for (rank, _), places in alike.items():
        widest = max(factors[i].shape[1] for i in places)
        together = buffers.empty((len(places), rank, widest), factors[0].dtype, factors[0].device)
        for own, i in zip(together, places, strict=True):
            own[:, : factors[i].shape[1]].copy_(factors[i])
            own[:, factors[i].shape[1] :].zero_()
        for i, p in zip(places, orthonormal(together), strict=True):
            found[i] = p[:, : factors[i].shape[1]]
    return found
