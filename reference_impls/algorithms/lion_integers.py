"""Lion Cub's p-bit variant: the sign of an integer sum of votes that are weighted by |u|. arXiv 2411.16462.

Wire format version 1, as far as the author's code shows it. A worker's vote on an update u is
``q = clip(round_half_even(u / a * (s * gain)), -s, s)`` with ``s = floor((2**(p-1) - 1) / n)``, so that the sum over n
ranks fits p bits. The scale a is local to worker and tensor and never sent, unless ranks share scales; it only sets how much
each worker's votes weigh:

* ``l1``: mean of |u|; ``linf``: max |u|; ``l0``: geometric mean, exp(mean(log(|u| + 1e-12))), so that far below 1e-12 nothing
  votes.
* ``l2-stochastic``: the 2-norm, and rounding to one of the two next integers so that the expectation is exact
  (`compressors.dithering`, element i with element i of the stream); ``gain = 1`` is the code's.

Sums run over real elements only, by the fixed tree of `compressors.sums`. The format is one signed integer an element; how
it travels is the affair of `aggregators.integer_sum`. Rounding at ``gain = 0.5`` (the code's) maps |u| = a to s / 2, which is no
vote where s is 1: a tensor of one element, whose |u| is its scale, votes s instead, unless ranks share scales.

* a = 0 (an all-zero tensor) votes 0 everywhere.
* Not finite: an integer has no room for NaN, so where a tensor's scale is not finite (any NaN or infinity in it, or an
  overflow of its sum) all its votes are 0, and `encode` answers a *flag*. It travels as one more integer of the same sum and
  makes the result NaN on all ranks where the sum of flags is not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from reference_impls.aggregators import integer_sum
from reference_impls.aggregators.majority import poisoned
from reference_impls.algorithms.lion import LionCub, norm_of
from reference_impls.compressors import dithering
from reference_impls.compressors.dithering import levels
from reference_impls.compressors.sums import fixed_mean, largest
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket, option
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.compute import Key, compiled
from reference_impls.core.errors import UnsupportedError

WIRE_VERSION: Final = 1

Scale = Literal["l1", "l0", "linf", "l2-stochastic"]


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
        geometric = fixed_mean(torch.abs(u, out=compute.empty_like(u)).add_(1e-12).log_()).exp()
        return torch.where(largest(u) == 0, torch.zeros_like(geometric), geometric)
    return norm_of(u)


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
    target = compute.empty(codes.shape, torch.int32, u.device) if codes.dtype == torch.int16 else codes
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
    gain, own = default_gain(kind) if gain is None else gain, scales is None
    scales = scales_of(u, parts, kind) if scales is None else scales
    for i, part in enumerate(parts):
        scale = scales[..., i : i + 1]
        if kind != "l2-stochastic":
            whole = own and part.stop - part.start == 1
            quantise(u[..., part], scale, count, codes[..., part], gain=1.0 if whole else gain)
        elif key is None:
            raise ValueError("stochastic rounding draws: give a key")
        else:
            dithering.encode(u[..., part], scale / gain, count, key.at(part.start), codes[..., part])
    return (~scales.isfinite()).any(-1).to(torch.int32)


@dataclass(frozen=True)
class LionCubPBit(LionCub):
    """Sign of an integer sum of weighted votes. Scales are a tensor's, and each worker's own unless shared.

    ``all-reduce`` adds p-bit codes on the way: p x 2 (n-1)/n bits a parameter (16 bits: in two phases, the same bytes).
    ``two-phase`` packs each way in as few bits as its range needs, with the same result. There a code need not leave room
    for the sum: ``levels = code`` gives it all p bits.
    """

    bits: int = option(
        8, "p: width of the sum (or of a code, see levels): 4, 8 or 16; in two phases 2 to 16", ge=2, le=16
    )
    scale: Literal["l1", "l0", "linf", "l2-stochastic"] = option(
        "l1", "scale of a tensor: mean, geometric mean, maximum or 2-norm (rounded at random) of |u|"
    )
    gain: float | None = option(
        None, "a value equal to the scale votes gain x (levels); None: 0.5, for l2-stochastic 1", gt=0
    )
    form: Literal["all-reduce", "two-phase"] = option(
        "all-reduce", "all-reduce (added on the way) or two-phase (packed)"
    )
    levels: Literal["sum", "code"] = option(
        "sum", "what p bits hold: the sum over all ranks, or one rank's code (two phases only)"
    )
    shared_scale: bool = option(
        False, "ranks share scales: one more all-reduce, mean (l1, l0) or maximum (linf, l2)"
    )

    def check(self, world: Group) -> None:
        if self.form == "all-reduce" and self.bits not in (4, 8, 16):
            raise UnsupportedError(
                f"bits must be 4, 8 or 16 where codes are added on the way, got {self.bits}; "
                "form='two-phase' takes 2 to 16"
            )
        if self.form == "all-reduce" and self.levels == "code":
            raise UnsupportedError("levels='code' leaves no room for a sum on the way: use form='two-phase'")
        self.limit(world.size)

    def limit(self, n: int) -> int:
        """Largest code of one of n voters."""
        limit = levels(self.bits, n if self.levels == "sum" else 1)
        if self.scale == "linf" and round(limit * (0.5 if self.gain is None else self.gain)) == 0:
            raise UnsupportedError(
                f"with {limit} levels and this gain even the maximum of |u| rounds to no vote, so nothing would ever "
                "move: use more bits, a gain above 0.5, or scale='l1'"
            )
        return limit

    def direction(self, bucket: Bucket, u: Tensor) -> Exchange[Tensor]:
        group = bucket.world
        limit, parts = self.limit(group.size), [view.part for view in bucket.views]
        scales: Tensor | None = None
        if self.shared_scale:
            share = group.max if self.scale in ("linf", "l2-stochastic") else group.mean
            scales = yield from share(scales_of(u, parts, self.scale), "scales")
        codes = compute.empty(bucket.d + 1, torch.int8 if self.bits <= 8 else torch.int16, u.device)
        codes[-1] = encode(
            u, parts, self.scale, limit, codes[:-1],
            gain=self.gain, scales=scales, key=bucket.key("rounding"),
        )  # not finite?  # fmt: skip
        bits = 32 if self.levels == "code" else self.bits
        total = yield from integer_sum.integer_sum(group, codes, bits, limit, "votes", self.form)
        return poisoned(u.copy_(total[:-1].sign_()), total[-1] > 0)
