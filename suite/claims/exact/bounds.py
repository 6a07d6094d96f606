"""Bounds that papers prove, held against what the codecs do."""

from __future__ import annotations

import math
from typing import Any

import torch

from reference_impls import SimulatedCluster
from reference_impls.codecs import dithering
from reference_impls.schedules import bits as rules


def qsgd_lemma(*, dims: list[int], levels: list[int], vectors: int = 8, draws: int = 256) -> dict[str, float]:
    """QSGD's lemma 3.1 under 2-norms: worst of variance over min(d/s^2, sqrt(d)/s) |v|^2, and of expected non-zeros over
    s (s + sqrt(d)). Both are at most 1. Expectations are exact to 1 / `draws` of a probability; vectors have heavy tails."""
    source, variance, nonzeros = torch.Generator().manual_seed(0), 0.0, 0.0
    grid = (torch.arange(draws) + 0.5) / draws
    for d in dims:
        for s in levels:
            for _ in range(vectors):
                normal = torch.randn(2, d, generator=source)
                v = normal[0] * torch.exp(normal[1])
                norm = v.norm()
                codes = dithering.rounded(v[:, None], norm, s, grid).double()
                values = codes * float(norm) / s
                error = float((values - v[:, None].double()).square().mean(1).sum())
                variance = max(variance, error / (min(d / s**2, math.sqrt(d) / s) * float(norm) ** 2))
                nonzeros = max(
                    nonzeros, float((codes != 0).double().mean(1).sum()) / (s * (s + math.sqrt(d)))
                )
    return {"variance_over_bound": variance, "nonzeros_over_bound": nonzeros}


def dq_sgd_step(*, factor: float, norms: list[float]) -> dict[str, float]:
    """DQ-SGD's rule of the non-convex case: most over least of the quantiser's step |g| / s over gradients of these norms."""
    steps = [norm / rules.wanted_levels(factor, norm) for norm in norms]
    return {"spread_of_step": max(steps) / min(steps)}


def error_by_workers(
    *, algorithm: str, sizes: list[int], options: dict[str, Any] | None = None, d: int = 4000
) -> dict[str, float]:
    """Squared error of one exchange of identical normal gradients over their squared norm: least and most over n. Of independent
    codes it falls as 1 / n."""
    x = torch.randn(d, generator=torch.Generator().manual_seed(0))
    found = []
    for n in sizes:
        cluster = SimulatedCluster(algorithm, [torch.zeros(d)], n, lr=1.0, **(options or {}))
        cluster.step([[x]] * n)
        error = cluster.parameters(0)[0] + x
        found.append(float(error.square().sum() / x.square().sum()))
    return {"least": min(found), "most": max(found)}


def error_ratio(
    *, of: dict[str, Any], over: dict[str, Any], n: int, d: int = 4000, draws: int = 8
) -> dict[str, float]:
    """Squared error of the mean of one method over that of another, each given by algorithm and options, on normal gradients
    that differ between workers; of the sums over `draws` seeds."""
    return {"ratio": _error(of, n, d, draws) / _error(over, n, d, draws)}


def _error(method: dict[str, Any], n: int, d: int, draws: int) -> float:
    total = 0.0
    for seed in range(draws):
        x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
        options = method.get("options", {})
        cluster = SimulatedCluster(method["algorithm"], [torch.zeros(d)], n, lr=1.0, seed=seed, **options)
        cluster.step([[row] for row in x])
        total += float((cluster.parameters(0)[0] + x.mean(0)).square().sum())
    return total


def equal_levels(*, workers: list[int], d: int = 4000, levels: int = 1) -> dict[str, float]:
    """Global-QSGD against QSGD at equal levels under 2-norms, workers' vectors of equal norm on average: expected non-zeros a
    worker of QSGD over Global-QSGD's, and variance of the mean the other way round, each over sqrt(n), least and most."""
    source, fewer, worse = torch.Generator().manual_seed(0), [], []
    for n in workers:
        x = torch.randn(n, d, generator=source).double().abs()
        own, shared = x / x.norm(dim=1, keepdim=True) * levels, x / x.norm() * levels
        fewer.append(float(own.clamp(max=1).sum() / shared.clamp(max=1).sum()) / math.sqrt(n))

        def variance(z: torch.Tensor, scale: torch.Tensor) -> float:
            part = z - z.floor()
            return float((part * (1 - part) * scale**2).sum())

        worse.append(variance(shared, x.norm()) / variance(own, x.norm(dim=1, keepdim=True)) / math.sqrt(n))
    return {
        "least_fewer_over_root": min(fewer),
        "most_fewer_over_root": max(fewer),
        "least_worse_over_root": min(worse),
        "most_worse_over_root": max(worse),
    }
