"""Lion Cub's p-bit quantiser: weighted votes in small integers, scaled by each worker alone. Wire format version 1.

Spec: Lion Cub, arXiv 2411.16462, as far as its author's code shows it. A worker's vote on an update u is
``q = clip(round_half_even(u / a * (s * gain)), -s, s)`` with ``s = floor((2**(p-1) - 1) / n)``, so that the sum over n
ranks fits p bits. The scale a is local to worker and tensor and never sent, unless the caller brings scales that ranks
share; it only sets how much each worker's votes weigh:

* ``l1``: mean of |u|; ``linf``: max |u|; ``l0``: geometric mean, exp(mean(log(|u| + 1e-12))).
* ``l2-stochastic``: the 2-norm, and rounding to one of the two next integers so that the expectation is exact
  (`codecs.dithering`, element i with element i of the stream); ``gain = 1`` is the code's.

Sums run over real elements only, by the fixed tree of `codecs.sums`. The format is one signed integer an element; how
it travels is the affair of `reducers.integer_sum`. Rounding at ``gain = 0.5`` (the code's) maps |u| = a to s / 2.

* a = 0 (an all-zero tensor) votes 0 everywhere.
* Not finite: an integer has no room for NaN, so where a tensor's scale is not finite (any NaN or infinity in it, or an
  overflow of its sum) all its votes are 0, and `encode` answers a *flag*. The caller sends the flag along as one more
  integer of the same sum and makes the result NaN on all ranks where the sum of flags is not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.codecs import dithering
from reference_impls.codecs.dithering import levels
from reference_impls.codecs.sums import fixed_mean, fixed_sum, largest
from reference_impls.compilation import compiled
from reference_impls.randomness import Key

__all__ = [
    "SCALES",
    "WIRE_VERSION",
    "Scale",
    "default_gain",
    "encode",
    "levels",
    "quantise",
    "scale_of",
    "scales_of",
]

WIRE_VERSION: Final = 1

Scale = Literal["l1", "l0", "linf", "l2-stochastic"]
SCALES: Final[tuple[Scale, ...]] = ("l1", "l0", "linf", "l2-stochastic")


def default_gain(kind: Scale) -> float:
    """The code's: half of the levels for a value that equals the scale, all of them with stochastic rounding."""
    return 1.0 if kind == "l2-stochastic" else 0.5


def scale_of(u: Tensor, kind: Scale) -> Tensor:
    """The scale a of float32 [..., d]: [...]. 0 for d = 0; not finite if any element is not."""
    if u.shape[-1] == 0:
        return u.new_zeros(u.shape[:-1])
    if kind == "l1":
        return fixed_mean(u, "abs")
    if kind == "linf":
        return largest(u)
    if kind == "l0":
        geometric = fixed_mean(torch.abs(u, out=buffers.empty_like(u)).add_(1e-12).log_()).exp()
        return torch.where(largest(u) == 0, torch.zeros_like(geometric), geometric)
    if (
        kind == "l2-stochastic"
    ):  # of what has been scaled by its maximum, so that no square over- or underflows
        top = largest(u)
        scaled = torch.div(u, torch.where(top > 0, top, 1.0).unsqueeze(-1), out=buffers.empty_like(u))
        norm = fixed_sum(scaled, "square").sqrt() * top
        return torch.where(top == 0, torch.zeros_like(norm), norm)
    raise ValueError(f"unknown scale {kind!r}; known: {', '.join(SCALES)}")


@compiled
def _quantise(u: Tensor, divisor: Tensor, factor: Tensor, count: int, codes: Tensor) -> None:
    q = (u / divisor * factor).round()
    codes.copy_(torch.where(q != q, 0.0, q).clamp(-count, count).to(torch.int32))


def quantise(u: Tensor, scale: Tensor, count: int, codes: Tensor, *, gain: float = 0.5) -> None:
    """float32 [..., d] -> `codes`, int8, int16 or int32 [..., d] in -s .. s.

    Args:
        scale: a, from `scale_of`, broadcast against `u` ([..., 1] or one number). 0, infinite or NaN: all votes 0.
        count: s, from `levels`.
        gain: share of s that |u| = a votes.
    """
    # Compilers store int16 one element at a time, 20 times slower than in two steps.
    target = buffers.empty(codes.shape, torch.int32, u.device) if codes.dtype == torch.int16 else codes
    usable = (scale > 0) & (scale < torch.inf)
    _quantise(u, torch.where(usable, scale, 1.0), usable.to(u.dtype) * (count * gain), count, target)
    if target is not codes:
        codes.copy_(target)


def scales_of(u: Tensor, parts: Sequence[slice], kind: Scale) -> Tensor:
    """The scale of each tensor: [..., d] -> [..., tensors]."""
    return torch.stack([scale_of(u[..., part], kind) for part in parts], dim=-1)


def encode(
    u: Tensor,
    parts: Sequence[slice],
    kind: Scale,
    count: int,
    codes: Tensor,
    *,
    gain: float | None = None,
    scales: Tensor | None = None,
    key: Key | None = None,
) -> Tensor:
    """Quantise a flat vector tensor by tensor.

    Args:
        u: float32 [..., d].
        parts: the slice of each tensor; together they cover `u`.
        kind, count, gain: as in `scale_of` and `quantise`; gain is `default_gain` if not given.
        codes: int8, int16 or int32 [..., d].
        scales: [..., tensors] that ranks share; by default those of `u` itself.
        key: stream of the draws, needed by stochastic rounding alone.

    Returns:
        int32 [...]: 1 where some tensor has no finite scale, so that its votes of 0 mean nothing; else 0. See above.
    """
    gain = default_gain(kind) if gain is None else gain
    scales = scales_of(u, parts, kind) if scales is None else scales
    for i, part in enumerate(parts):
        scale = scales[..., i : i + 1]
        if kind != "l2-stochastic":
            quantise(u[..., part], scale, count, codes[..., part], gain=gain)
        elif key is None:
            raise ValueError("stochastic rounding draws: give a key")
        else:
            dithering.encode(u[..., part], scale / gain, count, key.at(part.start), codes[..., part])
    return (~scales.isfinite()).any(-1).to(torch.int32)
