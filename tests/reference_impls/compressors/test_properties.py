"""What every compressor is held to, and golden bytes: loud about NaN, packed to the bit, rows as they would be alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from reference_impls.algorithms.half_precision import Halves
from reference_impls.compressors import packing, signs, sparse, transforms
from reference_impls.compressors.bins import DeviationBins
from reference_impls.compressors.compressor import PerTensor
from reference_impls.compressors.levels import GeometricLevels, MinMax, Natural, UniformLevels
from reference_impls.compressors.signs import ScaledSigns
from reference_impls.compressors.sparse import ChunkTopK, TopK
from reference_impls.compressors.transforms import Rotated
from reference_impls.core.compute import Key
from tests.reference_impls.averages import largest_of, normal
from tests.support import each

ceil = math.ceil


def _levels(own: Any, d: int) -> int:
    return ceil((2 * own.levels).bit_length() * d / 8) + 4 * ceil(d / (own.block_size or max(d, 1)))


def _padded(size: int, d: int) -> int:
    """The rest behind whole chunks is filled up to a power of two."""
    return d // size * size + (2 ** ceil(math.log2(d % size)) if d % size else 0)


def _min_max(own: Any, d: int) -> int:
    return ceil(own.bits * d / 8) + 8 * ceil(d / (own.block_size or max(d, 1)))


def _top_k(own: Any, d: int) -> int:
    k = max(1, math.floor(own.ratio * d)) if d else 0
    return 0 if d == 0 else (0 if k == d else ceil(k * max(1, ceil(math.log2(d))) / 8)) + 4 * k


def _chunks(own: Any, d: int) -> int:
    """Places of the chunks of one length together, then the values, in two bits under four means where asked for."""
    found, kept = 0, 0
    for count, length in ((d // own.chunk, own.chunk), (1, d % own.chunk)):
        k = ceil(own.k * length / own.chunk)
        kept += count * k
        found += 0 if k == length else ceil(count * k * max(1, ceil(math.log2(max(length, 2)))) / 8)
    values = 4 * kept if own.value_bits == 32 else ceil(2 * kept / 8) + 16
    return found + values if d else 0


def _bins(own: Any, d: int) -> int:
    return ceil(own.bits * d / 8) + 4 * 2**own.bits if d else 0


COMPRESSORS: dict[Any, Callable[[Any, int], int]] = {
    UniformLevels(7, "l2", 16): _levels,
    UniformLevels(1, "linf", 0): _levels,
    UniformLevels(127, "linf", 64, divisor=4): _levels,
    UniformLevels(7, "linf", 16, rounding="nearest"): _levels,
    Rotated(UniformLevels(7, "linf", 16), 8): lambda own, d: _levels(own.compressor, _padded(own.size, d)),
    GeometricLevels(3, "l2", 16): _levels,
    GeometricLevels(7, "linf", 0): _levels,
    MinMax(4, 16): _min_max,
    MinMax(1, 0): _min_max,
    MinMax(3, 16, "nearest"): _min_max,
    Natural(): lambda own, d: ceil(9 * d / 8),
    Halves("bf16"): lambda own, d: 2 * d,
    Halves("fp16"): lambda own, d: 2 * d,
    ScaledSigns("l1"): lambda own, d: ceil(d / 8) + 4 * (d > 0),
    TopK(0.01): _top_k,
    TopK(0.3): _top_k,
    TopK(1.0): _top_k,
    ChunkTopK(3, 8, 32): _chunks,
    ChunkTopK(3, 8, 2): _chunks,
    ChunkTopK(8, 8, 2): _chunks,
    ChunkTopK(2, 5, 2): _chunks,
    DeviationBins(4): _bins,
    DeviationBins(2): _bins,
    DeviationBins(1): _bins,
}
"""With the bytes of a message of d elements."""
WHOLE = (ScaledSigns, DeviationBins)  # what is not finite spoils the message
BLOCKS = {
    own: getattr(getattr(own, "compressor", own), "block_size", 0 if isinstance(own, WHOLE) else 1)
    for own in COMPRESSORS
}
every_compressor = each("compressor", COMPRESSORS)


@functools.cache
def key(rank: int = 0, start: int = 0) -> Key:
    return Key.of(seed=1, step=2, stage="levels", rank=rank, start=start)


def message(compressor: Any, x: Tensor, k: Key | None = None, offset: int = 0) -> Tensor:
    room = torch.full((*x.shape[:-1], offset + compressor.wire_bytes(x.shape[-1])), 0xA5, dtype=torch.uint8)
    compressor.encode(x, k or key(), room[..., offset:])
    assert bool((room[..., :offset] == 0xA5).all())
    return room[..., offset:]


def there_and_back(compressor: Any, x: Tensor, k: Key | None = None, offset: int = 0) -> Tensor:
    out = torch.full_like(x, 77.0)
    compressor.decode(message(compressor, x, k, offset), out)
    return out


def batch(count: int) -> Key:
    return Key(torch.stack([key(rank).words for rank in range(count)]))


@every_compressor
@each("d", [0, 1, 15, 16, 17, 33, 67, 1000])
def test_any_length_from_any_byte_on(compressor: Any, d: int) -> None:
    x = normal(d, seed=d)
    assert compressor.wire_bytes(d) == COMPRESSORS[compressor](compressor, d)
    back = there_and_back(compressor, x)
    assert bool(back.isfinite().all())
    assert torch.equal(there_and_back(compressor, x, offset=1), back)
    # those may turn a sign's magnitude into many times itself
    if d and not isinstance(compressor, UniformLevels):
        assert float((back - x).abs().max()) <= 2 * float(x.abs().max()) * math.sqrt(
            min(d, BLOCKS[compressor] or d)
        )


@every_compressor
@each("d", [1, 700])
def test_rows_are_as_they_would_be_alone(compressor: Any, d: int) -> None:
    x = normal(3, d, seed=d) * torch.tensor([[1.0], [100.0], [0.01]])
    rows, out = message(compressor, x, batch(3)), torch.empty_like(x)
    compressor.decode(rows, out)
    for r in range(3):
        assert torch.equal(rows[r], message(compressor, x[r], key(r)))
        assert torch.equal(out[r], there_and_back(compressor, x[r], key(r)))


@every_compressor
@each("magnitude", [1e-44, 1e-30, 1.0, 3e38])
def test_any_magnitude(compressor: Any, magnitude: float) -> None:
    """Denormal and huge numbers: finite results on the scale of what was sent; the sum of squares does not overflow."""
    back = there_and_back(compressor, torch.tensor([1.0, -1.0, 0.5, 0.25] * 8) * magnitude)
    if magnitude > 1e38 and (
        getattr(compressor, "format", "") == "fp16"  # documented: who sends it scales first
        or isinstance(compressor, MinMax | Rotated)  # documented: a range beyond float32's
        # the norm itself is
        or (isinstance(compressor, UniformLevels | GeometricLevels) and compressor.norm == "l2")
        or getattr(compressor, "divisor", 1) > 1  # and so is the divided one's
    ):
        assert not bool(back.isfinite().any())
        return
    if magnitude > 1e38 and isinstance(compressor, ScaledSigns | ChunkTopK | DeviationBins):
        return  # of a sum of magnitudes
    assert bool(back.isfinite().all())
    assert float(back.abs().max()) <= 8 * magnitude + 2.0**-125


@every_compressor
@each("bad", [math.nan, math.inf, -math.inf])
@each("at", [0, 20, 36])
def test_what_is_not_finite_stays_so_and_spoils_no_other_block(compressor: Any, bad: float, at: int) -> None:
    x = normal(37)
    x[at] = bad
    back = there_and_back(compressor, x)
    assert not bool(back[at].isfinite())
    size = BLOCKS[compressor] or 37
    first = at // size * size
    if getattr(compressor, "value_bits", 32) == 32:  # four means are of all values
        assert bool(back[:first].isfinite().all())
        assert bool(back[first + size :].isfinite().all())
    if size > 1:
        assert not bool(back[first : first + size].isfinite().any())


@each("compressor", [*(own for own in COMPRESSORS if isinstance(own, ChunkTopK)), ChunkTopK(1, 1, 32)])
@each("d", (0, 1, 5, 8, 17, 67))
def test_the_largest_of_each_chunk_come_back(compressor: ChunkTopK, d: int) -> None:
    x, count = normal(d), 0
    parts = zip(x.split(compressor.chunk), there_and_back(compressor, x).split(compressor.chunk), strict=True)
    for own, out in parts:
        k = math.ceil(compressor.k * len(own) / compressor.chunk)
        count += k
        expected = largest_of(own, k)
        assert (
            torch.equal(out, expected)
            if compressor.value_bits == 32
            else torch.equal(out != 0, expected != 0)
        )
    assert compressor.kept(d) == count


def test_golden_draws() -> None:
    """What the stream decides: the documented draw, at the element's index."""
    x = normal(11)
    u = key(start=5).uniform(11).double()
    back = there_and_back(UniformLevels(3, "linf", 0), x, key(start=5)).double()
    z = (x.abs() / x.abs().max() * 3).double()
    q = z.floor() + (u < z - z.floor())
    torch.testing.assert_close(back, q * x.sign() * x.abs().max() / 3)
    low = 2.0 ** x.abs().log2().floor()
    r = key(start=5).bits(11) & 0x7FFFFF
    up = r < ((x.abs() / low - 1) * 2**23).round()
    assert torch.equal(there_and_back(Natural(), x, key(start=5)), x.sign() * torch.where(up, 2 * low, low))


# ---- golden bytes: what nothing random decides, written down by hand from the formats' descriptions -------------------------


def packed(bits: int, *codes: int) -> bytes:
    """Fewer than 32 codes: one string of bits, least significant first."""
    return sum(code << (bits * i) for i, code in enumerate(codes)).to_bytes(
        -(-bits * len(codes) // 8), "little"
    )


def floats(*numbers: float) -> bytes:
    return torch.tensor(numbers, dtype=torch.float32).numpy().tobytes()


def test_versions() -> None:
    assert (packing.WIRE_VERSION, packing.NIBBLES_VERSION) == (2, 1)
    assert signs.WIRE_VERSION == sparse.WIRE_VERSION == transforms.WIRE_VERSION == 1


CHUNKED = [0.0, 4.0, -1.0, 0.5, -2.0, 0.25, 0.0, 8.0, -3.0, 1.0]
# places 1, 4, 7 at 3 bits each; of the last two, ceil(3 * 2 / 8) = 1, place 0 at 1 bit
PLACES = bytes([1 | 4 << 3 | (7 & 3) << 6, 7 >> 2, 0])
FEW = [1.0 if i == 3 else -2.0 if i == 17 else 0.5 if i == 39 else 0.0 for i in range(40)]


@pytest.mark.parametrize(
    ("compressor", "x", "expected"),
    [
        (UniformLevels(7, "linf", 4), [7, -6, 1, 0, -14], packed(4, 14, 1, 8, 7, 0) + floats(7, 14)),
        # 3.5 and 0.5 go towards 0
        (
            UniformLevels(7, "linf", 4, rounding="nearest"),
            [7, -3.5, 0.6, 0.5, -14],
            packed(4, 14, 4, 8, 7, 0) + floats(7, 14),
        ),
        # sums and differences of pairs: -2, 4, 10, 0; the rest stays
        (
            Rotated(UniformLevels(7, "linf", 4, rounding="nearest"), 2),
            [1, -3, 5, 5, 2],
            packed(4, 6, 10, 14, 7, 14) + floats(10, 2),
        ),
        (GeometricLevels(3, "linf", 4), [1, -0.5, 0.25, 0, -8], packed(3, 6, 1, 4, 3, 0) + floats(1, 8)),
        (MinMax(4, 4), [-3, 12, 0, 5, 2], packed(4, 0, 15, 3, 8, 0) + floats(-3, 1, 2, 0)),
        (Natural(), [1, -2, 0, -0.25, math.inf], packed(9, 127, 256 + 128, 0, 256 + 125, 255)),
        (Halves("bf16"), [1, -2], bytes.fromhex("803f00c0")),
        (Halves("fp16"), [1, -2], bytes.fromhex("003c00c0")),
        (
            ScaledSigns("l1"),
            [1, -2, 0.0, -0.0, 3, -4, 0.5, -0.5, 1],
            bytes([0b01011101, 0b1]) + floats(12 / 9),
        ),
        (PerTensor(ScaledSigns("l1"), (2, 9)), [1, -1, *[-2] * 9], b"\1" + floats(1) + b"\0\0" + floats(2)),
        # 3, 17, 39 of 6 bits: 000011 010001 100111 from the lowest bit on
        (TopK(0.08), FEW, bytes([0b01000011, 0b01110100, 0b10]) + floats(1, -2, 0.5)),
        (ChunkTopK(3, 8, 32), CHUNKED, PLACES + floats(4, -2, 8, -3)),
        # mean magnitude 4.25: bins 0, 2, 1, 2; means 4, 8, -2.5, 0
        (ChunkTopK(3, 8, 2), CHUNKED, PLACES + packed(2, 0, 2, 1, 2) + floats(4, 8, -2.5, 0)),
        # mean 1, s = sqrt(33.5 / 4), width 1.5 s = 4.34; (x - 1) / 4.34 + 2 = 0.96, 2, 2, 2.23, 2.81
        (DeviationBins(2), [-3.5, 1, 1, 2, 4.5], packed(2, 1, 2, 2, 2, 3) + floats(0, -3.5, 4 / 3, 4.5)),
        (DeviationBins(1), [3, 3, 3], packed(1, 1, 1, 1) + floats(0, 3)),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, bytes | list) else "",
)
def test_golden_bytes(compressor: Any, x: list[float], expected: bytes) -> None:
    assert bytes(message(compressor, torch.tensor(x, dtype=torch.float32)).tolist()) == expected


def test_per_tensor_messages_are_of_these_tensors_alone() -> None:
    with pytest.raises(ValueError, match="15 elements"):
        PerTensor(ScaledSigns("l1"), (5, 9, 1)).wire_bytes(14)
