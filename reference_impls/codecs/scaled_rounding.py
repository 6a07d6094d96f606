"""Numbers times a factor, rounded to integers and cut at a limit: IntSGD's codes. Wire format version 1.

Spec: IntSGD, arXiv 2102.08374. ``q = clip(Int(a x), -limit, limit)`` with Int(z) = floor(z) + [u < z - floor(z)]
(``stochastic``, unbiased where nothing is cut; u is the stream's uniform of the element's index) or to nearest, ties to
even. The format is one signed integer an element; how it travels is the affair of `reducers.integer_sum`. `room` is the
limit: the largest one for which n codes add up within b bits and which float32 can say. An integer has no room for NaN:
what is not finite is coded as 0 and counted, and the caller sends the count along.
"""

from __future__ import annotations

from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.codecs.sums import largest
from reference_impls.codecs.tiles import Draw, Pass
from reference_impls.compilation import compiled
from reference_impls.errors import UnsupportedError
from reference_impls.randomness import Key, as_uniform

__all__ = ["ROUNDINGS", "WIRE_VERSION", "Rounding", "encode", "room"]

WIRE_VERSION: Final = 1
Rounding = Literal["stochastic", "nearest"]
ROUNDINGS: Final[tuple[Rounding, ...]] = ("stochastic", "nearest")
_PRECISION: Final = 24  # bits of a float32's integer part


def room(bits: int, n: int) -> int:
    """Largest code of one of n ranks such that a sum fits a signed `bits`-bit integer."""
    largest = ((1 << (bits - 1)) - 1) // n
    if largest < 1:
        raise UnsupportedError(
            f"{bits} bits hold sums of -{(1 << (bits - 1)) - 1} .. {(1 << (bits - 1)) - 1}, which leaves nothing to "
            f"each of {n} ranks: use more bits"
        )
    below = max(largest.bit_length() - _PRECISION, 0)
    return largest >> below << below


def _code(x: Tensor, factor: Tensor, draw: Draw, limit: int, _: int) -> Tensor:
    z = x * factor
    low = z.floor()
    q = torch.where(as_uniform(draw()) < z - low, low + 1, low)
    return torch.where(q != q, 0.0, q).clamp(-limit, limit).to(torch.int32)


_stochastic: Final = Pass(_code, "stochastic")


@compiled
def _nearest(x: Tensor, factor: Tensor, limit: int, codes: Tensor) -> None:
    q = (x * factor).round()
    codes.copy_(torch.where(q != q, 0.0, q).clamp(-limit, limit).to(torch.int32))


def encode(x: Tensor, factor: Tensor, limit: int, rounding: Rounding, key: Key, codes: Tensor) -> Tensor:
    """Round `x` times `factor`.

    Args:
        x: float32 [..., d].
        factor: float32, a; broadcasts against `x`.
        limit: from `room`.
        key: private to the rank; element i of `x` uses element i of the stream.
        codes: int32 [..., d], filled with values in -limit .. limit.

    Returns:
        int32 [...]: 1 where an x is not finite, or a factor, so that codes of 0 mean nothing; else 0.
    """
    if rounding == "stochastic":
        _stochastic(x, factor, key.words.to(x.device), codes, limit)
    else:
        _nearest(x, factor, limit, codes)
    if not x.shape[-1]:
        return x.new_zeros(x.shape[:-1], dtype=torch.int32)
    fine = (largest(factor) if factor.dim() else factor).isfinite()
    return (~(largest(x).isfinite() & fine)).to(torch.int32)
