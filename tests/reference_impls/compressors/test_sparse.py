"""The largest coordinates as a message: which, whatever the length; of a vector, of every chunk; in two bits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reference_impls.compressors.sparse import ChunkTopK, TopK, kept
from tests.reference_impls.compressors.test_properties import normal, there_and_back
from tests.support import each


def by_sorting(x: Tensor, k: int) -> Tensor:
    """What must come out: Python's own sort by (-|x|, index)."""
    order = sorted(range(x.numel()), key=lambda i: (-abs(float(x[i])), i))
    out = torch.zeros_like(x)
    out[order[:k]] = x[order[:k]]
    return out


@each("ratio", [0.01, 0.37, 0.5, 1.0])
@each("d", [0, 1, 2, 31, 33, 67])
def test_the_largest_come_back_and_ties_go_to_the_lowest_index(ratio: float, d: int) -> None:
    for x in (normal(d, seed=d), (normal(d, seed=d)).round()):
        assert torch.equal(there_and_back(TopK(ratio), x), by_sorting(x, kept(ratio, d)))


@each(
    "compressor",
    [ChunkTopK(3, 8, 32), ChunkTopK(3, 8, 2), ChunkTopK(1, 1, 32), ChunkTopK(8, 8, 2), ChunkTopK(2, 5, 2)],
)
@each("d", (0, 1, 5, 8, 17, 67))
def test_the_largest_of_each_chunk_come_back(compressor: ChunkTopK, d: int) -> None:
    x, count = normal(d), 0
    parts = zip(x.split(compressor.chunk), there_and_back(compressor, x).split(compressor.chunk), strict=True)
    for own, out in parts:
        k = math.ceil(compressor.k * len(own) / compressor.chunk)
        count += k
        expected = by_sorting(own, k)
        assert (
            torch.equal(out, expected)
            if compressor.value_bits == 32
            else torch.equal(out != 0, expected != 0)
        )
    assert compressor.kept(d) == count


def test_two_bits_are_the_means_of_four_bins() -> None:
    x = normal(4000)
    out, whole = (there_and_back(ChunkTopK(400, 4000, bits), x) for bits in (2, 32))
    assert len(set(out[out != 0].tolist())) == 4
    for level in set(out[out != 0].tolist()):
        assert level == pytest.approx(float(whole[out == level].mean()), rel=1e-5)
    assert (x - out).norm() <= x.norm()  # a contraction: bins have their means
