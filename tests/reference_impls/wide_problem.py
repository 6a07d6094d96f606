"""A training problem of 1003 parameters for long comparisons of simulated and real runs: cheap, and noisy by rank.

d = 1003 is a prime-like length: no multiple of 8, 32 or any world size. The loss is a quadratic around a target of each
rank plus a linear noise drawn anew each step, so gradients are a pure function of (parameters, rank, step).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer, SimulatedCluster
from tests.reference_impls.problem import LR, take, told
from tests.reference_impls.table import Row

SHAPES = {"matrix": (24, 20), "bias": (20,), "vector": (500,), "shift": (3,)}  # 480 + 20 + 500 + 3 = 1003
BUCKET_BYTES = 2048  # the vector and the shift in a bucket of their own


class Wide(nn.Module):
    """Parameters alone; `loss` is theirs."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(7)
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(0.5 * torch.randn(shape, generator=generator)))


def loss(parameters: Sequence[Tensor], rank: int, step: int) -> Tensor:
    """The loss of one rank in one step."""
    draw = torch.Generator().manual_seed(1_000_003 * rank + step)
    noise = torch.randn(1003, generator=draw)
    aim = torch.randn(1003, generator=torch.Generator().manual_seed(rank))
    flat = torch.cat([p.reshape(-1) for p in parameters])
    return 0.1 * (0.5 * (flat - aim).square() + 0.3 * noise * flat).sum()


def gradients(parameters: Sequence[Tensor], rank: int, step: int) -> list[Tensor | None]:
    """Of each parameter."""
    leaves = [p.detach().clone().requires_grad_() for p in parameters]
    return list(torch.autograd.grad(loss(leaves, rank, step), leaves))


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
        cluster.observe(**told(step))
        probes = {
            probe: [gradients(cluster.probe_parameters(r, probe), r, step) for r in range(size)]
            for probe in cluster.probes
        }
        grads = [gradients(cluster.parameters(r), r, step) for r in range(size)]
        cluster.step(grads, lr=learning_rate(step), probes=probes)
        if step + 1 == early:
            first = [[p.clone() for p in cluster.parameters(r)] for r in range(size)]
    return first, [cluster.parameters(r) for r in range(size)], cluster.ledger.totals()


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
        optimizer.observe(**told(step))
        take(optimizer, lambda step=step: loss(list(model.parameters()), rank, step).backward())
        if step + 1 == early:
            found["early"] = [p.detach().clone() for p in model.parameters()]
    found["late"] = [p.detach().clone() for p in model.parameters()]
    found["ledger"] = optimizer.ledger.totals()
    optimizer.release()
    return found
