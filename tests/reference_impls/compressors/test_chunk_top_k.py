"""Top-k of chunks: golden bytes, lengths, what is kept, what two bits make of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reference_impls.compressors.sparse import WIRE_VERSION, ChunkTopK
from reference_impls.core.compute import Key
from tests.support import each

KEY = Key(torch.zeros(3, dtype=torch.int32))
COMPRESSORS = [
    ChunkTopK(3, 8, 32),
    ChunkTopK(3, 8, 2),
    ChunkTopK(1, 1, 32),
    ChunkTopK(8, 8, 2),
    ChunkTopK(2, 5, 2),
]


def message(compressor: ChunkTopK, x: Tensor) -> Tensor:
    wire = torch.full((*x.shape[:-1], compressor.wire_bytes(x.shape[-1])), 77, dtype=torch.uint8)
    compressor.encode(x, KEY, wire)
    return wire


def decoded(compressor: ChunkTopK, x: Tensor) -> Tensor:
    out = torch.full_like(x, 5.0)
    compressor.decode(message(compressor, x), out)
    return out


def values(d: int, seed: int = 0) -> Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(seed))


def test_golden_bytes() -> None:
    assert WIRE_VERSION == 1
    x = torch.tensor([0.0, 4.0, -1.0, 0.5, -2.0, 0.25, 0.0, 8.0, -3.0, 1.0])
    # places 1, 4, 7 at 3 bits each; of the last two, ceil(3 * 2 / 8) = 1, place 0 at 1 bit
    full = message(ChunkTopK(3, 8, 32), x)
    assert full[:3].tolist() == [1 | 4 << 3 | (7 & 3) << 6, 7 >> 2, 0]
    assert full[3:].view(torch.uint8).tolist() == list(torch.tensor([4.0, -2.0, 8.0, -3.0]).view(torch.uint8))
    # mean magnitude 4.25: bins 0, 2, 1, 2; means 4, 8, -2.5, 0
    two = message(ChunkTopK(3, 8, 2), x)
    assert two[:3].tolist() == full[:3].tolist()
    assert two[3].item() == 0 | 2 << 2 | 1 << 4 | 2 << 6
    assert two[4:].tolist() == list(torch.tensor([4.0, 8.0, -2.5, 0.0]).view(torch.uint8))


@each("compressor", COMPRESSORS)
@each("d", (0, 1, 5, 8, 17, 67))
def test_all_lengths(compressor: ChunkTopK, d: int) -> None:
    """The k largest of each chunk arrive, others are 0; the length is the formula's; a row packs as it would alone."""
    x = values(d)
    out = decoded(compressor, x)
    kept = 0
    for first in range(0, d, compressor.chunk):
        own = x[first : first + compressor.chunk]
        k = math.ceil(compressor.k * len(own) / compressor.chunk)
        kept += k
        largest = own.abs().argsort(descending=True)[:k]
        there = out[first : first + compressor.chunk] != 0
        assert set(there.nonzero().view(-1).tolist()) == set(largest.tolist())
        if compressor.value_bits == 32:
            assert torch.equal(out[first : first + compressor.chunk][largest], own[largest])
    assert compressor.kept(d) == kept
    batch = torch.stack([x, -x, values(d, 1)])
    assert torch.equal(message(compressor, batch)[2], message(compressor, values(d, 1)))
    assert torch.equal(
        decoded(compressor, batch)[1], -out if compressor.value_bits == 32 else decoded(compressor, -x)
    )


def test_two_bits_are_the_means_of_four_bins() -> None:
    x = values(4000)
    compressor = ChunkTopK(400, 4000, 2)
    out, kept = decoded(compressor, x), decoded(ChunkTopK(400, 4000, 32), x)
    assert len(set(out[out != 0].tolist())) == 4
    for level in set(out[out != 0].tolist()):
        assert level == pytest.approx(float(kept[out == level].mean()), rel=1e-5)
    assert (x - out).norm() <= x.norm()  # a contraction: bins have their means
    assert (x - kept).norm() <= (1 - 400 / 4000) ** 0.5 * x.norm()


@each("compressor", COMPRESSORS)
@each("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_arrives_as_such(compressor: ChunkTopK, bad: float) -> None:
    x = values(19)
    x[6] = bad
    assert not math.isfinite(float(decoded(compressor, x)[6]))
