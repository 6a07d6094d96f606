"""PowerSGD's mean: two all-reduces of thin factors, which may be added since each is linear in the gradient. 1905.13727.

P = mean of Q M_i^T, orthonormalised by everybody alike; Q = mean of P M_i; the answer P^T Q is the projection of the mean
gradient onto the rows of P. The factors of all matrices of a shard travel together, those of P with the tensors that are
not compressed: two collectives a shard, ``<stage>-p`` and ``<stage>-q``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import Shard, View
from reference_impls.codecs.low_rank import orthonormal, refreshed
from reference_impls.codecs.sums import BLOCK
from reference_impls.collectives import Exchange

__all__ = ["Matrix", "low_rank_mean"]


@dataclass(frozen=True)
class Matrix:
    """A parameter that is sent as factors: its place, and its size and rank as a matrix."""

    view: View
    rows: int
    columns: int
    rank: int


def low_rank_mean(
    shard: Shard,
    x: Tensor,
    matrices: Sequence[Matrix],
    factors: Mapping[str, Tensor],
    stage: str,
    *,
    errors: Mapping[str, Tensor] | None = None,
    warm: bool = True,
) -> Exchange[Tensor]:
    """Mean over all ranks, approximated for `matrices` and exact for the other parameters.

    Args:
        x: float [d] of this rank; consumed, and the answer.
        factors: Q by parameter name, replicated, [r or more, columns]; the first r rows are used and replaced.
        stage: of the collectives, and name of the random stream of new rows of Q (keyed by the parameter's name).
        errors: [a b] by parameter name, of this rank; added to x, then what the answer lacks of this rank's sum.
        warm: begin at the last Q; otherwise at a new draw in every step.
    """
    held = {m.view.name: x[m.view.part] if errors is None else errors[m.view.name] for m in matrices}
    sources = [held[m.view.name].view(m.rows, m.columns) for m in matrices]
    starts = []
    for m, source in zip(matrices, sources, strict=True):
        if errors is not None:
            source.add_(x[m.view.part].view_as(source))
        q = factors[m.view.name][: m.rank]
        key = shard.key(f"{stage}-q", shared=True, view=m.view)
        starts.append(refreshed(q if warm else torch.zeros_like(q), key))
    names = {m.view.name for m in matrices}
    exact = [x[v.part] for v in shard.views if v.name not in names]
    message, parts = _room([*((m.rank, m.rows) for m in matrices), *(tuple(e.shape) for e in exact)], x)
    for q, source, part in zip(starts, sources, parts, strict=False):
        torch.mm(q, source.T, out=part)
    for own, part in zip(exact, parts[len(matrices) :], strict=True):
        part.copy_(own)
    parts = _cut((yield from shard.world.mean(message, f"{stage}-p")), parts)
    for own, part in zip(exact, parts[len(matrices) :], strict=True):
        own.copy_(part)
    if not matrices:
        return x
    bases = _orthonormal(parts[: len(matrices)])
    message, parts = _room([(m.rank, m.columns) for m in matrices], x)
    for p, source, part in zip(bases, sources, parts, strict=True):
        torch.mm(p, source, out=part)
    parts = _cut((yield from shard.world.mean(message, f"{stage}-q")), parts)
    for m, source, p, q in zip(matrices, sources, bases, parts, strict=True):
        answer = torch.mm(p.T, q, out=x[m.view.part].view(m.rows, m.columns))
        if errors is not None:
            source.sub_(answer)
        factors[m.view.name][: m.rank].copy_(q)
    return x


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
