"""Means of coded vectors: the identities of error feedback, both forms, scales a tensor, lengths down to nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.core.compute import Key
from tests.support import each

KEY = Key.of(seed=1, step=2, stage="test", rank=0)


def cluster(n: int, d: int, **options: object) -> SimulatedCluster:
    options = {"granularity": "bucket", **options}
    return SimulatedCluster("ef-signsgd", [torch.zeros(d, dtype=torch.float64)], n, lr=1.0, **options)


def draws(n: int, d: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(31 * step + d)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def total_error(simulated: SimulatedCluster, n: int, d: int, form: str) -> Tensor:
    """E: the mean of the workers' errors plus the servers' own, piece by piece."""
    errors = torch.stack([simulated.state(r, "worker_error")[0] for r in range(n)]).mean(0)
    if form == "two-phase":
        errors = errors + torch.cat([simulated.state(r, "server_error")[0] for r in range(n)])[:d]
    return errors


@each(
    ("form", "norm", "n", "d"),
    [("gather", "l1", 3, 7), ("two-phase", "l2", 5, 3), ("two-phase", "l1", 4, 100)],
)
def test_what_is_applied_is_the_mean_plus_the_change_of_the_error(
    form: str, norm: str, n: int, d: int
) -> None:
    """x_{t+1} - x_t = -(mean g_t + E_{t-1} - E_t): nothing is lost, element by element."""
    simulated = cluster(n, d, form=form, norm=norm)
    for step in range(5):
        before, error = simulated.parameters(0)[0].clone(), total_error(simulated, n, d, form)
        g = draws(n, d, step)
        simulated.step([[g[r]] for r in range(n)])
        moved = before - simulated.parameters(0)[0]
        torch.testing.assert_close(
            moved, g.mean(0) + error - total_error(simulated, n, d, form), rtol=0, atol=1e-12
        )
    assert total_error(simulated, n, d, form).abs().max() > 0
