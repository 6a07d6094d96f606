"""Rate against distortion: the means are those of the methods to the bit, and what is claimed of norms holds."""

from __future__ import annotations

import pytest
import torch

from reference_impls import SimulatedCluster
from reference_impls.errors import UnsupportedError
from suite.analysis import rate_distortion as module
from suite.analysis.rate_distortion import QUANTISERS, Quantiser, equal_levels, errors, mean_by, wire_bits
from suite.analysis.tables import to_csv

SHAPES = {"a": (40, 30), "b": (17,)}
D = 1217


def gradients(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, D, generator=generator) * torch.rand(D, generator=generator) ** 4


def trained(quantiser: Quantiser, rows: torch.Tensor) -> SimulatedCluster:
    found = SimulatedCluster(
        quantiser.algorithm, [torch.zeros(shape) for shape in SHAPES.values()], len(rows), lr=1.0, seed=3,
        names=list(SHAPES), **quantiser.options,
    )  # fmt: skip
    cut = [row.split((1200, 17)) for row in rows]
    found.step([[part.view(shape) for part, shape in zip(own, SHAPES.values(), strict=True)] for own in cut])
    return found


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("quantiser", QUANTISERS, ids=lambda q: q.label)
def test_the_mean_is_the_methods_own_and_so_are_its_bits(quantiser: Quantiser, n: int) -> None:
    rows = gradients(n)
    found = trained(quantiser, rows)
    expected = -torch.cat([p.flatten() for p in found.parameters(0)])
    assert torch.equal(mean_by(quantiser, rows, SHAPES, seed=3), expected)
    sent = sum(row["wire_bytes"] for row in found.ledger.totals()) / n
    slack = 0.02 * 8 * sent / D  # sparse messages and odd shares vary by a few bytes
    assert wire_bits(quantiser, SHAPES, n) == pytest.approx(8 * sent / D, abs=slack)


def test_a_method_that_cannot_serve_so_many_says_so() -> None:
    with pytest.raises(UnsupportedError, match="4 bits"):
        mean_by(Quantiser("standard-4", "global-qsgd", {"bits": 4}), gradients(8), SHAPES, seed=0)


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


def test_the_first_tensors_that_fit() -> None:
    whole = module.Captured("start", 0, SHAPES, gradients(2), torch.zeros(2))
    for elements, expected in ((1, 1200), (1216, 1200), (1217, 1217), (5000, 1217)):
        part = module.first_tensors(whole, elements)
        assert torch.equal(part.gradients, whole.gradients[:, :expected])
        assert sum(torch.Size(shape).numel() for shape in part.shapes.values()) == expected


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
