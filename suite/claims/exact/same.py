"""Special cases: two methods that a paper calls the same, trained side by side on a noisy quadratic in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.schedules import LearningRate

_D, _RATE = 60, 0.05


def trajectory(
    *, one: dict[str, Any], other: dict[str, Any], n: int, steps: int = 24, falling: bool = False
) -> dict[str, float]:
    """Largest difference of any parameter on any rank over a training, each method given by algorithm and options.

    `lookahead` is no method of this project: slow weights that move by `share` towards the fast ones every `period` steps.
    `apart` is the same with the second method at another seed of the data, so that equality is seen to mean something.
    """
    rate = LearningRate("linear", peak=_RATE, min=_RATE / 10, total=steps) if falling else None
    first, second = _trained(one, n, steps, rate, 0), _trained(other, n, steps, rate, 0)
    return {
        "largest_difference": float((first - second).abs().max()),
        "apart": float((first - _trained(other, n, steps, rate, 1)).abs().max()),
    }


def mean_then_sign(*, n: int = 4, steps: int = 40) -> dict[str, float]:
    """Lion on averaged gradients against the sign of the mean update with momenta that are never synchronised."""
    one = {"algorithm": "lion-update-mean", "options": {"dtype": "fp32"}}
    return trajectory(one=one, other={"algorithm": "allreduce-lion"}, n=n, steps=steps)


def _trained(method: dict[str, Any], n: int, steps: int, rate: LearningRate | None, draw: int) -> Tensor:
    """[steps, n, d]: where every rank is after every step."""
    if method["algorithm"] == "lookahead":
        return _lookahead(steps, draw, **method.get("options", {}))
    options = dict(method.get("options", {}))
    if "total_steps" in options and options["total_steps"] is None:
        options["total_steps"] = steps
    cluster = SimulatedCluster(method["algorithm"], [_start()], n, lr=_RATE, **options)
    seen = []
    for step in range(steps):
        grads = [[_gradient(cluster.parameters(rank)[0], step, rank, draw)] for rank in range(n)]
        cluster.step(grads, lr=None if rate is None else rate(step))
        seen.append(torch.stack([cluster.parameters(rank)[0].clone() for rank in range(n)]))
    return torch.stack(seen)


def _lookahead(steps: int, draw: int, *, period: int, share: float) -> Tensor:
    slow, fast, seen = _start(), _start(), []
    for step in range(steps):
        fast = fast - _RATE * _gradient(fast, step, 0, draw)
        if step % period == period - 1:
            slow = slow + share * (fast - slow)
            fast = slow.clone()
        seen.append(fast[None].clone())
    return torch.stack(seen)


def _start() -> Tensor:
    return torch.randn(_D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def _gradient(x: Tensor, step: int, rank: int, draw: int) -> Tensor:
    """Of a quadratic, plus noise of the rank: linear in x, so that averages of gradients are gradients of averages."""
    source = torch.Generator().manual_seed(100_000 * draw + 1000 * step + rank)
    noise = torch.randn(_D, generator=source, dtype=torch.float64)
    return torch.linspace(0.1, 2, _D, dtype=torch.float64) * x + noise + 0.2 * rank
