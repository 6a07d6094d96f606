"""Standard dithering: stochastic rounding onto s equal levels of a scale that all ranks share. Wire format version 1.

Spec: Global-QSGD, arXiv 2305.18627. With a scale M >= \\|x_i\\| on every rank, rank i sends the integers
``q_i = sign(x_i) * sr(\\|x_i\\| / M * s)``, which any integer all-reduce may add, and everybody decodes
``sum(q_i) * M / (s * n)``. Unbiased: E[sr(z)] = z with sr(z) = floor(z) + [u < z - floor(z)].

The format: one signed integer of 4, 8 or 16 bits an element, in -s .. s with ``s = floor((2**(b-1) - 1) / n)``, so
that a sum over n ranks stays within -(2**(b-1) - 1) .. 2**(b-1) - 1 whatever the data are. How the integers travel is
the affair of `reducers.integer_sum`; u is `randomness.uniform` at the element's index.

* M = 0 encodes as zeros and decodes to zeros.
* |x| may exceed M by the rounding of M (2-norms): z is cut at s.
* Not finite: a NaN or an infinity anywhere makes the shared scale +inf or NaN (the reducer maps NaN to +inf before a
  maximum, which on gloo loses NaN). The codes are then 0 where x / M is NaN or 0, and decoding gives NaN or an
  infinity in every element on every rank: 0 * inf is NaN. Nothing is dropped in silence.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.codecs.passes import Draw, Pass
from reference_impls.compilation import compiled
from reference_impls.errors import UnsupportedError
from reference_impls.randomness import Key, as_uniform

__all__ = ["WIRE_VERSION", "decode", "encode", "levels", "restored", "rounded"]

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


def rounded(x: Tensor, scale: Tensor, count: int, drawn: Tensor) -> Tensor:
    """The formula, element by element: float32, the draws in [0, 1) -> int32 in -s .. s."""
    z = x.abs() / scale * count
    z = torch.where(z != z, 0.0, z).clamp(max=count)  # NaN: 0 / 0, or something that is not finite
    low = z.floor()
    q = torch.where(drawn < z - low, low + 1, low)
    return torch.where(x < 0, -q, q).to(torch.int32)


def restored(total: Tensor, scale: Tensor, divisor: int) -> Tensor:
    """The inverse of a sum: integers times scale / divisor. By a number, a GPU multiplies by its reciprocal."""
    return total * (scale / torch.full_like(scale, divisor))


def _code(x: Tensor, scale: Tensor, draw: Draw, count: int, _: int) -> Tensor:
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
    target = buffers.empty(codes.shape, torch.int32, x.device) if codes.dtype == torch.int16 else codes
    _encode(x, scale, key.words.to(x.device), target, count)
    if target is not codes:
        codes.copy_(target)


def decode(total: Tensor, scale: Tensor, count: int, world_size: int, out: Tensor) -> None:
    """Sum of the codes of all ranks, any integer dtype [..., d], and their `scale` -> mean, float32 `out` [..., d]."""
    wide = buffers.empty_like(total, torch.int32).copy_(total) if total.dtype == torch.int16 else total
    _decode(wide, scale, count * world_size, out)
