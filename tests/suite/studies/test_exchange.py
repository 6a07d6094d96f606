"""One exchange alone: the means are those of the methods to the bit, and so are the bits that are sent."""

from __future__ import annotations

import pytest
import torch

from reference_impls import SimulatedCluster
from reference_impls.errors import UnsupportedError
from reference_impls.registry import create
from suite.studies.gradients import Quantiser, gathered_codec, mean_by, wire_bits
from suite.studies.rate_distortion import QUANTISERS

SHAPES = {"a": (40, 30), "b": (17,), "c": (9, 5)}
LENGTHS = (1200, 17, 45)
D = 1262
SPECIAL = (
    Quantiser("tensor", "ef-signsgd"),
    Quantiser("scales of tensors", "qsgd", {"granularity": "tensor"}),
    Quantiser("small apart", "qsgd", {"smallest": 1000}),
    Quantiser("small apart, other codec", "cgx", {"form": "gather"}),
    Quantiser("small too", "cgx", {"form": "gather", "smallest": 0}),
    Quantiser("small too, two phases", "cgx", {"smallest": 0}),
    Quantiser("warm-up", "qsgd", {"warmup_steps": 1}),
    Quantiser("memory", "qsgd", {"error_feedback": True, "bits": 2}),
    Quantiser("signs without memory", "ef-signsgd", {"granularity": "bucket", "error_feedback": False}),
    Quantiser("memory, two phases", "top-k", {"form": "two-phase"}),
    Quantiser("another optimizer", "qsgd", {"optimizer": "adamw"}),
    Quantiser("a factory", "qsgd", {"optimizer": torch.optim.Adagrad}),
    Quantiser("dampened", "qsgd", {"momentum": 0.9, "dampening": 0.5}),
    Quantiser("own bits", "dq-sgd"),
    Quantiser("divided first", "qsgd-published"),
)
"""Options and methods that change what the first step sends or does, beside those of `QUANTISERS`."""
GATHERED = {
    "qsgd-2", "qsgd-4", "qsgd-8", "qsgd-8-linf", "qsgd-published-8", "natural-dithering-4", "nuqsgd-4", "sign-1",
    "top-k-1%",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANDWISE_COMPILE", "0")


def gradients(n: int, seed: int = 0) -> torch.Tensor:
    """Of magnitudes far apart, some of them 0 and -0, as gradients are."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(n, D, generator=generator) * torch.rand(D, generator=generator) ** 4
    found[:, ::7] = 0.0
    found[:, ::11] = -0.0
    return found


def trained(quantiser: Quantiser, rows: torch.Tensor) -> SimulatedCluster:
    found = SimulatedCluster(
        quantiser.algorithm, [torch.zeros(shape) for shape in SHAPES.values()], len(rows), lr=1.0, seed=3,
        names=list(SHAPES), **quantiser.options,
    )  # fmt: skip
    cut = [row.split(LENGTHS) for row in rows]
    found.step([[part.view(shape) for part, shape in zip(own, SHAPES.values(), strict=True)] for own in cut])
    return found


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("quantiser", [*QUANTISERS, *SPECIAL], ids=lambda q: q.label)
def test_the_mean_is_the_methods_own_and_so_are_its_bits(quantiser: Quantiser, n: int) -> None:
    rows = gradients(n)
    found = trained(quantiser, rows)
    expected = -torch.cat([p.flatten() for p in found.parameters(0)])
    assert torch.equal(mean_by(quantiser, rows, SHAPES, seed=3), expected)
    assert torch.equal(rows, gradients(n))
    if quantiser in QUANTISERS:
        sent = sum(row["wire_bytes"] for row in found.ledger.totals()) / n
        slack = 0.02 * 8 * sent / D  # sparse messages and odd shares vary by a few bytes
        assert wire_bits(quantiser, SHAPES, n) == pytest.approx(8 * sent / D, abs=slack)


def test_messages_are_decoded_by_hand_where_they_are_all_that_is_sent() -> None:
    """What is compared above is not the cluster with itself, and what is special is left to the cluster."""

    def by_hand(quantisers: tuple[Quantiser, ...]) -> set[str]:
        return {
            q.label for q in quantisers if gathered_codec(create(q.algorithm, **q.options), 3) is not None
        }

    assert by_hand(QUANTISERS) == GATHERED
    assert by_hand(SPECIAL) == {"small too", "memory", "signs without memory", "divided first"}
    assert gathered_codec(create("qsgd"), 1) is None


def test_a_method_that_cannot_serve_so_many_says_so() -> None:
    with pytest.raises(UnsupportedError, match="4 bits"):
        mean_by(Quantiser("standard-4", "global-qsgd", {"bits": 4}), gradients(8), SHAPES, seed=0)
