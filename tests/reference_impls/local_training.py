"""A noisy quadratic in float64 on which methods of local steps are compared with each other and with plain code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.core.optimizers import local_optimizer
from reference_impls.core.registry import Method
from tests.reference_impls.averages import normal, point

D, RATE = 60, 0.05


def start(d: int = D) -> Tensor:
    return normal(d, seed=3, dtype=torch.float64)


def noise(step: int, rank: int, d: int = D) -> Tensor:
    return normal(d, seed=1000 * step + rank, dtype=torch.float64) + 0.2 * rank


def gradient(x: Tensor, step: int, rank: int) -> Tensor:
    """Linear in x, so that averages of gradients are gradients of averages."""
    return torch.linspace(0.1, 2, len(x), dtype=torch.float64) * x + noise(step, rank, len(x))


def cluster(algorithm: str | Method, size: int, d: int = D, **options: Any) -> SimulatedCluster:
    """Two parameters of a single vector in float64; `bucket_bytes` may cut it in two."""
    whole = start(d)
    return SimulatedCluster(algorithm, [whole[: d // 3], whole[d // 3 :]], size, lr=RATE, **options)


def advance(trained: SimulatedCluster, first: int, last: int, lr: Any = None) -> None:
    for step in range(first, last):
        grads = []
        for rank in range(trained.world_size):
            x = point(trained, rank)
            own = gradient(x, step, rank)
            grads.append([own[: len(x) // 3], own[len(x) // 3 :]])
        trained.step(grads, lr=None if lr is None else lr(step))


class Alone:
    """Workers by hand, each with a local optimizer of its own. x: their parameters."""

    def __init__(self, optimizer: str, size: int, **hyper: Any) -> None:
        self.x = [torch.nn.Parameter(start()) for _ in range(size)]
        self._optimizers = [
            local_optimizer(optimizer).build([{"params": [x], "lr": RATE, **hyper}]) for x in self.x
        ]

    def step(self, step: int, lr: float = RATE) -> Tensor:
        """[n, D]: where the local step of each has led."""
        for rank, (x, optimizer) in enumerate(zip(self.x, self._optimizers, strict=True)):
            optimizer.param_groups[0]["lr"] = lr
            x.grad = gradient(x.detach(), step, rank)
            optimizer.step()
        return torch.stack([x.detach() for x in self.x])

    def begin(self, rows: Tensor) -> None:
        """Go on from there: a row a worker, or one for all."""
        for x, own in zip(self.x, rows.expand(len(self.x), -1), strict=True):
            x.data.copy_(own)


def trained(algorithm: str, size: int, steps: int, lr: Any = None, **options: Any) -> SimulatedCluster:
    found = cluster(algorithm, size, **options)
    advance(found, 0, steps, lr)
    return found


def close(a: SimulatedCluster, b: SimulatedCluster, atol: float = 1e-12, rank: int = 0) -> None:
    torch.testing.assert_close(point(a, rank), point(b, rank), rtol=0, atol=atol)


def stand_at(found: SimulatedCluster, rows: Any, atol: float = 1e-12) -> None:
    """Every rank is at its row of [n, D], or at the one of [D]."""
    points = torch.stack([point(found, rank) for rank in range(found.world_size)])
    rows = rows if isinstance(rows, Tensor) else torch.stack(rows)
    torch.testing.assert_close(points, rows.detach().expand_as(points), rtol=0, atol=atol)


def equal_on_all_ranks(found: SimulatedCluster) -> bool:
    return all(torch.equal(point(found, 0), point(found, r)) for r in range(1, found.world_size))


def sent(found: SimulatedCluster, step: int | None = None, rank: int = 0) -> dict[str, float]:
    """Stage -> bytes that a rank sent, in one step or in all."""
    table = found.ledger.frame(rank)
    table = table if step is None else table[table.step == step]
    return dict(table.groupby("stage").wire_bytes.sum())
