"""Cases of codecs that say little: some coordinates, sums of coordinates, two thin matrices."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .cases import Case, module
from .dense_cases import ByProtocol, Keyed

__all__ = ["CASES"]

RANK = 4
LINE = 64  # bytes of the cache that are moved together


class Sparse(ByProtocol):
    """Some coordinates. What is added touches their lines of the cache alone."""

    small_parts = True
    reads = 2

    def __init__(self, numel: int, place: str, name: str, share: float) -> None:
        self.share = share  # of the coordinates that are sent
        super().__init__(numel, place, name)

    def touched(self, verb: str) -> float:
        if verb != "accumulate":
            return super().touched(verb)
        return self.sent_bytes() / self.x.numel() + min(8.0, 2 * LINE * self.share)


class CountSketch(Case):
    """Sketched-SGD's defaults: 5 rows of 0.9 % of the coordinates. Decoding estimates every coordinate."""

    small_parts = True
    ROWS = 5
    COLUMN_RATIO = 0.009

    def buffer(self, numel: int) -> torch.Tensor:
        columns = max(1, math.ceil(self.COLUMN_RATIO * numel))
        self.codec = module("reference_impls.codecs.count_sketch").CountSketch(self.ROWS, columns, seed=1)
        return torch.zeros(self.ROWS, columns)

    def encode(self) -> None:
        self.codec.encode(self.x, self.wire)

    def decode(self) -> None:
        self.codec.decode(self.wire, self.out)


class LowRank(Keyed):
    """PowerSGD's arithmetic on one matrix, as square as it can be: two products and an orthonormalisation; and P^T Q back.

    The thin factors are what is sent. Collectives, error feedback and the start from the last Q are the reducer's.
    """

    small_parts = True
    reads = 2

    def buffer(self, numel: int) -> torch.Tensor:
        self.codec = module("reference_impls.codecs.low_rank")
        rows = next(r for r in range(math.isqrt(numel), 0, -1) if numel % r == 0)
        self.matrix = self.x.view(rows, -1)
        rank = min(RANK, rows)
        self.q = self.codec.refreshed(torch.zeros(rank, numel // rows), self.key)
        self.p = torch.zeros(rank, rows)
        self.start = self.q.clone()
        return torch.zeros(rank * (rows + numel // rows))

    def encode(self) -> None:
        torch.mm(self.start, self.matrix.T, out=self.p)
        self.p = self.codec.orthonormal(self.p)
        torch.mm(self.p, self.matrix, out=self.q)
        self.wire[: self.p.numel()] = self.p.view(-1)
        self.wire[self.p.numel() :] = self.q.view(-1)

    def decode(self) -> None:
        torch.mm(self.p.T, self.q, out=self.out.view_as(self.matrix))


CASES: dict[str, Callable[[int], Case]] = {
    "top-k-1pct": lambda numel: Sparse(numel, "sparse", "TopK", 0.01),
    "chunk-top-k": lambda numel: Sparse(numel, "chunk_top_k", "ChunkTopK", 64 / 4096),
    "count-sketch": CountSketch,
    "low-rank-4": LowRank,
}
