"""Rate against distortion: errors by hand, what is claimed of norms, and complete rows."""

from __future__ import annotations

import pytest
import torch

from suite.analysis.tables import to_csv
from suite.studies import rate_distortion as module
from suite.studies.rate_distortion import QUANTISERS, equal_levels, errors

SHAPES = {"a": (40, 30), "b": (17,)}
D = 1217


def gradients(n: int) -> torch.Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(n))


def test_errors_by_hand() -> None:
    rows = torch.tensor([[3.0, 0.0], [1.0, 4.0]])  # mean 2, 2
    assert errors(torch.tensor([2.0, 4.0]), rows) == (pytest.approx(4 / 8), pytest.approx(2 * 4 / 26))


def test_equal_levels_trade_non_zeros_for_error() -> None:
    """Equal norms: sqrt(n) = 4 both ways at n = 16, within what chance and saturation allow."""
    nonzeros, error = equal_levels(
        torch.randn(16, 20_000, generator=torch.Generator().manual_seed(1)), seed=0
    )
    assert nonzeros == pytest.approx(4, rel=0.1)
    assert error == pytest.approx(4, rel=0.15)


def test_workers_of_unequal_norms_trade_more_non_zeros_for_less_error() -> None:
    """More than sqrt(n) of the one and less of the other; their product stays n."""
    rows = torch.randn(16, 20_000, generator=torch.Generator().manual_seed(1)) * torch.arange(1, 17)[:, None]
    nonzeros, error = equal_levels(rows, seed=0)
    assert nonzeros > 4.3
    assert error < 3.8
    assert nonzeros * error == pytest.approx(16, rel=0.1)


def test_rows_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    part = module.Captured("start", 0, SHAPES, gradients(4), torch.zeros(4))
    monkeypatch.setattr(module, "capture", lambda workload, workers, seed: [part])
    monkeypatch.setattr(module, "QUANTISERS", QUANTISERS[:3])
    rate, equal = module.tables(["digits-mlp"], sizes=(2, 4), seeds=6)
    assert {(row["world_size"], row["quantiser"]) for row in rate} == {
        (n, q.label) for n in (2, 4) for q in QUANTISERS[:3]
    }
    assert [row["world_size"] for row in equal] == [4]
    assert all(row["n"] == 6 for row in (*rate, *equal))
    assert to_csv(module.RATE_DISTORTION, rate).count("\n") == 7
