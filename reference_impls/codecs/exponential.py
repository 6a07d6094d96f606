"""Exponential dithering: a sign and a power of two in one byte, and an unbiased addition. Wire format version 1.

Spec: Global-QSGD, arXiv 2305.18627 (after natural compression, arXiv 1905.10988).

The format, to the bit
----------------------
One byte an element. Bit 7 is the sign (1 = negative), bits 0-6 are c: 0 is the value zero, c in 1 .. 127 is the
magnitude ``2**-c * N``. The byte 128 (a negative zero) is never produced and reads as zero. The normaliser is
``N = M * 2**(1 + L)``, where M >= |x_i| on every rank and L is the *head-room*: how often the largest magnitude may
double on the way to the sum, ceil(log2 n) for any balanced order of additions. Codes of single ranks then have
c >= 1 + L and no sum can reach c = 0.

*Encode*: ``y = |x| / M`` (cut at 1, since a 2-norm may be rounded down) is a float32 with biased exponent E and 23-bit
mantissa m; ``c = 128 + L - E - [r < m]`` where r are the lowest 23 bits of the element's random word: the upper of the
two neighbouring powers of two with probability m / 2**23, hence unbiased. c is cut at 127 (below, the magnitude is
rounded up to ``2**-127 N``). y below 2**-126, the subnormal numbers, is zero: relative to M nobody sees it, and it
keeps the code independent of how a processor treats subnormal numbers.

*Add* two bytes of magnitudes c <= c + D, random word r: of equal signs, c becomes c - 1 with probability 2**-D; of
different signs, the smaller c's sign wins and c becomes c + 1 with probability 2**-(D-1), and D = 0 gives zero; a zero
is the identity; c above 127 is zero, and so is c = 0 (too little head-room). "With probability 2**-k" means that the k
lowest bits of r are all 0 (at most 31 of them, so that for k > 31 the sum is off by less than 2**-31 of itself; below
that it is unbiased exactly). The addition is symmetric.

*Decode*: ``+-2**(1 + L - c) * (M / n)``.

M = 0 encodes as zeros. Not finite: as in `codecs.dithering` the shared scale is then +inf or NaN, the codes are 0 where
y is 0 or NaN, and decoding multiplies by the scale: every element is NaN or an infinity on every rank.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from reference_impls.codecs.passes import Draw, Pass
from reference_impls.compilation import compiled
from reference_impls.errors import UnsupportedError
from reference_impls.randomness import Key

__all__ = ["LARGEST_HEAD_ROOM", "WIRE_VERSION", "add", "add_with", "decode", "encode", "wire_bytes"]

WIRE_VERSION: Final = 1
LARGEST_HEAD_ROOM: Final = 62
"""Half of the code range is then still left for magnitudes; it is the depth of a balanced tree over 2**62 ranks."""

_MANTISSA: Final = 0x7FFFFF


def wire_bytes(numel: int) -> int:
    """Bytes on the wire for `numel` elements: one each."""
    return numel


def _check(head_room: int) -> None:
    if not 0 <= head_room <= LARGEST_HEAD_ROOM:
        raise UnsupportedError(
            f"a head-room of {head_room} doublings does not fit the 7-bit exponent (0 .. {LARGEST_HEAD_ROOM}): "
            "add in a balanced order, whose head-room is ceil(log2 n)"
        )


def _code(x: Tensor, scale: Tensor, draw: Draw, head_room: int, _: int) -> Tensor:
    y = (x.abs() / scale).clamp(max=1.0)
    y = torch.where(y != y, 0.0, y).view(torch.int32)  # NaN: 0 / 0, or something that is not finite
    exponent = y >> 23
    up = ((draw() & _MANTISSA) - (y & _MANTISSA)) >> 31  # -1 where the draw is below
    c = (128 + head_room - exponent + up).clamp(max=127)
    code = c | (x.view(torch.int32) >> 24 & 128)
    return torch.where(exponent == 0, 0, code)


_encode: Final = Pass(_code, "encode", "exponential")


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


def _sum(a: Tensor, b: Tensor, draw: Draw, _: int, __: int) -> Tensor:
    return _add_words(a, b, draw())


_add: Final = Pass(_sum, "add")


@compiled
def _decode(wire: Tensor, bias: Tensor, scale: Tensor, world_size: int, out: Tensor) -> None:
    """bias: int32 [], 128 + L; a Python integer would make the exponent one of 64 bits on a GPU, which is no float32's."""
    code = wire.to(torch.int32)
    c = code & 127
    magnitude = ((bias - c) << 23).view(torch.float32)
    value = torch.where(c == 0, 0.0, torch.where(code > 127, -magnitude, magnitude))
    out.copy_(value * (scale / torch.full_like(scale, world_size)))


def encode(x: Tensor, scale: Tensor, head_room: int, key: Key, wire: Tensor) -> None:
    """Round to powers of two, without bias.

    Args:
        x: float32 [..., d].
        scale: float32, M; broadcasts against `x` (one number, [..., 1], or one an element).
        head_room: L, doublings that the coming additions may cause.
        key: private to the rank; element i of `x` uses element i of the stream.
        wire: uint8 [..., d].
    """
    _check(head_room)
    _encode(x, scale, key.words.to(x.device), wire, head_room)


def add(a: Tensor, b: Tensor, key: Key, out: Tensor) -> None:
    """Unbiased sum of two vectors of codes of one normaliser: uint8 [..., d] each, into `out` (may be `a` or `b`)."""
    _add(a, b, key.words.to(a.device), out)


def add_with(a: Tensor, b: Tensor, random: Tensor) -> Tensor:
    """`add` with given random words, int32 [..., d]: a pure function, for the enumeration of all outcomes."""
    return _add_words(a, b, random).to(torch.uint8)


def decode(wire: Tensor, scale: Tensor, head_room: int, world_size: int, out: Tensor) -> None:
    """Codes of a sum over `world_size` ranks -> mean, float32 `out` [..., d]. `scale` and `head_room` as encoded."""
    _check(head_room)
    bias = torch.full((), 128 + head_room, dtype=torch.int32, device=wire.device)
    _decode(wire, bias, scale, world_size, out)
