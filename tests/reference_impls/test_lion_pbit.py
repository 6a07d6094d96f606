"""Lion Cub's weighted votes: forms of the sum, quantisers, shared scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.codecs import lion_integers
from reference_impls.randomness import Key
from tests.reference_impls.lion_training import (
    advance,
    agreement,
    cluster,
    vector,
)
from tests.support import each

PBIT = "lion-cub-pbit"


def trained(size: int, steps: int = 12, **options: Any) -> Tensor:
    found = cluster(PBIT, size, **options)
    advance(found, steps)
    for rank in range(1, size):
        assert torch.equal(vector(found.parameters(0)), vector(found.parameters(rank)))
    return vector(found.parameters(0))


# ---- forms ----------------------------------------------------------------------------------------------------------


@each("size", [1, 2, 3, 5, 7])
@each("bits", [4, 8, 16])
def test_forms_of_the_sum_are_one_training_to_the_bit(bits: int, size: int) -> None:
    """What a form changes is bytes: codes are the same, and so is the sign of their sum."""
    expected = trained(size, bits=bits)
    assert torch.equal(trained(size, bits=bits, form="two-phase"), expected)
    assert torch.equal(trained(size, bits=bits, form="two-phase-sign"), expected)


@each("size", [2, 127, 128, 300])
def test_in_two_phases_any_number_of_ranks_may_agree_on_the_largest_code(size: int) -> None:
    g = torch.tensor([8.0, -8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    for form in ("two-phase", "two-phase-sign"):
        found = SimulatedCluster(PBIT, [torch.zeros(8)], size, lr=1.0, form=form, levels="code")
        found.step([[g] for _ in range(size)])
        assert torch.equal(found.parameters(0)[0], -g.sign())


# ---- quantisers -----------------------------------------------------------------------------------------------------


def test_the_stochastic_quantiser_is_unbiased_and_between_its_two_neighbours() -> None:
    """z-score of each coordinate over 4000 draws below 5.5 (73 coordinates: chance 3e-6); variance f (1 - f)."""
    d, draws, s = 73, 4000, 31
    u = torch.randn(d, generator=torch.Generator().manual_seed(0))
    u[0], u[1] = 0.0, 1e-30
    codes = torch.empty(draws, d, dtype=torch.int8)
    for draw in range(draws):
        key = Key.of(seed=draw, step=0, stage="rounding", rank=0)
        lion_integers.encode(u, [slice(0, d)], "l2-stochastic", s, codes[draw], key=key)
    z = s * u.double() / u.double().norm()
    below, fraction = z.abs().floor(), z.abs() - z.abs().floor()
    magnitude = codes.abs().double()
    assert ((magnitude == below) | (magnitude == below + 1)).all()
    assert ((codes.sign() == u.sign()) | (codes == 0)).all()
    deviation = (fraction * (1 - fraction) / draws).sqrt()
    assert (((codes.double().mean(0) - z).abs() - 1e-6) <= 5.5 * deviation).all()
    spread = codes.double().var(0)
    assert ((spread - fraction * (1 - fraction)).abs() < 0.05).all()


def test_the_two_norm_neither_over_nor_underflows() -> None:
    for size in (1e-30, 1e-3, 1e30):
        u = size * torch.tensor([3.0, -4.0])
        assert float(lion_integers.scale_of(u, "l2-stochastic")) == pytest.approx(5 * size, rel=1e-6)
    assert lion_integers.scale_of(torch.zeros(5), "l2-stochastic") == 0


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (2, {"l1": 98.6, "l0": 95.2, "linf": 95.8, "l2-stochastic": 24.6}),
        (8, {"l1": 95.3, "l0": 91.1, "linf": 89.5, "l2-stochastic": 17.3}),
        (32, {"l1": 90.5, "l0": 88.3, "linf": 63.6, "l2-stochastic": 12.1}),
    ],
)
def test_agreement_with_the_sign_of_the_mean(
    size: int, expected: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Per cent of 100,000 Gaussian coordinates, 8 bits; the figures of an independent simulation."""
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    generator = torch.Generator().manual_seed(0)
    g = [[torch.randn(100_000, generator=generator)] for _ in range(size)]
    for scale, share in expected.items():
        found = SimulatedCluster(PBIT, [torch.zeros(100_000)], size, lr=1.0, scale=scale)
        assert 100 * agreement(found, g, rate=1.0, decay=0.0) == pytest.approx(share, abs=0.5)


# ---- shared scales --------------------------------------------------------------------------------------------------


@each(("scale", "join"), [("l1", "mean"), ("l0", "mean"), ("linf", "amax")])
def test_shared_scales_are_the_mean_or_the_maximum_over_workers(scale: str, join: str) -> None:
    """Votes by hand, from the first update u = g / 10 of two tensors; workers are 1, 2, 4 times as loud."""
    size, lengths, s = 3, [3000, 500], 127 // 3
    generator = torch.Generator().manual_seed(5)
    u = torch.randn(size, 3500, generator=generator) * 2.0 ** torch.arange(size).unsqueeze(-1)
    found = SimulatedCluster(
        PBIT,
        [torch.zeros(d) for d in lengths],
        size,
        lr=1.0,
        scale=scale,
        shared_scale=True,
        betas=(0.0, 0.9),
    )
    found.step([list(row.split(lengths)) for row in u])
    for i, own in enumerate(u.split(lengths, dim=1)):
        a = getattr(lion_integers.scale_of(own, scale), join)(0)
        votes = (own / a * s / 2).round().clamp(-s, s).sum(0).sign()
        assert float((found.parameters(0)[i] == -votes).float().mean()) > 0.999  # halves round either way
