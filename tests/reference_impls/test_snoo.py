"""SNOO written out. What it equals at the ends of its options: `test_equal_methods`."""

from __future__ import annotations

import torch

from reference_impls.core.optimizers import local_optimizer
from tests.reference_impls.local_training import (
    RATE,
    D,
    advance,
    cluster,
    equal_on_all_ranks,
    gradient,
    point,
    sent,
    start,
)
from tests.support import each


@each(("optimizer", "momentum"), [("adamw", 0.75), ("adamw", 0.0), ("lion", 0.5)])
def test_outer_steps_written_out(optimizer: str, momentum: float) -> None:
    """One optimizer on the mean gradient of three; after steps 4, 8, 12: s, u <- b u + s, slow <- slow - a (s + b u)."""
    x = torch.nn.Parameter(start())
    alone = local_optimizer(optimizer).build([{"params": [x], "lr": RATE}])
    slow, u = start(), torch.zeros(D, dtype=torch.float64)
    ours = cluster("snoo", 3, optimizer=optimizer, period=4, outer_lr=0.8, outer_momentum=momentum)
    for step in range(1, 15):
        x.grad = sum(gradient(x.detach(), step, rank) for rank in range(3)) / 3
        alone.step()
        if step in (4, 8, 12):
            s = slow - x.detach()
            u = momentum * u + s
            slow = slow - 0.8 * (s + momentum * u)
            x.data.copy_(slow)
        advance(ours, step, step + 1)
        assert ours.kind == ("outer" if step in (4, 8, 12) else "step")
        assert equal_on_all_ranks(ours)
        torch.testing.assert_close(point(ours), x.detach(), rtol=0, atol=1e-12)
    assert set(sent(ours)) == {"gradient"}
