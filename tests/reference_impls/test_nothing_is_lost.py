"""Error feedback: what is applied is the mean gradient and the change of what is still owed, element by element."""

from __future__ import annotations

import torch

from reference_impls import SimulatedCluster
from tests.reference_impls.averages import moved, normal, owed
from tests.support import each

TWO_PHASE = {"form": "two-phase"}
KEPT = {"error_feedback": True}


@each(
    ("name", "options", "n", "d"),
    [
        ("ef-signsgd", {"granularity": "bucket"}, 3, 7),
        ("ef-signsgd", {"granularity": "bucket", "norm": "l2", **TWO_PHASE}, 5, 3),
        ("ef-signsgd", {"granularity": "bucket", **TWO_PHASE}, 4, 100),
        ("top-k", {"ratio": 0.1, **TWO_PHASE}, 3, 200),
        ("random-k", {"ratio": 0.1, **KEPT}, 3, 60),
        *(("gtop-k", {"ratio": 0.05, "form": form}, n, 300) for form in ("tree", "doubling") for n in (2, 5)),
        ("qsgd", {**KEPT, **TWO_PHASE}, 3, 100),
        ("sdp4bit-gradients", {**KEPT, "rotation": 16, "block_size": 32}, 3, 100),
        ("thc", {"chunk": 64}, 3, 280),
        ("thc", {"chunk": 64, "form": "sum"}, 5, 3),
    ],
)
def test_what_is_applied_is_the_mean_plus_the_change_of_the_error(name, options, n, d):
    """x_{t+1} - x_t = -(mean g_t + E_{t-1} - E_t)."""
    cluster = SimulatedCluster(name, [torch.zeros(d, dtype=torch.float64)], n, lr=1.0, **options)
    for step in range(5):
        error = owed(cluster)
        g = normal(n, d, seed=31 * step + d, dtype=torch.float64)
        applied = moved(cluster, g)
        atol = {"thc": 2e-6, "gtop-k": 1e-6}.get(name, 1e-12)  # which send float32
        torch.testing.assert_close(applied, g.mean(0) + error - owed(cluster), rtol=0, atol=atol)
    assert owed(cluster).abs().max() > 0.01
