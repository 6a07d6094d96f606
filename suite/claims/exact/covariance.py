"""ROOT-SGD's last iterate on a quadratic: its covariance against the least that any estimate can have."""

from __future__ import annotations

import torch

from reference_impls import SimulatedCluster


def last_iterate(
    *, runs: int = 400, steps: int = 2000, burn_in: int = 40, rate: float = 0.25
) -> dict[str, float]:
    """T Cov(theta_T) over A^-1 A^-1, least and most of five coordinates; noise of covariance 1, curvatures 0.5 to 2.

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
