"""Lion Cub's integers: the documented rounding and scales."""

from __future__ import annotations

import math

import pytest
import torch

from reference_impls.algorithms import lion_integers as lion
from reference_impls.core.compute import Key
from tests.reference_impls.averages import normal
from tests.support import each

KEY = Key.of(seed=1, step=2, stage="rounding", start=5)
NEAREST = ("l1", "l0", "linf")


def encoded(u, parts, kind="l1", s=31, gain=None, dtype=torch.int8, key=KEY):
    codes = torch.full(u.shape, 99, dtype=dtype)
    flag = lion.encode(u, parts, kind, s, codes, gain=gain, key=key)
    return codes, flag


def test_scales():
    u = normal(5000)
    assert math.isclose(lion.scale_of(u, "l1").item(), u.double().abs().mean().item(), rel_tol=1e-6)
    assert lion.scale_of(u, "linf").item() == u.abs().max().item()
    geometric = (u.double().abs() + 1e-12).log().mean().exp().item()
    assert math.isclose(lion.scale_of(u, "l0").item(), geometric, rel_tol=1e-5)
    for size in (1e-30, 1e-3, 1e30):  # no square over- or underflows
        assert float(lion.scale_of(size * torch.tensor([3.0, -4.0]), "l2-stochastic")) == pytest.approx(
            5 * size, rel=1e-6
        )


@each("kind", NEAREST)
@each("n", [1, 3, 64])
def test_rounding_and_head_room(kind, n):
    s = lion.levels(8, n)
    u = normal(1000, seed=n)
    codes, flag = encoded(u, [slice(0, 1000)], kind, s)
    scale = lion.scale_of(u, kind).item()
    # Python's round: half to even
    expected = [max(-s, min(s, round(v))) for v in (u / scale * (s / 2)).tolist()]
    assert codes.tolist() == expected
    assert n * int(codes.abs().max()) <= 127
    assert flag.item() == 0


def test_golden_codes():
    assert lion.WIRE_VERSION == 1
    u = torch.tensor([1.0, -2.0, 3.0, 0.0, -0.0, 10.0, -4.0, 4.0])  # l1 scale 3
    assert encoded(u, [slice(0, 8)])[0].tolist() == [5, -10, 16, 0, 0, 31, -21, 21]
    assert encoded(u, [slice(0, 8)], "linf")[0].tolist() == [2, -3, 5, 0, 0, 16, -6, 6]
