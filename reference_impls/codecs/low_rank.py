"""Matrices as products of two thin factors: the arithmetic of PowerSGD, without collectives. arXiv 1905.13727.

A tensor is a matrix M [a, b]; a factor of rank r is kept row by row, P [r, a] and Q [r, b], and stands for P^T Q. One step
of subspace iteration makes P = Q M^T, orthonormalises its rows and takes Q = P M: the best Q for these P.

Orthonormalisation. Gram-Schmidt, twice over, sums by the fixed tree (`codecs.sums`) and everything else element-wise, so
that all ranks have the same bits from the same P on any number of threads. Row j depends on rows 0 .. j alone: the first
rows of a factor of high rank are a factor of low rank. A row of which less than 64 eps of its length is left holds
rounding noise; it becomes zero, and so does its row of Q. `refreshed` draws zero rows anew, so a gradient that was zero
(or of low rank) once is followed again when it is not. NaN and infinities make their rows NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.codecs.sums import fixed_sum
from reference_impls.randomness import Key

__all__ = ["compresses", "matrix", "orthonormal", "refreshed"]

_NOISE: Final = 64


def matrix(shape: Sequence[int]) -> tuple[int, int] | None:
    """(a, b) of the matrix that a tensor of this shape is taken for: first dimension against all others; None for scalars
    and vectors."""
    return None if len(shape) < 2 else (shape[0], prod(shape[1:]))


def compresses(a: int, b: int, rank: int, rate: float) -> bool:
    """Whether two factors of this rank are smaller than the matrix by more than the factor `rate`."""
    return a * b > rate * rank * (a + b)


def refreshed(q: Tensor, key: Key) -> Tensor:
    """Q [r, b] with rows of largest magnitude 1, where zero rows are draws from `key`, uniform in [-1, 1).

    Row j uses elements j b .. of the stream. A new tensor.
    """
    rank, b = q.shape
    largest = _largest(q)
    if q.device.type == "cpu" and bool(largest.all()):  # elsewhere asking would wait for the device
        return torch.div(q, largest, out=buffers.empty_like(q))
    fresh = (key.uniform(rank * b, q.device).view(rank, b) * 2 - 1).to(q.dtype)
    return torch.where(largest == 0, fresh, q / largest)


def _largest(x: Tensor) -> Tensor:
    return torch.abs(x, out=buffers.empty_like(x)).amax(-1, keepdim=True)


def orthonormal(p: Tensor) -> Tensor:
    """Rows of P [..., r, a] made orthonormal in their order; rows of noise become zero. A new tensor."""
    largest = _largest(p)
    p = torch.div(p, torch.where(largest == 0, 1.0, largest), out=buffers.empty_like(p))
    noise = (_NOISE * torch.finfo(p.dtype).eps) ** 2
    products = buffers.empty_like(p)
    for j in range(p.shape[-2]):
        row, before, along = p[..., j, :], p[..., :j, :], products[..., :j, :]
        whole = _squared(row, products).unsqueeze(-1)
        for _ in range(2 if j else 0):
            shares = fixed_sum(torch.mul(before, row.unsqueeze(-2), out=along)).unsqueeze(-1)
            torch.mul(shares, before, out=along)
            for i in range(j):
                row.sub_(along[..., i, :])
        rest = _squared(row, products).unsqueeze(-1) if j else whole
        gone = (rest < noise * whole) | (rest == 0)
        row.div_(torch.where(gone, 1.0, rest).sqrt()).masked_fill_(gone, 0.0)
    return p


def _squared(row: Tensor, room: Tensor) -> Tensor:
    return fixed_sum(torch.mul(row, row, out=room[..., 0, :]))
