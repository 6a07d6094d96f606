"""THC: the transform's inverse, the table's properties, head-room, bytes. What sums decode to: `test_nothing_is_lost`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import combinations, pairwise
from statistics import NormalDist

import pytest
import torch

from reference_impls import create
from reference_impls.compressors import lookup
from reference_impls.compressors.lookup import PUBLISHED, optimal, table
from reference_impls.compressors.transforms import Chunks, butterflies
from reference_impls.core.compute import Key
from reference_impls.runtime.alone import traced
from tests.reference_impls.averages import hadamard, normal, sent, stepped
from tests.support import each

KEY = Key.of(seed=1, step=2, stage="test", rank=0)
LIMIT = NormalDist().inv_cdf(1 - 1 / 64)
FORMS = [{"form": "two-phase"}, {"form": "sum"}]


def rounding_variance(values: Sequence[int], limit: float) -> float:
    """E (rounded - z)^2 over a standard normal z within -limit .. limit."""
    points = [(2 * v / values[-1] - 1) * limit for v in values]
    return sum(lookup._cost(a, b) for a, b in pairwise(points))


trained = partial(stepped, "thc")


# ---- transform -----------------------------------------------------------------------------------------------------


@each("size", [1, 2, 8, 1024])
def test_butterflies_are_the_hadamard_matrix(size: int) -> None:
    x = normal(3, size, dtype=torch.float64)
    kept = x.clone()
    torch.testing.assert_close(butterflies(x), x @ hadamard(size), rtol=1e-12, atol=1e-12)
    assert torch.equal(x, kept)
    whole = torch.randint(-100, 101, (size,), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(butterflies(butterflies(whole)), whole * size)


@each(("d", "size"), [(1, 16), (16, 16), (67, 16), (1000, 1024), (1025, 1024)])
def test_rotating_back_and_norms(d: int, size: int) -> None:
    chunks = Chunks(d, size)
    assert d <= chunks.padded < 2 * d + 1
    assert chunks.padded - d < size
    x = normal(d)
    signs = (KEY.bits(chunks.padded) & 1).float() * 2 - 1
    turned = chunks.rotate(chunks.pad(x), signs)
    lengths = chunks.spread(chunks.sizes(x.device))
    torch.testing.assert_close(chunks.rotate_back(turned / lengths, signs), x, rtol=1e-5, atol=1e-6)
    parts = [p.square().sum() for p in x.split(size)]
    torch.testing.assert_close(chunks.norms(x).square(), torch.stack(parts), rtol=1e-5, atol=0.0)
    kept = sum(float(part.square().sum()) / part.shape[-1] for part in chunks.cut(turned))
    assert kept == pytest.approx(float(sum(parts)), rel=1e-5)


# ---- table ---------------------------------------------------------------------------------------------------------


def test_properties_of_the_published_table() -> None:
    assert [PUBLISHED[0], PUBLISHED[-1], len(PUBLISHED)] == [0, 30, 16]
    assert list(PUBLISHED) == sorted(set(PUBLISHED))
    assert [30 - v for v in reversed(PUBLISHED)] == list(PUBLISHED)
    found = table("published", 4, 30, 1 / 32)
    assert found.limit == pytest.approx(2.15387, abs=1e-5)
    assert (found.bits, found.top) == (4, 30)
    assert rounding_variance(PUBLISHED, LIMIT) == pytest.approx(0.0131, abs=5e-5)
    assert rounding_variance(range(16), LIMIT) == pytest.approx(0.0133, abs=5e-5)


def test_the_computed_table_is_the_best() -> None:
    """Against all tables of a small size; and 4 bits of 30 differ from the published table in one value."""
    every = [(0, *inner, 9) for inner in combinations(range(1, 9), 2)]
    assert optimal(2, 9, LIMIT) == min(every, key=lambda v: rounding_variance(v, LIMIT))
    best = optimal(4, 30, LIMIT)
    assert sum(a != b for a, b in zip(best, PUBLISHED, strict=True)) == 1
    assert 0.998 < rounding_variance(best, LIMIT) / rounding_variance(PUBLISHED, LIMIT) < 1
    assert optimal(3, 7, LIMIT) == tuple(range(8))


@each("kind", ["published", "optimal", "uniform"])
def test_rounding_is_unbiased_within_the_limits_and_of_the_computed_variance(kind: lookup.Kind) -> None:
    found = table(kind, 4, 30, 1 / 32)
    z = normal(30_000).clamp(-LIMIT, LIMIT)
    indices = torch.empty(z.numel(), dtype=torch.int32)
    found.encode(z, KEY, indices)
    back = torch.empty_like(z)
    found.decode(indices, back)
    assert torch.equal(back, (found.look_up(indices) * 2 - found.top) * (found.unit / 2))
    off = (back - z).double()
    assert abs(float(off.mean())) < 5 * float(off.std()) / math.sqrt(z.numel())
    for low in (-2.0, -0.3, 0.0, 1.1):  # and in every part of the range
        part = off[(z > low) & (z < low + 0.3)]
        assert abs(float(part.mean())) < 5 * float(part.std()) / math.sqrt(part.numel())
    inside = z.abs() < LIMIT
    expected = rounding_variance(found.values, LIMIT)
    assert float(off[inside].square().sum()) / z.numel() == pytest.approx(expected, rel=0.02)


# ---- mean ----------------------------------------------------------------------------------------------------------


@each("options", FORMS)
def test_all_ranks_at_the_top_do_not_overflow(options: dict) -> None:
    """n = 8 with g = 30 reaches 240 of 255: a constant rotated by its own signs is one spike of sqrt(d), cut at T."""
    n, d = 8, 64
    signs = (Key.of(seed=0, step=0, stage="gradient-signs").bits(d) & 1).float() * 2 - 1
    spike = signs.expand(n, d).clone()
    members = trained(spike, chunk=d, error_feedback=False, **options)
    expected = signs * LIMIT / math.sqrt(d)
    found = -members.parameters(0)[0]
    torch.testing.assert_close((found * signs).mean(), expected[0].abs(), rtol=0.5, atol=0.0)
    assert float(butterflies(found * signs)[0]) / math.sqrt(d) == pytest.approx(LIMIT, rel=1e-5)


@each("n", [2, 8])
def test_bytes_by_hand(n: int) -> None:
    """4 bits up, 6, 7 or 8 down, 4 bytes a chunk to agree on norms; 1100 elements are 1024 and 128."""
    d, down = 1100, {2: 6, 4: 7, 8: 8}[n]
    piece = -(-1152 // (8 * n)) * 8
    found = sent(trained(normal(n, d)))
    assert {stage: payload for stage, (_, payload, _) in found.items()} == {
        "norm": 8,
        "up": n * piece // 2,
        "down": piece * down // 8,
    }
    said = traced(create("thc"), [(1000,), (10, 10)], n)["step"]
    assert sum(wire for *_, wire in found.values()) == pytest.approx(said)
    found = sent(trained(normal(n, d), form="sum"))
    assert {stage: payload for stage, (_, payload, _) in found.items()} == {"norm": 8, "sum": 1152}
