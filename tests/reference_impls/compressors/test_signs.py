"""One bit an element, where the format says that it is; signs times scales."""

from __future__ import annotations

import math

import numpy as np
import torch

from reference_impls.compressors import signs
from tests.support import each

LENGTHS = [0, 1, 7, 8, 31, 32, 33, 67]


def coins(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5


def packed(bits):
    wire = torch.full((*bits.shape[:-1], signs.wire_bytes(bits.shape[-1])), 0xAA, dtype=torch.uint8)
    signs.pack(bits, wire)
    return wire


def oracle(bits):
    """The documented format, bit by bit, with Python integers."""
    d = len(bits)
    width = d // 32
    words = [0] * width
    for i in range(32 * width):
        words[i % width] |= bits[i] << (i // width)
    data = bytearray(b"".join(word.to_bytes(4, "little") for word in words)) + bytearray(-(-(d % 32) // 8))
    for k in range(d % 32):
        data[4 * width + k // 8] |= bits[32 * width + k] << (k % 8)
    return list(data)


@each("d", [*LENGTHS, 96, 1003, 4096])
def test_format_and_round_trip(d):
    bits = coins(d, seed=d)
    wire = packed(bits)
    assert wire.numel() == signs.wire_bytes(d) == math.ceil(d / 8)
    assert wire.tolist() == oracle([int(b) for b in bits])
    out = coins(d, seed=d + 1)
    signs.unpack(wire, out)
    assert torch.equal(out, bits)
    for dtype in (torch.float32, torch.float64, torch.int8):
        values = torch.empty(d, dtype=dtype)
        signs.unpack_signs(wire, values)
        assert torch.equal(values, bits.to(dtype) * 2 - 1)


@each("zero", [True, False])
def test_zero_is_the_callers_choice_whatever_its_sign(zero):
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-45, math.inf, -math.inf, math.nan, 2.0, -2.0] * 8)
    wire = torch.empty(signs.wire_bytes(72), dtype=torch.uint8)
    signs.pack_signs(x, wire, zero=zero)
    out = torch.empty(72, dtype=torch.bool)
    signs.unpack(wire, out)
    assert out.view(8, 9).tolist() == [[zero, zero, True, False, True, False, False, True, False]] * 8


@each(("n", "d"), [(1, 5), (3, 67), (8, 320)])
def test_decode_accumulate_adds_rows_in_their_order(n, d):
    bits = coins(n, d, seed=n + d)
    scales = torch.rand(n, generator=torch.Generator().manual_seed(n)) * 10.0 ** torch.arange(n)
    out = torch.randn(d, generator=torch.Generator().manual_seed(2))
    expected = out.clone().numpy()
    for row, scale in zip(bits.numpy(), scales.numpy(), strict=True):
        expected = expected + np.where(row, scale, -scale)
    signs.decode_accumulate(packed(bits), scales, out)
    assert out.tolist() == expected.tolist()
