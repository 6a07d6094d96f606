"""The largest coordinates as a message: which, to the byte, whatever the length, the ties and the values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference_impls.compressors.sparse import WIRE_VERSION, TopK, kept, largest
from reference_impls.core.compute import Key
from tests.support import each

KEY = Key.of(seed=0, step=0, stage="test")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def through(compressor: TopK, x: Tensor) -> Tensor:
    wire = torch.full((*x.shape[:-1], compressor.wire_bytes(x.shape[-1])), 0xA5, dtype=torch.uint8)
    compressor.encode(x, KEY, wire)
    out = torch.full(x.shape, 7.0)
    compressor.decode(wire, out)
    return out


def by_sorting(x: Tensor, k: int) -> Tensor:
    """What must come out: Python's own sort by (-|x|, index)."""
    order = sorted(range(x.numel()), key=lambda i: (-abs(float(x[i])), i))
    out = torch.zeros_like(x)
    out[order[:k]] = x[order[:k]]
    return out


@each("ratio", [0.01, 0.3, 0.5, 1.0])
def test_the_largest_come_back_at_every_length(ratio: float) -> None:
    compressor = TopK(ratio)
    for d in (0, 1, 2, 31, 33, 67):
        x = normal(d, seed=d)
        assert torch.equal(through(compressor, x), by_sorting(x, kept(ratio, d)))


@each("d", [5, 64, 67, 1000])
def test_ties_go_to_the_lowest_index(d: int) -> None:
    x = torch.randint(-2, 3, (d,), generator=torch.Generator().manual_seed(d)).float()
    assert torch.equal(through(TopK(0.37), x), by_sorting(x, kept(0.37, d)))
    assert torch.equal(largest(torch.zeros(d, dtype=torch.int32), 3), torch.arange(3))
    assert torch.equal(
        through(TopK(0.4), torch.full((d,), -1.5)).nonzero().view(-1), torch.arange(kept(0.4, d))
    )


@each(("d", "ratio"), [(1, 0.1), (2, 1.0), (33, 0.1), (1024, 0.001), (1025, 0.1)])
def test_the_message_is_as_long_as_the_formula_says(d: int, ratio: float) -> None:
    k = max(1, math.floor(ratio * d))
    width = k * max(1, math.ceil(math.log2(d)))
    expected = (0 if k == d else math.ceil(width / 8)) + 4 * k
    assert TopK(ratio).wire_bytes(d) == expected


def test_golden_bytes() -> None:
    assert WIRE_VERSION == 1
    x = torch.zeros(40)
    x[3], x[17], x[39] = 1.0, -2.0, 0.5
    compressor = TopK(0.08)
    wire = torch.zeros(compressor.wire_bytes(40), dtype=torch.uint8)
    compressor.encode(x, KEY, wire)
    places = bytes(
        [0b01000011, 0b01110100, 0b10]
    )  # 3, 17, 39 of 6 bits: 000011 010001 100111 from the lowest bit on
    assert bytes(wire.tolist()) == places + bytes([0, 0, 0x80, 0x3F, 0, 0, 0x00, 0xC0, 0, 0, 0x00, 0x3F])


@each(("d", "ratio"), [(10, 0.01), (100, 0.5), (5000, 0.1)])
def test_a_contraction_by_one_minus_k_over_d(d: int, ratio: float) -> None:
    bound = 1 - kept(ratio, d) / d
    for seed in range(5):
        x = normal(d, seed=seed).double()
        lost = (x - through(TopK(ratio), x.float()).double()).square().sum()
        assert lost <= bound * x.square().sum() * (1 + 1e-6)
    flat = torch.ones(d)  # the worst case, in which the bound is reached
    lost = (flat - through(TopK(ratio), flat)).square().sum()
    torch.testing.assert_close(float(lost), bound * d)
