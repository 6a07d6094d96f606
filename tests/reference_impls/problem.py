"""A small training problem for the property tests: a model with awkward shapes, and gradients that differ by rank.

Gradients are a pure function of (parameters, rank, step), so that simulated and real runs can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reference_impls import DataParallelOptimizer, SimulatedCluster

LR = 0.02
WIDTHS = (7, 13, 5)  # 7*13 + 13 + 13*5 + 5 = 174 elements: no multiple of 8, 32 or any world size


class Net(nn.Module):
    """Two layers, one weight used twice, one parameter that never gets a gradient."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)

        def values(*shape: int) -> nn.Parameter:
            return nn.Parameter(0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype))

        self.first = values(WIDTHS[1], WIDTHS[0])
        self.bias = values(WIDTHS[1])
        self.second = values(WIDTHS[2], WIDTHS[1])
        self.shift = values(WIDTHS[2])
        self.unused = values(3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ self.first.T + self.bias)
        return torch.tanh(hidden @ self.second.T + self.shift) @ self.second  # the tied weight


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The data of one rank and step: inputs [6, 7] and targets [6, 13]."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(6, WIDTHS[0], generator=generator, dtype=torch.float64)
    y = torch.randn(6, WIDTHS[1], generator=generator, dtype=torch.float64) + 0.3 * rank
    return x.to(dtype), y.to(dtype)


def loss(model: nn.Module, rank: int, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """On the data of one rank and step."""
    x, y = batch(rank, step, dtype)
    return (model(x) - y).square().mean()


def learning_rate(step: int) -> float:
    """A decaying rate, so that a method that ignores schedules is found out."""
    return LR / (1 + 0.2 * step)


def observed(step: int) -> dict[str, float]:
    """What is given to `observe` before a step: a falling loss, so that one that plans by it has to act."""
    return {"loss": 2.0 / (1 + step), "accuracy": min(1.0, step / 10)}


def gradients(parameters: list[Tensor], rank: int, step: int) -> list[Tensor | None]:
    """The gradient of each parameter of a replica, in the order of `Net().parameters()`; None for the unused one."""
    model = Net(parameters[0].dtype)
    with torch.no_grad():
        for own, given in zip(model.parameters(), parameters, strict=True):
            own.copy_(given)
    loss(model, rank, step, parameters[0].dtype).backward()
    return [p.grad for p in model.parameters()]


Gradients = Callable[[list[Tensor], int, int], list[Tensor | None]]
"""(parameters or a reference point, rank, step) -> the gradient of each parameter."""


def at_reference_points(
    cluster: SimulatedCluster, step: int, own: Gradients = gradients
) -> dict[str, list[list[Tensor | None]]]:
    """The gradients at the points where the next step of a cluster wants them too."""
    ranks = range(cluster.world_size)
    return {
        point: [own(cluster.reference_parameters(r, point), r, step) for r in ranks]
        for point in cluster.reference_points
    }


def advance(cluster: SimulatedCluster, steps: int, own: Gradients = gradients) -> SimulatedCluster:
    """Train it for some steps more."""
    for step in range(cluster.steps, cluster.steps + steps):
        grads = [own(cluster.parameters(r), r, step) for r in range(cluster.world_size)]
        cluster.observe(**observed(step))
        cluster.step(grads, lr=learning_rate(step), reference_points=at_reference_points(cluster, step, own))
    return cluster


def take(optimizer: DataParallelOptimizer, backward: Callable[[], Any]) -> None:
    """A step as users write it: backward and step, or a closure where the method wants gradients at further points."""
    if optimizer.method.algorithm.reference_points:
        optimizer.step(backward)
    else:
        backward()
        optimizer.step()


def train(model: Net, optimizer: DataParallelOptimizer, rank: int, first: int, last: int) -> list[str]:
    """Steps first .. last of a rank, as `gradients` are; their kinds."""
    kinds = []
    for step in range(first, last):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        optimizer.observe(**observed(step))
        take(optimizer, lambda step=step: loss(model, rank, step).backward())
        kinds.append(optimizer.kind)
    return kinds


def names() -> list[str]:
    return [name for name, _ in Net().named_parameters()]
