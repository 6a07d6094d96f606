"""Quotients and rounding at random, to the bit of IEEE division and of the formulas in `compressors`, at half of their cost.

A quotient by a number that many elements share needs no division. The product with the reciprocal, in two parts, is off by
less than a unit in the last place, and from there one step of Newton with the reciprocal rounded to nearest ends at the quotient
rounded to nearest (Markstein), as long as nothing leaves the range of normal numbers. So numerators are scaled by 2^64,
and divisors outside of `ordinary` are left to the division itself.

Rounding at random in fixed point: for integers C = ceil(2^24 z) and U = 2^24 u, ``floor(z) + [u < z - floor(z)]`` is
``(C + 2^24 - 1 - U) >> 24``, exactly, while 2^24 z fits.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
"""The interpreter rounds a product before it adds: there, float64 stands in."""


@triton.jit
def _fma(a, b, c):
    if _INTERPRETED:
        found = (a.to(tl.float64) * b + c).to(tl.float32)
    else:
        found = tl.fma(a, b, c)
    return found


@triton.jit
def ordinary(b):
    """Whether `quotient` may divide by it; false of 0 and of what is not finite."""
    return (b > 9.094947017729282e-13) & (b < 1125899906842624.0)  # 2^-40, 2^50


@triton.jit
def scaled(a):
    """a 2^64, the numerator of `quotient`."""
    return a * 18446744073709551616.0


@triton.jit
def quotient(a, b, reciprocal):
    """2^64 a / b of `scaled` a: rounded to nearest, as division does. reciprocal: 1 / b, rounded to nearest."""
    rest = _fma(reciprocal, -b, 1.0) * reciprocal  # 1 / b - reciprocal; of b alone, and so for all elements
    q = _fma(a, reciprocal, a * rest)
    return _fma(_fma(q, -b, a), reciprocal, q)


@triton.jit
def numerator(a, b):
    """a >= 0 for `share`: `scaled`, and what is nothing to b made negative.

    Division rounds a / b to more than zero above 2^-150; nothing else of quotients as small as that shows in a code.
    """
    a = scaled(a)
    return tl.where(a > b * 1.2924697071141057e-26, a, b * -16777216.0)  # 2^-86, -2^24; NaN is nothing


@triton.jit
def share(a, b, reciprocal, steps):
    """2^24 (a / b) steps of a `numerator`; of one that is nothing, in -1 .. 0.

    The summand keeps what is next to nothing a normal number and is rounded away from everything else.
    """
    q = quotient(a, b, reciprocal)
    return _fma(q, steps * 9.094947017729282e-13, 7.52316384526264e-37)  # 2^-40, 2^-120


@triton.jit
def rounded(z, draw):
    """2^24 z -> one of the two integers next to z >= 0, by the draw's upper 24 bits (uint32)."""
    return (tl.ceil(z).to(tl.int32) + 0xFFFFFF - (draw >> 8).to(tl.int32)) >> 24
