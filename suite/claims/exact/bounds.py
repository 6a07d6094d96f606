"""Bounds that papers prove, held against what codecs and methods do, and papers' own models with the papers' settings."""

from __future__ import annotations

import math
from typing import Any

import torch

from reference_impls import SimulatedCluster
from reference_impls.codecs import dithering
from suite.costs.papers import GLOBAL_QSGD_GAMMA, GLOBAL_QSGD_OMEGA, GlobalQSGD, most_warm_up, with_warm_up


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


def last_iterate(
    *, runs: int = 400, steps: int = 2000, burn_in: int = 40, rate: float = 0.25
) -> dict[str, float]:
    """ROOT-SGD on a quadratic: T Cov(theta_T) over A^-1 A^-1, least and most of five coordinates;
    noise of covariance 1, curvatures 0.5 to 2.

    The runs are the rows of one parameter: nothing mixes them.
    """
    curvature = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
    own = SimulatedCluster(
        "root-sgd", [torch.zeros(runs, 5, dtype=torch.float64)], 1, lr=rate, burn_in=burn_in
    )
    source = torch.Generator().manual_seed(11)
    for _ in range(steps):
        noise = torch.randn(runs, 5, generator=source, dtype=torch.float64)
        probes = {p: [[own.probe_parameters(0, p)[0] * curvature + noise]] for p in own.probes}
        own.step([[own.parameters(0)[0] * curvature + noise]], probes=probes)
    ratio = steps * own.parameters(0)[0].square().mean(0) * curvature**2
    return {"least": float(ratio.min()), "most": float(ratio.max())}


def break_even(
    *, dithering: str, gamma: float = GLOBAL_QSGD_GAMMA, beta: float | None = None
) -> dict[str, float]:
    """Global-QSGD's model: gigabytes a second of a link below which codes pay, and the speedup of communication at `beta`."""
    model = GlobalQSGD(beta=beta or 1.0, gamma=gamma, omega=GLOBAL_QSGD_OMEGA[dithering])
    found = {"gigabytes_a_second": model.break_even / 1e9 if math.isfinite(model.break_even) else math.inf}
    return found | ({} if beta is None else {"speedup": model.speedup(1e8, 4)})


def warm_up_cap(*, share: float, speedup: float = math.inf, wanted: float = 10.0) -> dict[str, float]:
    """Most that a training can gain whose first `share` of the steps is uncompressed, and the longest warm-up, in percent,
    with which the whole is `wanted` times as fast."""
    return {
        "cap": with_warm_up(share, speedup) if share else speedup,
        "longest_warm_up": 100 * most_warm_up(wanted, speedup),
    }


def savings(*, ratio: float, others: list[float]) -> dict[str, float]:
    """Percent that a method sends less than others, from how many times fewer bits each sends than fp32."""
    found = [100 * (1 - other / ratio) for other in others]
    return {"least": min(found), "most": max(found)}
