"""Compressors of levels: unbiased by test, within their variance, exact where they must be, loud about NaN, packed to the bit."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from reference_impls.algorithms.half_precision import Halves, power_for
from reference_impls.compressors.levels import GeometricLevels, MinMax, Natural, UniformLevels
from reference_impls.core.compute import Key
from tests.support import each

Coder = UniformLevels | GeometricLevels | MinMax | Natural | Halves
COMPRESSORS: tuple[Coder, ...] = (
    UniformLevels(7, "l2", 16),
    UniformLevels(1, "linf", 0),
    UniformLevels(127, "linf", 64, divisor=4),
    GeometricLevels(3, "l2", 16),
    GeometricLevels(7, "linf", 0),
    MinMax(4, 16),
    MinMax(1, 0),
    MinMax(3, 16, "nearest"),
    Natural(),
    Halves("bf16"),
    Halves("fp16"),
)
BLOCKS = {compressor: getattr(compressor, "block_size", 1) for compressor in COMPRESSORS}
UNBIASED = [compressor for compressor in COMPRESSORS if compressor.unbiased]
every_compressor = each("compressor", COMPRESSORS)


@functools.cache
def key(rank: int = 0, start: int = 0) -> Key:
    return Key.of(seed=1, step=2, stage="levels", rank=rank, start=start)


def message(compressor: Coder, x: Tensor, k: Key | None = None) -> Tensor:
    wire = torch.full((*x.shape[:-1], compressor.wire_bytes(x.shape[-1])), 0xA5, dtype=torch.uint8)
    compressor.encode(x, k or key(), wire)
    return wire


def there_and_back(compressor: Coder, x: Tensor, k: Key | None = None) -> Tensor:
    out = torch.full_like(x, 77.0)
    compressor.decode(message(compressor, x, k), out)
    return out


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def batch(keys: list[Key]) -> Key:
    return Key(torch.stack([k.words for k in keys]))


def many(compressor: Coder, x: Tensor, draws: int) -> Tensor:
    """[draws, d] in float64: one row a stream."""
    rows = x.expand(draws, -1).contiguous()
    return there_and_back(compressor, rows, batch([key(r) for r in range(draws)])).double()


@each("compressor", UNBIASED)
def test_unbiased(compressor: Coder) -> None:
    """Every coordinate's mean over 4000 draws is within 5 standard errors of the number (of 100 coordinates at once)."""
    x = torch.linspace(0.05, 1, 100) * normal(100).sign()  # nothing so small that it is hardly ever sent
    x[[3, 40]] = 0.0
    seen = many(compressor, x, 4000)
    off = (seen.mean(0) - x.double()).abs()
    assert bool((off <= 5 * seen.std(0) / 4000**0.5 + 1e-6 * x.abs()).all())
    assert float((seen.std(0) > 0).double().mean()) > 0.7


@every_compressor
@each("d", [0, 1, 15, 16, 17, 33, 67, 1000])
def test_any_length(compressor: Coder, d: int) -> None:
    x = normal(d, seed=d)
    wire = message(compressor, x)
    back = there_and_back(compressor, x)
    size = BLOCKS[compressor] or max(d, 1)
    if isinstance(compressor, UniformLevels | GeometricLevels):
        assert len(wire) == math.ceil((2 * compressor.levels).bit_length() * d / 8) + 4 * math.ceil(d / size)
    elif isinstance(compressor, MinMax):
        assert len(wire) == math.ceil(compressor.bits * d / 8) + 8 * math.ceil(d / size)
    else:
        assert len(wire) == (2 * d if isinstance(compressor, Halves) else math.ceil(9 * d / 8))
    assert bool(back.isfinite().all())
    if d and not isinstance(
        compressor, UniformLevels
    ):  # those may turn a sign's magnitude into many times itself
        assert float((back - x).abs().max()) <= 2 * float(x.abs().max()) * math.sqrt(min(d, size))


@every_compressor
@each("d", [1, 67])
def test_rows_are_as_they_would_be_alone(compressor: Coder, d: int) -> None:
    x = normal(3, d, seed=d) * torch.tensor([[1.0], [100.0], [0.01]])
    keys = [key(r) for r in range(3)]
    rows = message(compressor, x, batch(keys))
    assert torch.equal(rows, torch.stack([message(compressor, x[r], keys[r]) for r in range(3)]))
    out = torch.empty_like(x)
    compressor.decode(rows, out)
    for r in range(3):
        assert torch.equal(out[r], there_and_back(compressor, x[r], keys[r]))


@every_compressor
@each("magnitude", [1e-44, 1e-30, 1.0, 3e38])
def test_any_magnitude(compressor: Coder, magnitude: float) -> None:
    """Denormal and huge numbers: finite results on the scale of what was sent; the sum of squares does not overflow."""
    x = torch.tensor([1.0, -1.0, 0.5, 0.25] * 8) * magnitude
    back = there_and_back(compressor, x)
    if isinstance(compressor, Halves) and compressor.format == "fp16" and magnitude > 1:
        assert bool(back.isinf().all())  # documented: who sends it scales first
        return
    if isinstance(compressor, MinMax) and magnitude > 2e38:
        assert not bool(back.isfinite().any())  # documented: a range beyond float32's
        return
    if (
        isinstance(compressor, UniformLevels | GeometricLevels)
        and compressor.norm == "l2"
        and magnitude > 1e38
    ):
        assert not bool(back.isfinite().any())  # the norm itself is beyond float32
        return
    if getattr(compressor, "divisor", 1) > 1 and magnitude > 1e38:
        assert not bool(back.isfinite().any())  # and so is the divided one's
        return
    assert bool(back.isfinite().all())
    assert float(back.abs().max()) <= 8 * magnitude + 2.0**-125


@every_compressor
@each("bad", [math.nan, math.inf, -math.inf])
@each("at", [0, 20, 36])
def test_what_is_not_finite_stays_so_and_spoils_no_other_block(
    compressor: Coder, bad: float, at: int
) -> None:
    x = normal(37)
    x[at] = bad
    back = there_and_back(compressor, x)
    size = BLOCKS[compressor] or 37
    first = at // size * size
    assert not bool(back[at].isfinite())
    assert bool(back[:first].isfinite().all())
    assert bool(back[first + size :].isfinite().all())
    if size > 1:
        assert not bool(back[first : first + size].isfinite().any())


def test_exact_where_it_should_be() -> None:
    unit = torch.zeros(64)
    unit[17] = -4.5
    for compressor in (UniformLevels(1, "l2", 0), UniformLevels(7, "l2", 16), GeometricLevels(5, "l2", 16)):
        assert torch.equal(there_and_back(compressor, unit), unit)  # basis vectors
    powers = torch.tensor([sign * 2.0**e for e in range(-126, 128) for sign in (1, -1)])
    assert torch.equal(there_and_back(Natural(), powers), powers)
    geometric = torch.tensor([1.0, -0.5, 0.25, 0.125, 0.0, -0.125]) * 3
    assert torch.equal(there_and_back(GeometricLevels(4, "linf", 0), geometric), geometric)
    grid = torch.arange(-3.0, 13.0)
    for rounding in ("nearest", "stochastic"):
        assert torch.equal(there_and_back(MinMax(4, 16, rounding), grid), grid)  # type: ignore[arg-type]


def test_power_for_leaves_room_for_every_sum() -> None:
    for n in (1, 2, 3, 7, 8, 64, 1024):
        for largest in (1e-45, 1e-30, 6e-8, 1.0, 1.999, 2.0, 65504.0, 1e5, 3.4e38):
            top = torch.tensor(largest)
            k = int(power_for(top, n))
            scaled = top * 2.0**k
            total = sum([scaled.to(torch.float16)] * n, torch.zeros((), dtype=torch.float16))
            assert bool(total.isfinite())
            assert float(scaled) * n <= 2**15
            assert float(scaled) * n > 2**12 or k == 126
    assert not power_for(torch.tensor([0.0, math.inf, math.nan]), 4).any()


def by_hand(bits: int, codes: list[int], numbers: list[float]) -> bytes:
    """Fewer than 32 codes: one string of bits, least significant first; then float32."""
    whole = sum(code << (bits * i) for i, code in enumerate(codes))
    floats = torch.tensor(numbers, dtype=torch.float32)
    return whole.to_bytes(-(-bits * len(codes) // 8), "little") + floats.numpy().tobytes()


def test_golden_bytes() -> None:
    """What nothing random decides, written down by hand from the formats' descriptions."""
    x = torch.tensor([7.0, -6.0, 1.0, 0.0, -14.0])
    assert bytes(message(UniformLevels(7, "linf", 4), x).tolist()) == by_hand(4, [14, 1, 8, 7, 0], [7, 14])
    x = torch.tensor([1.0, -0.5, 0.25, 0.0, -8.0])
    assert bytes(message(GeometricLevels(3, "linf", 4), x).tolist()) == by_hand(3, [6, 1, 4, 3, 0], [1, 8])
    x = torch.tensor([-3.0, 12.0, 0.0, 5.0, 2.0])
    assert bytes(message(MinMax(4, 4), x).tolist()) == by_hand(4, [0, 15, 3, 8, 0], [-3, 1, 2, 0])
    x = torch.tensor([1.0, -2.0, 0.0, -0.25, math.inf])
    assert bytes(message(Natural(), x).tolist()) == by_hand(9, [127, 256 + 128, 0, 256 + 125, 255], [])
    x = torch.tensor([1.0, -2.0])
    assert bytes(message(Halves("bf16"), x).tolist()) == bytes.fromhex("803f00c0")
    assert bytes(message(Halves("fp16"), x).tolist()) == bytes.fromhex("003c00c0")


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
