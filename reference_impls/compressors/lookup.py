"""Codes whose values add up after a look in a table: THC's quantiser of numbers near a normal distribution. 2302.08545.

A table is 2^b integers V, rising from 0 to g. Index i stands for (V_i - g/2) 2T/g, with T the quantile of the standard
normal beyond which a share `overflow` lies, on both sides together. Numbers are cut to -T .. T and rounded at random to a
neighbour without bias. Sums of V over n ranks stay within 0 .. n g, and decode to n times the mean of what each stood for.

``published``: the table that the authors ship for b = 4, g = 30, overflow 1/32. ``optimal``: least variance of the rounding
for a normal distribution, by dynamic programming (ours). ``uniform``: g = 2^b - 1, V_i = i.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.core import compute
from reference_impls.core.compute import Key, compiled, uniform
from reference_impls.core.errors import UnsupportedError

Kind = Literal["published", "optimal", "uniform"]
PUBLISHED: Final = (0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30)
_PUBLISHED_FOR: Final = (4, 30, 1 / 32)
_NORMAL: Final = NormalDist()


@dataclass(frozen=True)
class Table:
    """values: V. limit: T."""

    values: tuple[int, ...]
    limit: float

    @property
    def top(self) -> int:
        """g, the largest value."""
        return self.values[-1]

    @property
    def bits(self) -> int:
        """b, of an index."""
        return (len(self.values) - 1).bit_length()

    @property
    def unit(self) -> float:
        """What one step of V stands for: 2T / g."""
        return 2 * self.limit / self.top

    def encode(self, z: Tensor, key: Key, indices: Tensor) -> None:
        """float32 [..., d] -> indices, int32 [..., d]. NaN is encoded like 0: who may have one says so by a scale."""
        device = z.device
        words = key.on(device)
        if z.dim() == 1 and z.dtype == torch.float32 and compute.takes("lookup.encode", z, indices):
            from reference_impls.kernels import elementwise

            elementwise.look_up(z, _cells(self, device), words, indices)
            return
        below = compute.constant(_below(self.values), torch.int32, device)
        values = compute.constant(self.values, torch.float32, device)
        _encode(z, self.limit, self.unit, self.top / 2, below, values, words, indices)

    def look_up(self, indices: Tensor) -> Tensor:
        """Indices [...] -> V, int32 [...]."""
        found = compute.empty_like(indices, torch.int32)
        _take(indices, compute.constant(self.values, torch.int32, indices.device), found)
        return found

    def centred(self, indices: Tensor) -> Tensor:
        """Indices [...] -> 2 V - g, float32 [...]: what they stand for in units of T / g."""
        found = compute.empty_like(indices, torch.float32)
        _take(indices, _centred(self, indices.device), found)
        return found

    def decode(self, indices: Tensor, out: Tensor) -> None:
        """Indices [...] -> the numbers that they stand for, float32 [...]."""
        _take(indices, _numbers(self, indices.device), out)


def _centred(table: Table, device: torch.device) -> Tensor:
    return compute.constant(tuple(2 * value - table.top for value in table.values), torch.float32, device)


@functools.cache
def _numbers(table: Table, device: torch.device) -> Tensor:
    return _centred(table, device) * (table.unit / 2)


@functools.cache
def _below(values: tuple[int, ...]) -> tuple[int, ...]:
    """[g]: for y in [k, k+1), the index of the largest value up to k."""
    return tuple(sum(v <= k for v in values) - 1 for k in range(values[-1]))


@functools.cache
def _cells(table: Table, device: torch.device) -> Tensor:
    """The table as `kernels.elementwise.look_up` reads it."""
    below = torch.tensor(_below(table.values))
    at = torch.tensor(table.values, dtype=torch.float32)
    gap = at[below + 1] - at[below]
    cells = torch.stack([below.to(torch.float32), at[below], gap, 1 / gap], dim=-1)
    return torch.cat([cells, torch.tensor([[table.limit, table.unit, table.top, 0]])]).to(device)


@compiled
def _encode(
    z: Tensor,
    limit: float,
    unit: float,
    half: float,
    below: Tensor,
    values: Tensor,
    words: Tensor,
    out: Tensor,
) -> None:
    z = torch.where(z != z, 0.0, z).clamp(-limit, limit)
    y = (z / unit + half).clamp(0, 2 * half)
    index = below[y.to(torch.int32).clamp(max=below.shape[-1] - 1)]
    low, high = values[index], values[index + 1]
    up = uniform(words, z.shape[-1]) < (y - low) / (high - low)
    out.copy_(torch.where(up, index + 1, index))


@compiled
def _take(indices: Tensor, values: Tensor, out: Tensor) -> None:
    out.copy_(values[indices])


@functools.cache
def table(kind: Kind, bits: int, top: int, overflow: float) -> Table:
    """The table of this kind; `UnsupportedError` if there is none. `top` does not matter for ``uniform``."""
    if not 1 <= bits <= 8 or not 0 < overflow < 1:
        raise UnsupportedError(
            f"tables have 1 to 8 bits and an overflow between 0 and 1, got {bits} and {overflow}"
        )
    limit = _NORMAL.inv_cdf(1 - overflow / 2)
    if kind == "uniform":
        return Table(tuple(range(1 << bits)), limit)
    if kind == "published":
        if (bits, top, overflow) != _PUBLISHED_FOR:
            raise UnsupportedError(
                f"the published table is for 4 bits, granularity 30, overflow 1/32, not for {bits}, {top}, {overflow}: "
                "use table='optimal'"
            )
        return Table(PUBLISHED, limit)
    if top < (1 << bits) - 1:
        raise UnsupportedError(
            f"granularity {top} has no room for 2^{bits} values: use {(1 << bits) - 1} or more"
        )
    return Table(optimal(bits, top, limit), limit)


def optimal(bits: int, top: int, limit: float) -> tuple[int, ...]:
    """The 2^bits integers from 0 to `top`, both included, that round with least variance (one of two mirror images)."""
    points = [(2 * k / top - 1) * limit for k in range(top + 1)]
    best = [0.0, *[math.inf] * top]
    came_from = []
    for _ in range((1 << bits) - 1):
        found = [
            min(((best[i] + _cost(points[i], points[j]), i) for i in range(j)), default=(math.inf, 0))
            for j in range(top + 1)
        ]
        best = [cost for cost, _ in found]
        came_from.append([i for _, i in found])
    path = [top]
    for step in reversed(came_from):
        path.append(step[path[-1]])
    return tuple(reversed(path))


@functools.cache
def _cost(a: float, b: float) -> float:
    """Integral of (b - z) (z - a) over the normal density from a to b: what rounding between a and b costs."""

    def moments(z: float) -> tuple[float, float, float]:
        density = _NORMAL.pdf(z)
        return _NORMAL.cdf(z), -density, _NORMAL.cdf(z) - z * density

    zero, one, two = (y - x for x, y in zip(moments(a), moments(b), strict=True))
    return (a + b) * one - two - a * b * zero
