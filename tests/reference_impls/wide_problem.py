"""A training problem of 1003 parameters for long comparisons of simulated and real runs: cheap, and noisy by rank.

d = 1003 is no multiple of 8, 32 or any world size tested. The gradient is that of a quadratic around a target of each
rank, plus noise drawn anew each step: a pure function of (parameters, rank, step). It is set without a backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer, SimulatedCluster
from tests.reference_impls.problem import LR, observed, take
from tests.reference_impls.table import Row

SHAPES = {"matrix": (24, 20), "bias": (20,), "vector": (500,), "shift": (3,)}  # 480 + 20 + 500 + 3 = 1003
BUCKET_BYTES = 2048  # the vector and the shift in a bucket of their own


class Wide(nn.Module):
    """Parameters alone."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(0.5 * torch.randn(shape, generator=generator)))


@functools.cache
def _drawn(seed: int) -> list[Tensor]:
    """1003 normal numbers, as parameters are shaped. Kept: every row asks for the same ones."""
    flat = torch.randn(1003, generator=torch.Generator().manual_seed(seed))
    return [x.view(shape) for x, shape in zip(flat.split([480, 20, 500, 3]), SHAPES.values(), strict=True)]


def gradients(parameters: Sequence[Tensor], rank: int, step: int) -> list[Tensor | None]:
    """Of each parameter, for one rank in one step."""
    aims, noise = _drawn(rank), _drawn(1000 * (step + 1) + rank)
    return [0.1 * (p.detach() - a) + 0.03 * z for p, a, z in zip(parameters, aims, noise, strict=True)]


def learning_rate(step: int) -> float:
    """Decaying, but not so fast that nothing happens later."""
    return LR / (1 + 0.05 * step)


def options(row: Row, steps: int) -> dict[str, Any]:
    """The options of a row for a training of so many steps."""
    return {**row.options, **({"total_steps": steps} if "total_steps" in row.options else {})}


def simulate(
    row: Row, size: int, steps: int, early: int
) -> tuple[list[list[Tensor]], list[list[Tensor]], list[dict[str, Any]]]:
    """The training, simulated: parameters by rank after `early` steps and at the end, and what was sent."""
    model = Wide()
    cluster = SimulatedCluster(
        row.algorithm,
        list(model.parameters()),
        size,
        lr=LR,
        seed=3,
        names=list(SHAPES),
        bucket_bytes=BUCKET_BYTES,
        **options(row, steps),
    )
    for step in range(steps):
        cluster.observe(**observed(step))
        reference_points = {
            reference_point: [
                gradients(cluster.reference_parameters(r, reference_point), r, step) for r in range(size)
            ]
            for reference_point in cluster.reference_points
        }
        grads = [gradients(cluster.parameters(r), r, step) for r in range(size)]
        cluster.step(grads, lr=learning_rate(step), reference_points=reference_points)
        if step + 1 == early:
            first = [[p.clone() for p in cluster.parameters(r)] for r in range(size)]
    return first, [cluster.parameters(r) for r in range(size)], cluster.ledger.totals()


def _set_gradients(model: Wide, rank: int, step: int) -> None:
    own = list(model.parameters())
    for p, gradient in zip(own, gradients(own, rank, step), strict=True):
        p.grad = gradient


def train(rank: int, size: int, row: Row, steps: int, early: int) -> dict[str, Any]:
    """The same training on real ranks: parameters after `early` steps and at the end, and what was sent."""
    model = Wide()
    optimizer = DataParallelOptimizer(
        model.named_parameters(),
        row.algorithm,
        lr=LR,
        seed=3,
        bucket_bytes=BUCKET_BYTES,
        timeout_s=20,
        **options(row, steps),
    )
    found: dict[str, Any] = {}
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        optimizer.observe(**observed(step))
        take(optimizer, lambda step=step: _set_gradients(model, rank, step))
        if step + 1 == early:
            found["early"] = [p.detach().clone() for p in model.parameters()]
    found["late"] = [p.detach().clone() for p in model.parameters()]
    found["ledger"] = optimizer.ledger.totals()
    optimizer.release()
    return found
