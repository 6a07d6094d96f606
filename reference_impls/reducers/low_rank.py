"""PowerSGD's mean: two all-reduces of thin factors, which may be added since each is linear in the gradient. 1905.13727.

P = mean of Q M_i^T, orthonormalised by everybody alike; Q = mean of P M_i; the answer P^T Q is the projection of the mean
gradient onto the rows of P. The factors of all matrices of a shard travel together, those of P with the tensors that are
not compressed: two collectives a shard, ``<stage>-p`` and ``<stage>-q``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impls.algorithm import Shard, View
from reference_impls.codecs.low_rank import orthonormal, refreshed
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
    sources = [x[m.view.part].view(m.rows, m.columns) for m in matrices]
    starts = []
    for m, source in zip(matrices, sources, strict=True):
        if errors is not None:
            source.add_(errors[m.view.name].view_as(source))
        q = factors[m.view.name][: m.rank]
        key = shard.key(f"{stage}-q", shared=True, view=m.view)
        starts.append(refreshed(q if warm else torch.zeros_like(q), key))
    names = {m.view.name for m in matrices}
    exact = [x[v.part] for v in shard.views if v.name not in names]
    thin = [q @ source.T for q, source in zip(starts, sources, strict=True)]
    yield from _joint_mean(shard, [*thin, *exact], f"{stage}-p")
    if not matrices:
        return x
    bases = _orthonormal(thin)
    thin = [p @ source for p, source in zip(bases, sources, strict=True)]
    yield from _joint_mean(shard, thin, f"{stage}-q")
    for m, source, p, q in zip(matrices, sources, bases, thin, strict=True):
        answer = p.T @ q
        if errors is not None:
            torch.sub(source, answer, out=errors[m.view.name].view_as(source))
        source.copy_(answer)
        factors[m.view.name][: m.rank].copy_(q)
    return x


def _joint_mean(shard: Shard, parts: Sequence[Tensor], stage: str) -> Exchange[None]:
    """Mean over all ranks of several tensors in one all-reduce, in place."""
    message = torch.cat([part.reshape(-1) for part in parts])
    message = yield from shard.world.mean(message, stage)
    for part, mean in zip(parts, torch.split(message, [part.numel() for part in parts]), strict=True):
        part.copy_(mean.view_as(part))


def _orthonormal(factors: Sequence[Tensor]) -> list[Tensor]:
    """Each orthonormalised; those of one shape together, which changes no bit."""
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, p in enumerate(factors):
        alike[tuple(p.shape)].append(i)
    found = list(factors)
    for places in alike.values():
        for i, p in zip(places, orthonormal(torch.stack([factors[i] for i in places])), strict=True):
            found[i] = p
    return found
