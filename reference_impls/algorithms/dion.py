"""Dion: orthonormal updates of low rank, from local momenta of which workers share two thin factors. arXiv 2504.05295.

A hidden matrix W [m, n] has a momentum a worker, M_k, and a rank r = ceil(rank_fraction min(m, n)); B_k is M_k, transposed if
m < n. Each step:

    M_k <- M_k + g_k                    from the local gradient
    P = orth(mean of B_k Q)             agreed by everybody
    R = mean of B_k^T P
    M_k <- M_k - (1 - mu) P R^T         what was captured decays, the rest stays: error feedback
    Q <- R, each column over its norm + eps
    W <- (1 - lr wd) W - lr sqrt(m / n) P Q^T

All of it is linear in M_k given P and R, so that the mean of M_k, P and R are those of one worker on the mean gradient. It is
PowerSGD whose error is the momentum and whose answer is made orthonormal.

A matrix travels as factors if they are smaller, (m + n) r < m n; otherwise its gradient is averaged, and its momentum is the
same on all ranks and treated alike. What is no hidden matrix is averaged too and stepped by AdamW. Factors P of a bucket
travel in one message with what is sent whole, factors R in a second.

Differences: the paper could not be read; its authors' reference code was. There `rank_fraction` is 1 by default, at which
nothing is compressed; a square matrix is compressed below 1/2, here as there. orth is a Householder QR: there a randomised
Cholesky QR, the same basis but for signs, which cancel. A column of P that depends on those before it is rounding noise and
becomes zero, with what later ones have along it, and its column of Q is drawn anew, where there noise is made a column of norm
1. The first Q is uniform, drawn by the parameter's name on all ranks alike (there rank 0's Q is sent). Not repeated, on
purpose: its first step sends whole gradients besides the factors; a load into a fresh optimizer forgets which matrices are
compressed and sends whole gradients from there on; its sketch's generator is not saved. State that differs between ranks is not
averaged for a checkpoint but is each rank's own. Hidden matrices are told by names, as for Muon; tensors of more than two
dimensions, which it refuses, are stepped by AdamW, and Lion is no choice for these. Gradients are not clipped. Equal parameters
need machines whose matrix products and QR agree to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from reference_impls.algorithms.powersgd import NOISE, compresses, cut, refreshed, room, scaled
from reference_impls.core import compute
from reference_impls.core.algorithm import Algorithm, Bucket, ParamGroups, StateSpec, View, option, per_tensor
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.optimizers import MUON, ByName, is_hidden_matrix

# ---- a factor, row by row ------------------------------------------------------------------------------------------


def basis(p: Tensor) -> Tensor:
    """Rows of P [r, a], r <= a, made orthonormal in their order; rows of which rounding noise is left become zero."""
    q, triangle = torch.linalg.qr(scaled(p)[0].T)
    noise = NOISE * torch.finfo(p.dtype).eps
    gone = triangle.diagonal().abs() <= noise * torch.linalg.vector_norm(triangle, dim=0)  # NaN is not <=
    rows: Tensor = q.T.masked_fill(gone.unsqueeze(-1), 0.0)
    return rows


def unit_rows(r: Tensor, eps: float) -> Tensor:
    """Rows of R [r, b], each over its norm + eps; zeros stay."""
    rows, largest = scaled(r)
    norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp(min=1)  # less only where all is 0
    return rows.div_(norm + eps / largest)


# ---- the method ----------------------------------------------------------------------------------------------------


class Directions(ByName):
    """Hidden matrices along what stands in place of their gradients, x <- (1 - lr wd) x - lr g, and all else by AdamW."""

    def step_matrices(self, matrices: list[Tensor], group: Mapping[str, Any]) -> None:
        """Step the hidden matrices of a group; those without a gradient stay."""
        for matrix in matrices:
            if matrix.grad is not None:
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                compute.add_scaled(matrix, matrix.grad, -group["lr"])


@dataclass(frozen=True)
class _Matrix:
    """A hidden matrix in a step, all of it upright.

    thin: whether it is sent as factors. g: [a, b], a >= b, its part of the bucket's gradient. momentum: [a, b]. q: [r, b], the
    state. start: [r, b], Q at the beginning of this step. h: its hyper-parameters. scale: sqrt(rows / columns).
    """

    thin: bool
    g: Tensor
    momentum: Tensor
    q: Tensor
    start: Tensor
    h: Mapping[str, Any]
    scale: float

    def product(self, out: Tensor | None = None) -> Tensor:
        """B Q as rows, [r, a]."""
        return torch.mm(self.start, self.momentum.T, out=out)


def _upright(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Values of a matrix of this shape as [longer, shorter], a view."""
    x = x.view(tuple(shape))
    return x if shape[0] >= shape[1] else x.T


@dataclass(frozen=True)
class Dion(Algorithm):
    """Thin factors of local momenta, orthonormal updates; every step is alike."""

    rank_fraction: float = option(0.25, "rank of a matrix as a share of its shorter side", gt=0, le=1)
    adamw_for: tuple[str, ...] = option(
        MUON["adamw_for"], "words in names of matrices that are not hidden: tables, the output layer"
    )

    defaults: ClassVar[Mapping[str, Any]] = {
        "lr": 0.01,
        "momentum": 0.95,
        "betas": (0.9, 0.95),
        "eps": 1e-8,
        "weight_decay": 0.01,
    }
    reduces_gradient: ClassVar[bool] = False

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {
            "q": per_tensor("replicated", self._factor),
            "momentum": per_tensor("per_rank", partial(self._momentum, thin=True)),
            "mean_momentum": per_tensor("replicated", partial(self._momentum, thin=False)),
        }

    def _factor(self, view: View, world: Group) -> tuple[int, ...] | None:
        rank = self._rank(view)
        return (rank, min(view.param.shape)) if rank else None

    def _momentum(self, view: View, world: Group, thin: bool) -> tuple[int, ...] | None:
        return tuple(view.param.shape) if self._rank(view) and self._is_thin(view) == thin else None

    def _rank(self, view: View) -> int:
        """r of a hidden matrix, 0 of anything else."""
        shape = view.param.shape
        hidden = is_hidden_matrix(view.name, shape, self.adamw_for)
        return math.ceil(round(self.rank_fraction * min(shape), 6)) if hidden else 0

    def _is_thin(self, view: View) -> bool:
        """Whether it is a hidden matrix whose factors are smaller than the matrix."""
        rank, shape = self._rank(view), view.param.shape
        return rank > 0 and compresses(shape[0], shape[1], rank, 1.0)

    def inner_optimizer(self, groups: ParamGroups) -> torch.optim.Optimizer:
        if any(tuple(group.get("adamw_for", self.adamw_for)) != tuple(self.adamw_for) for group in groups):
            raise UnsupportedError(
                "Dion factors the same matrices in all groups: give adamw_for as its option, not in a parameter group"
            )
        return Directions(groups, {**self.defaults, "adamw_for": self.adamw_for})

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        x = bucket.grads
        hidden = self._hidden(bucket)
        thin, full = [m for m in hidden if m.thin], [m for m in hidden if not m.thin]
        exact = [x[v.part] for v in bucket.views if not self._is_thin(v)]

        for m in thin:
            m.momentum.add_(m.g)  # M_k + g_k
        message, parts = room([*((len(m.q), len(m.g)) for m in thin), *(tuple(e.shape) for e in exact)], x)
        for m, part in zip(thin, parts, strict=False):
            m.product(out=part)
        if exact:
            torch._foreach_copy_(parts[len(thin) :], exact)
        parts = cut((yield from bucket.world.mean(message, "factors-p")), parts)
        if exact:
            torch._foreach_copy_(exact, parts[len(thin) :])
        for m in full:
            m.momentum.add_(m.g)  # of the mean gradient
        bases = [basis(p) for p in [*parts[: len(thin)], *(m.product() for m in full)]]

        shares: list[Tensor] = []
        if thin:
            message, parts = room([tuple(m.q.shape) for m in thin], x)
            for m, p, part in zip(thin, bases, parts, strict=False):
                torch.mm(p, m.momentum, out=part)  # (B_k^T P)^T
            shares = cut((yield from bucket.world.mean(message, "factors-r")), parts)
        shares += [torch.mm(p, m.momentum) for m, p in zip(full, bases[len(thin) :], strict=True)]
        for m, p, r in zip([*thin, *full], bases, shares, strict=True):
            m.momentum.addmm_(p.T, r, alpha=-(1 - m.h["momentum"]))  # M_k - (1 - mu) P R^T
            m.q.copy_(unit_rows(r, m.h["eps"]))
            torch.mm(p.T, m.q, out=m.g).mul_(m.scale)
        return x

    def _hidden(self, bucket: Bucket) -> list[_Matrix]:
        found = []
        for view, h in bucket.by_tensor():
            if self._rank(view):
                shape, thin = view.param.shape, self._is_thin(view)
                momentum = bucket.state["momentum" if thin else "mean_momentum"][view.name]
                q = bucket.state["q"][view.name]
                start = refreshed(q, bucket.key("factors-r", shared=True, view=view))
                g, scale = bucket.grads[view.part], math.sqrt(shape[0] / shape[1])
                found.append(_Matrix(thin, _upright(g, shape), _upright(momentum, shape), q, start, h, scale))
        return found
