"""The block cosine transform against scipy's, orthogonality, blocks at the edges, messages."""

from __future__ import annotations

import math

import torch
from scipy.fft import dctn

from reference_impls.compressors.transforms import WIRE_VERSION, BlockDCT
from tests.reference_impls.averages import normal
from tests.support import each

SHAPES = [(), (67,), (16, 8), (17, 23), (13, 1), (2, 3, 5)]


@each("shape", SHAPES)
@each("side", [4, 8, 64])
def test_every_block_is_scipy_s_and_comes_back(shape: tuple[int, ...], side: int) -> None:
    compressor, x = BlockDCT(shape, side), normal(math.prod(shape))
    matrix = x.view(shape[0], -1) if len(shape) > 1 else x.view(1, -1)
    regions, coefficients = compressor.regions(), compressor.transform(x)
    assert sum(r.numel for r in regions) == x.numel()
    assert all(r.h <= side and r.w <= side for r in regions)
    for r, own in zip(regions, coefficients, strict=True):
        blocks = own.view(r.rows, r.columns, r.h, r.w)
        for i in range(r.rows):
            for j in range(r.columns):
                top, left = r.top + i * r.h, r.left + j * r.w
                block = matrix[top : top + r.h, left : left + r.w].numpy()
                expected = torch.from_numpy(dctn(block, type=2, norm="ortho"))
                torch.testing.assert_close(blocks[i, j], expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(compressor.inverse(coefficients), x, rtol=0, atol=1e-5)


@each("shape", SHAPES)
def test_a_message_holds_the_k_largest_of_every_block(shape: tuple[int, ...]) -> None:
    compressor, x = BlockDCT(shape, side=8, k=5), normal(math.prod(shape))
    wire = torch.empty(compressor.wire_bytes(), dtype=torch.uint8)
    compressor.encode(x, wire)
    bits = 0
    for r, sent, own in zip(
        compressor.regions(), compressor.coefficients(wire), compressor.transform(x), strict=True
    ):
        area, count = r.h * r.w, r.rows * r.columns
        k = min(5, area)
        places = 0 if k == area else -(-count * k * max(1, math.ceil(math.log2(area))) // 8)
        bits += 8 * places + 32 * count * k
        for there, all_of_it in zip(sent.view(count, area), own.view(count, area), strict=True):
            largest = all_of_it.abs().argsort(descending=True)[:k]
            assert torch.equal(there[largest], all_of_it[largest])
            assert (there != 0).sum() <= k
    assert 8 * compressor.wire_bytes() == bits


def test_golden_bytes() -> None:
    """One block of 2 x 2, k = 2: places 0 and 3 at two bits each, then their values."""
    assert WIRE_VERSION == 1
    compressor = BlockDCT((2, 2), side=2, k=2)
    wire = torch.empty(compressor.wire_bytes(), dtype=torch.uint8)
    compressor.encode(torch.tensor([3.0, 1.0, 1.0, 2.0]), wire)
    sent = torch.tensor([3.5, 1.5])
    assert wire[0].item() == 0 | 3 << 2
    torch.testing.assert_close(wire[1:].clone().view(torch.float32), sent, rtol=1e-6, atol=0)
