"""Gradients rounded at random under a scale that all ranks share, to codes that may be added: Global-QSGD's two ditherings.

Spec: Global-QSGD, arXiv 2305.18627. With a scale M >= |x_i| on every rank, rank i sends codes of x_i / M, which are added
before they are decoded. Both are unbiased, but for draws of 24 bits, and of wire format version 1. M = 0 encodes as zeros and
decodes to zeros. |x| may exceed M by the rounding of M (2-norms): x / M is cut. Not finite: a NaN or an infinity anywhere makes
the shared scale +inf or NaN (the aggregator maps NaN to +inf before a maximum, which on gloo loses NaN). The codes are then 0
where x / M is NaN or 0, and decoding gives NaN or an infinity in every element on every rank: 0 * inf is NaN. Nothing is
dropped in silence.

Standard dithering: s equal levels (`encode`, `decode`)
--------------------------------------------------------
``q_i = sign(x_i) * sr(|x_i| / M * s)``, which any integer all-reduce may add, and everybody decodes
``sum(q_i) * M / (s * n)``; sr(z) = floor(z) + [u < z - floor(z)], u `compute.uniform` at the element's index. The format:
one signed integer of 4, 8 or 16 bits an element, in -s .. s with ``s = floor((2**(b-1) - 1) / n)``, so that a sum over n
ranks stays within -(2**(b-1) - 1) .. 2**(b-1) - 1 whatever the data are. `aggregators.integer_sum` carries the integers.

Exponential dithering: a sign and a power of two in one byte (`encode_powers`, `add_powers`, `decode_powers`)
--------------------------------------------------------------------------------------------------------------
After natural compression, arXiv 1905.10988. Bit 7 is the sign (1 = negative), bits 0-6 are c: 0 is the value zero, c in
1 .. 127 is the magnitude ``2**-c * N``. The byte 128 (a negative zero) is never produced and reads as zero. The normaliser is
``N = M * 2**(1 + L)``, where L is the *head-room*: how often the largest magnitude may double on the way to the sum,
ceil(log2 n) for any balanced order of additions. Codes of single ranks then have c >= 1 + L and no sum can reach c = 0.

*Encode*: ``y = |x| / M`` is a float32 with biased exponent E and 23-bit mantissa m; ``c = 128 + L - E - [r < m]`` where r are
the lowest 23 bits of the element's random word: the upper of the two neighbouring powers of two with probability m / 2**23,
hence unbiased. c is cut at 127 (below, the magnitude is rounded up to ``2**-127 N``). y below 2**-126, the subnormal numbers,
is zero: relative to M nobody sees it, and it keeps the code independent of how a processor treats subnormal numbers.

*Add* two bytes of magnitudes c <= c + D, random word r: of equal signs, c becomes c - 1 with probability 2**-D; of
different signs, the smaller c's sign wins and c becomes c + 1 with probability 2**-(D-1), and D = 0 gives zero; a zero
is the identity; c above 127 is zero, and so is c = 0 (too little head-room). "With probability 2**-k" means that the k
lowest bits of r are all 0 (at most 31 of them, so that for k > 31 the sum is off by less than 2**-31 of itself; below
that it is unbiased exactly). The addition is symmetric.

*Decode*: ``+-2**(1 + L - c) * (M / n)``.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from reference_impls.compressors.tiles import Draw, Pass
from reference_impls.core import compute
from reference_impls.core.compute import Key, as_uniform, compiled
from reference_impls.core.errors import UnsupportedError

WIRE_VERSION: Final = 1


def levels(bits: int, world_size: int) -> int:
    """s, the levels of one rank, such that a sum over all ranks cannot overflow a signed `bits`-bit integer."""
    largest = (1 << (bits - 1)) - 1
    if largest < world_size:
        raise UnsupportedError(
            f"{bits} bits hold sums of -{largest} .. {largest}, which leaves no level to each of {world_size} ranks: "
            "use more bits"
        )
    return largest // world_size


def rounded(x: Tensor, scale: Tensor, count: int, drawn: Tensor | float) -> Tensor:
    """The formula, element by element: float32, the draws in [0, 1) -> int32 in -s .. s; 0.5 rounds to nearest."""
    z = x.abs() / scale * count
    z = torch.where(z != z, 0.0, z).clamp(max=count)  # NaN: 0 / 0, or something that is not finite
    low = z.floor()
    q = torch.where(drawn < z - low, low + 1, low)
    return torch.where(x < 0, -q, q).to(torch.int32)


def restored(total: Tensor, scale: Tensor, divisor: int) -> Tensor:
    """The inverse of a sum: integers times scale / divisor. By a number, a GPU multiplies by its reciprocal."""
    return total * (scale / torch.full_like(scale, divisor))


def _code(x: Tensor, scale: Tensor, draw: Draw, count: int) -> Tensor:
    return rounded(x, scale, count, as_uniform(draw()))


_encode: Final = Pass(_code, "encode", "dithering")


@compiled
def _decode(total: Tensor, scale: Tensor, divisor: int, out: Tensor) -> None:
    out.copy_(restored(total, scale, divisor))


def encode(x: Tensor, scale: Tensor, count: int, key: Key, codes: Tensor) -> None:
    """Round `x` to `count` levels of `scale`.

    Args:
        x: float32 [..., d].
        scale: float32, M; broadcasts against `x` (one number, [..., 1], or one an element).
        count: s, from `levels`.
        key: private to the rank; element i of `x` uses element i of the stream.
        codes: int8, int16 or int32 [..., d], filled with values in -s .. s.
    """
    # Compilers store int16 one element at a time, 20 times slower than in two steps.
    target = compute.empty(codes.shape, torch.int32, x.device) if codes.dtype == torch.int16 else codes
    _encode(x, scale, key.on(x.device), target, count)
    if target is not codes:
        codes.copy_(target)


def decode(total: Tensor, scale: Tensor, count: int, world_size: int, out: Tensor) -> None:
    """Sum of the codes of all ranks, any integer dtype [..., d], and their `scale` -> mean, float32 `out` [..., d]."""
    wide = compute.empty_like(total, torch.int32).copy_(total) if total.dtype == torch.int16 else total
    _decode(wide, scale, count * world_size, out)


_MANTISSA: Final = 0x7FFFFF


def _power_code(x: Tensor, scale: Tensor, draw: Draw, head_room: int) -> Tensor:
    y = (x.abs() / scale).clamp(max=1.0)
    y = torch.where(y != y, 0.0, y).view(torch.int32)  # NaN: 0 / 0, or something that is not finite
    exponent = y >> 23
    up = ((draw() & _MANTISSA) - (y & _MANTISSA)) >> 31  # -1 where the draw is below
    c = (128 + head_room - exponent + up).clamp(max=127)
    code = c | (x.view(torch.int32) >> 24 & 128)
    return torch.where(exponent == 0, 0, code)


_encode_powers: Final = Pass(_power_code, "encode_powers", "exponential")


def _add_words(a: Tensor, b: Tensor, random: Tensor) -> Tensor:
    a = a.to(torch.int32)
    b = b.to(torch.int32)
    ca = a & 127
    cb = b & 127
    distance = (ca - cb).abs()
    opposite = (a ^ b) >> 7  # 1 if the signs differ
    tosses = (distance - opposite).clamp(0, 31)
    hit = (random & ~(-1 << tosses)) == 0
    step = torch.where(hit, 2 * opposite - 1, 0)
    c = torch.minimum(ca, cb) + step
    sign = torch.where(ca <= cb, a, b) & 128
    both = torch.where((c == 0) | (c > 127) | ((opposite == 1) & (distance == 0)), 0, c | sign)
    return torch.where(ca == 0, torch.where(cb == 0, 0, b), torch.where(cb == 0, a, both))


def _power_sum(a: Tensor, b: Tensor, draw: Draw, _: int) -> Tensor:
    return _add_words(a, b, draw())


_add_powers: Final = Pass(_power_sum, "add_powers")


@compiled
def _decode_powers(wire: Tensor, bias: Tensor, scale: Tensor, world_size: int, out: Tensor) -> None:
    """bias: int32 [], 128 + L; a Python integer would make the exponent one of 64 bits on a GPU, which is no float32's."""
    code = wire.to(torch.int32)
    c = code & 127
    magnitude = ((bias - c) << 23).view(torch.float32)
    value = torch.where(c == 0, 0.0, torch.where(code > 127, -magnitude, magnitude))
    out.copy_(value * (scale / torch.full_like(scale, world_size)))


def encode_powers(x: Tensor, scale: Tensor, head_room: int, key: Key, wire: Tensor) -> None:
    """Round to powers of two, without bias.

    Args:
        x: float32 [..., d].
        scale: float32, M; broadcasts against `x` (one number, [..., 1], or one an element).
        head_room: L, doublings that the coming additions may cause; ceil(log2 n) if they are balanced.
        key: private to the rank; element i of `x` uses element i of the stream.
        wire: uint8 [..., d].
    """
    _encode_powers(x, scale, key.on(x.device), wire, head_room)


def add_powers(a: Tensor, b: Tensor, key: Key, out: Tensor) -> None:
    """Unbiased sum of two vectors of codes of one normaliser: uint8 [..., d] each, into `out` (may be `a` or `b`)."""
    _add_powers(a, b, key.on(a.device), out)


def decode_powers(wire: Tensor, scale: Tensor, head_room: int, world_size: int, out: Tensor) -> None:
    """Codes of a sum over `world_size` ranks -> mean, float32 `out` [..., d]. `scale` and `head_room` as encoded."""
    bias = torch.full((), 128 + head_room, dtype=torch.int32, device=wire.device)
    _decode_powers(wire, bias, scale, world_size, out)
