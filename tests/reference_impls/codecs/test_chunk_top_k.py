"""Top-k of chunks: golden bytes, lengths, what is kept, what two bits make of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reference_impls.codecs.sparse import WIRE_VERSION, ChunkTopK
from reference_impls.compute import Key
from tests.support import each

KEY = Key(torch.zeros(3, dtype=torch.int32))
CODECS = [
    ChunkTopK(3, 8, 32),
    ChunkTopK(3, 8, 2),
    ChunkTopK(1, 1, 32),
    ChunkTopK(8, 8, 2),
    ChunkTopK(2, 5, 2),
]


def message(codec: ChunkTopK, x: Tensor) -> Tensor:
    wire = torch.full((*x.shape[:-1], codec.wire_bytes(x.shape[-1])), 77, dtype=torch.uint8)
    codec.encode(x, KEY, wire)
    return wire


def decoded(codec: ChunkTopK, x: Tensor) -> Tensor:
    out = torch.full_like(x, 5.0)
    codec.decode(message(codec, x), out)
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


@each("codec", CODECS)
@each("d", (0, 1, 5, 8, 17, 67))
def test_all_lengths(codec: ChunkTopK, d: int) -> None:
    """The k largest of each chunk arrive, others are 0; the length is the formula's; a row packs as it would alone."""
    x = values(d)
    out = decoded(codec, x)
    kept = 0
    for first in range(0, d, codec.chunk):
        own = x[first : first + codec.chunk]
        k = math.ceil(codec.k * len(own) / codec.chunk)
        kept += k
        largest = own.abs().argsort(descending=True)[:k]
        there = out[first : first + codec.chunk] != 0
        assert set(there.nonzero().view(-1).tolist()) == set(largest.tolist())
        if codec.value_bits == 32:
            assert torch.equal(out[first : first + codec.chunk][largest], own[largest])
    assert codec.kept(d) == kept
    batch = torch.stack([x, -x, values(d, 1)])
    assert torch.equal(message(codec, batch)[2], message(codec, values(d, 1)))
    assert torch.equal(decoded(codec, batch)[1], -out if codec.value_bits == 32 else decoded(codec, -x))


def test_two_bits_are_the_means_of_four_bins() -> None:
    x = values(4000)
    codec = ChunkTopK(400, 4000, 2)
    out, kept = decoded(codec, x), decoded(ChunkTopK(400, 4000, 32), x)
    assert len(set(out[out != 0].tolist())) == 4
    for level in set(out[out != 0].tolist()):
        assert level == pytest.approx(float(kept[out == level].mean()), rel=1e-5)
    assert (x - out).norm() <= x.norm()  # a contraction: bins have their means
    assert (x - kept).norm() <= (1 - 400 / 4000) ** 0.5 * x.norm()


@each("codec", CODECS)
@each("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_arrives_as_such(codec: ChunkTopK, bad: float) -> None:
    x = values(19)
    x[6] = bad
    assert not math.isfinite(float(decoded(codec, x)[6]))
