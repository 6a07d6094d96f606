"""Lion Cub's weighted votes: forms of the sum, quantisers, shared scales."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.codecs import lion_integers
from reference_impls.randomness import Key
from tests.reference_impls.lion_training import (
    SHAPES,
    D,
    advance,
    agreement,
    cluster,
    gradient,
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


def sent(name: str, size: int, **options: Any) -> float:
    """Bytes that rank 0 sends in its first step."""
    found = cluster(name, size, **options)
    advance(found, 1)
    return sum(row["wire_bytes"] for row in found.ledger.totals() if row["rank"] == 0)


# ---- forms ----------------------------------------------------------------------------------------------------------


@each("size", [1, 2, 3, 5, 7])
@each("bits", [4, 8, 16])
def test_forms_of_the_sum_are_one_training_to_the_bit(bits: int, size: int) -> None:
    """What a form changes is bytes: codes are the same, and so is the sign of their sum."""
    expected = trained(size, bits=bits)
    assert torch.equal(trained(size, bits=bits, form="two-phase"), expected)
    assert torch.equal(trained(size, bits=bits, form="two-phase-sign"), expected)


@each("size", [2, 3, 8])
@each("bits", range(2, 17))
def test_only_the_sign_comes_down(bits: int, size: int) -> None:
    """(p + 2)(n-1)/n bits a parameter, one vote and the bytes' padding aside; n = 8 with 2 bits, where no sum fits."""
    options = {"bits": bits, "form": "two-phase-sign", "levels": "code"}
    trained(size, steps=4, **options)
    piece = math.ceil((D + 1) / size)
    assert sent(PBIT, size, **options) == (size - 1) * (
        math.ceil(bits * piece / 8) + math.ceil(2 * piece / 8)
    )


def test_a_code_of_all_bits_agrees_more_often_than_one_that_leaves_room_for_the_sum() -> None:
    shares = []
    for options in (
        {"bits": 4},
        {"bits": 4, "levels": "code", "form": "two-phase-sign"},
        {"bits": 4, "levels": "code", "form": "two-phase"},
    ):
        generator = torch.Generator().manual_seed(0)
        found = SimulatedCluster(PBIT, [torch.zeros(20000)], 7, lr=1.0, **options)
        g = [[torch.randn(20000, generator=generator)] for _ in range(7)]
        shares.append(agreement(found, g, rate=1.0, decay=0.0))
    room, sign, whole = shares
    assert sign == whole > room + 0.1


def test_three_bits_of_own_codes_agree_as_often_as_eight_that_leave_room_at_a_third_of_the_bytes() -> None:
    """Gaussian, independent, n = 32: 8 bits leave each rank 3 levels of either sign, and 3 bits are 3 levels."""
    shares, size = [], 32
    for options in ({}, {"bits": 3, "levels": "code", "form": "two-phase-sign"}):
        generator = torch.Generator().manual_seed(0)
        found = SimulatedCluster(PBIT, [torch.zeros(20000)], size, lr=1.0, **options)
        g = [[torch.randn(20000, generator=generator)] for _ in range(size)]
        shares.append((agreement(found, g, rate=1.0, decay=0.0), found.ledger.totals()))
    assert shares[0][0] == shares[1][0] > 0.9
    eight, three = (sum(row["wire_bytes"] for row in rows if row["rank"] == 0) for _, rows in shares)
    assert three < eight / 3.1


@each("size", [2, 127, 128, 300])
def test_in_two_phases_any_number_of_ranks_may_agree_on_the_largest_code(size: int) -> None:
    g = torch.tensor([8.0, -8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    for form in ("two-phase", "two-phase-sign"):
        found = SimulatedCluster(PBIT, [torch.zeros(8)], size, lr=1.0, form=form, levels="code")
        found.step([[g] for _ in range(size)])
        assert torch.equal(found.parameters(0)[0], -g.sign())


@each(
    "options",
    [
        {"form": "two-phase", "bits": 6},
        {"form": "two-phase-sign", "levels": "code", "bits": 3},
        {"scale": "l2-stochastic"},
        {"shared_scale": True},
        {"shared_scale": True, "scale": "linf"},
        {"local_clip_norm": 1.0},
    ],
)
@each("bad", [math.nan, math.inf])
def test_one_rank_that_is_not_finite_is_seen_by_all(options: dict[str, Any], bad: float) -> None:
    found = cluster(PBIT, 4, **options)
    advance(found, 2)
    broken = [gradient(2, rank) for rank in range(4)]
    broken[2][1][3] = bad
    found.step(broken)
    assert all(torch.isnan(vector(found.parameters(rank))).all() for rank in range(4))


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


@each("kind", lion_integers.SCALES)
def test_quantisers_are_odd_and_do_not_know_the_scale_of_a_tensor(kind: lion_integers.Scale) -> None:
    u = torch.randn(300, generator=torch.Generator().manual_seed(1))
    key = Key.of(seed=1, step=0, stage="rounding", rank=0)

    def codes(x: Tensor) -> Tensor:
        found = torch.empty(300, dtype=torch.int8)
        lion_integers.encode(x, [slice(0, 300)], kind, 15, found, key=key)
        return found

    own = codes(u)
    assert own.abs().max() <= 15
    assert own.any()
    assert torch.equal(codes(-u), -own)
    for power in (-90, -20, 30, 90):  # l0 adds 1e-12, so it knows very small ones
        if kind != "l0" or power > -1:
            assert torch.equal(codes(u * 2.0**power), own)


def test_the_two_norm_neither_over_nor_underflows() -> None:
    for size in (1e-30, 1e-3, 1e30):
        u = size * torch.tensor([3.0, -4.0])
        assert float(lion_integers.scale_of(u, "l2-stochastic")) == pytest.approx(5 * size, rel=1e-6)
    assert lion_integers.scale_of(torch.zeros(5), "l2-stochastic") == 0


def test_stochastic_rounding_without_a_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="key"):
        lion_integers.encode(
            torch.ones(3), [slice(0, 3)], "l2-stochastic", 3, torch.empty(3, dtype=torch.int8)
        )


@each("options", [{"scale": "l2-stochastic"}, {"shared_scale": True}])
def test_a_cut_into_buckets_changes_nothing(options: dict[str, Any]) -> None:
    """Coins of the rounding count elements of the model."""
    whole, cut = cluster(PBIT, 4, **options), cluster(PBIT, 4, bucket_bytes=64, **options)
    advance(whole, 10)
    advance(cut, 10)
    assert torch.equal(vector(whole.parameters(0)), vector(cut.parameters(0)))


def heavy(size: int, d: int) -> list[list[Tensor]]:
    """Student-t of 2.5 degrees of freedom, correlation 0.3 between workers."""
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        normal = torch.randn(d, generator=generator)
        chi = sum(torch.randn(d, generator=generator) ** 2 for _ in range(5)) / 5  # t with 5, heavier below
        return normal / chi.sqrt() ** 2

    common = draw()
    return [[math.sqrt(0.3) * common + math.sqrt(0.7) * draw()] for _ in range(size)]


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


def test_the_largest_magnitude_is_no_scale_for_heavy_tails() -> None:
    g = heavy(8, 20_000)
    shares = {}
    for scale in ("l1", "linf"):
        found = SimulatedCluster(PBIT, [torch.zeros(20_000)], 8, lr=1.0, scale=scale)
        shares[scale] = agreement(found, g, rate=1.0, decay=0.0)
    assert shares["l1"] > 0.9
    assert shares["linf"] < 0.2


# ---- shared scales --------------------------------------------------------------------------------------------------


@each("scale", lion_integers.SCALES)
def test_equal_workers_share_the_scale_they_had_and_it_costs_a_number_a_tensor(scale: str) -> None:
    found = []
    for shared in (False, True):
        each = cluster(PBIT, 4, scale=scale, shared_scale=shared)
        advance(each, 10, lambda step, rank: gradient(step, 0))
        found.append(vector(each.parameters(0)))
    assert torch.equal(*found)
    extra = sent(PBIT, 4, scale=scale, shared_scale=True) - sent(PBIT, 4, scale=scale)
    assert extra == pytest.approx(2 * 3 / 4 * 4 * len(SHAPES))


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


@each("scale", ["l1", "linf"])
def test_with_a_shared_scale_a_loud_worker_weighs_more(scale: str) -> None:
    """Worker 0 is ten times louder, so it decides the mean. Without sharing each worker weighs the same."""
    generator = torch.Generator().manual_seed(3)
    g = [[torch.randn(20_000, generator=generator) * (10.0 if rank == 0 else 1.0)] for rank in range(3)]
    shares = {}
    for shared in (False, True):
        found = SimulatedCluster(
            PBIT, [torch.zeros(20_000)], 3, lr=1.0, scale=scale, bits=16, shared_scale=shared
        )
        shares[shared] = agreement(found, g, rate=1.0, decay=0.0)
    assert shares[True] > 0.94 > 0.8 > shares[False]
