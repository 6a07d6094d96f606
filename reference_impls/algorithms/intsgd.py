"""IntSGD: gradients times a factor, rounded to integers and summed as such.

The codes, wire format version 1: ``q = clip(Int(a x), -limit, limit)`` with Int(z) = floor(z) + [u < z - floor(z)]
(``stochastic``, unbiased where nothing is cut; u is the stream's uniform of the element's index) or to nearest, ties to
even. The format is one signed integer an element; how it travels is the affair of `aggregators.integer_sum`. `room` is the
limit: the largest one for which n codes add up within b bits and which float32 can say. An integer has no room for NaN:
what is not finite is coded as 0 and counted, and the count is sent along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import torch
from torch import Tensor

from reference_impls.aggregators.integer_sum import (
    WIDTHS,
    Scaling,
    an_element,
    integer_sum,
    shared_scale,
)
from reference_impls.aggregators.majority import poisoned
from reference_impls.compressors.dithering import levels
from reference_impls.compressors.sums import fixed_sum, largest
from reference_impls.compressors.tiles import Draw, Pass
from reference_impls.core import compute
from reference_impls.core.algorithm import (
    FOREVER,
    Bucket,
    StateSpec,
    Timed,
    TrainState,
    one_number,
    option,
    per_tensor,
)
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.compute import Key, as_uniform, compiled
from reference_impls.core.optimizers import WithLocalOptimizer

WIRE_VERSION: Final = 1
Rounding = Literal["stochastic", "nearest"]
_PRECISION: Final = 24  # bits of a float32's integer part


def room(bits: int, n: int) -> int:
    """Largest code of one of n ranks such that a sum fits a signed `bits`-bit integer."""
    most = levels(bits, n)
    below = max(most.bit_length() - _PRECISION, 0)
    return most >> below << below


def _code(x: Tensor, factor: Tensor, draw: Draw, limit: int) -> Tensor:
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
        _stochastic(x, factor, key.on(x.device), codes, limit)
    else:
        _nearest(x, factor, limit, codes)
    if not x.shape[-1]:
        return x.new_zeros(x.shape[:-1], dtype=torch.int32)
    fine = (largest(factor) if factor.dim() else factor).isfinite()
    return (~(largest(x).isfinite() & fine)).to(torch.int32)


_UNKNOWN = -1.0  # r before the first step
_WARMED = "steps in full precision"


@dataclass(frozen=True)
class IntSGD(WithLocalOptimizer):
    """IntSGD: gradients times an adaptive factor, rounded to integers at random and summed as such. arXiv 2102.08374.

    Kinds of step: ``warm-up`` (fp32 all-reduce of gradients) and ``integer``.

    q_i = Int(a g_i), g <- sum(q_i) / (n a), summed in `bits` bits. Every rank knows a without being told, from steps that all
    have seen: r <- beta r + (1 - beta) |x_t - x_{t-1}|^2, a = alpha sqrt(d) / sqrt(2 n r / lr^2 + epsilon), so that the noise
    follows the recent step. After the first step that moves, in full precision, no float travels.

    ``factor="exponent"`` (`intsgd-heuristic`): a = (2^(b-1) - 1) / (n 2^e), e the exponent of the
    largest magnitude over all ranks, 4 bytes in a max all-reduce: the rule of in-network aggregation.

    Differences: the body of the paper could not be read; two published codes and what is recalled of the paper were. The
    published code averages |g|^2 of the applied mean in the place of the movement. a is per
    tensor (their block-wise form, with epsilon for each tensor instead of a share of it) or per bucket, not per model. Codes
    are cut at the whole number floor((2^(b-1) - 1) / n), so no sum overflows; theirs is cut at a fraction and truncated. Cutting
    is biased in both, and ``unbiased`` is said of what is not cut: 8 bits leave +-1 at n = 64, where of an element above
    sqrt(2 n) = 11 times the root mean square the excess is lost; the
    exponent's rule cuts as a matter of course: magnitudes reach up to twice the limit, and e is at least -100. The first a is
    known after one step in full precision at a rate above 0 (``warmup_steps``); with none it is `initial_factor`, 100 as in
    their GPU code. Momentum and weight decay are the local optimizer's, after the mean; their ResNet script applies them before.
    Where a tensor has not moved or lr is 0, the factor is `initial_factor`. What is not finite is counted by one more integer of
    the sum and makes the whole bucket NaN.
    """

    bits: int = option(8, "bits of a code and of a sum: 4, 8, 16 or 32", choices=WIDTHS)
    rounding: Literal["stochastic", "nearest"] = option("stochastic", "stochastic (unbiased) or nearest")
    factor: Literal["adaptive", "exponent"] = option(
        "adaptive", "adaptive (known to all) or exponent (of the largest magnitude, a max all-reduce)"
    )
    scale: Literal["tensor", "bucket"] = option("tensor", "one factor a tensor, or a bucket")
    alpha: float = option(1.0, "on the adaptive factor", gt=0)
    beta: float = option(0.9, "moving average of the squared steps", ge=0, lt=1)
    epsilon: float = option(1e-8, "added to 2 n r", gt=0)
    initial_factor: float = option(100.0, "factor while nothing has moved", gt=0)
    warmup_steps: int = option(1, "first steps (adaptive: at a rate above 0), in full precision", ge=0)

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {"r": per_tensor("replicated", one_number, _UNKNOWN)} if self.factor == "adaptive" else {}

    def check(self, world: Group) -> None:
        room(self.bits, world.size)

    def plan(self, train_state: TrainState) -> str:
        done = int(train_state.counters.get(_WARMED, 0))
        if done >= self.warmup_steps:
            return "integer"
        moves = self.factor == "exponent" or train_state.lr != 0  # at a rate of 0 nothing is learnt of r
        train_state.counters[_WARMED] = done + moves
        return "warm-up"

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if bucket.kind == "warm-up":
            return (yield from bucket.world.mean(bucket.grads, "gradient"))
        n = bucket.world.size
        x = bucket.grads.to(torch.float32)
        limit = room(self.bits, n)
        if self.factor == "exponent":
            top = yield from shared_scale(bucket, x, "gradient", Scaling("linf", self.scale))
            factor = self._from_exponent(top, n)
        else:
            factor = self._adaptive(bucket)
        codes = compute.empty(bucket.d + 1, torch.int32, x.device)
        codes[bucket.d] = encode(
            x, factor, limit, self.rounding, bucket.key("gradient-round"), codes[: bucket.d]
        )
        total = yield from integer_sum(bucket.world, codes, self.bits, limit, "gradient")
        mean = compute.empty_like(x).copy_(total[: bucket.d])
        divisor = torch.mul(factor, n, out=compute.empty_like(factor))
        return poisoned(mean.div_(divisor), total[bucket.d] != 0)

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        super().update(bucket, reduced)
        if self.factor == "adaptive":
            bucket.scratch("before", bucket.d, bucket.params.dtype).copy_(bucket.params)

    def synchronize(self, bucket: Bucket) -> None:
        if self.factor == "adaptive":
            before = bucket.scratch("before", bucket.d, bucket.params.dtype)
            self._average(bucket, torch.sub(bucket.params, before, out=before))

    def _average(self, bucket: Bucket, step: Tensor) -> None:
        """r <- beta r + (1 - beta) |step|^2, tensor by tensor; the first one that is not 0 is taken as it is."""
        for view in bucket.views:
            r = bucket.state["r"][view.name]
            square = fixed_sum(step[view.part], "wide square").view(1).to(r.dtype)
            r.copy_(torch.where(r <= 0, square, self.beta * r + (1 - self.beta) * square))

    def _adaptive(self, bucket: Bucket) -> Tensor:
        """a, float32: [1] for a bucket, else [d], one an element."""
        n, device = bucket.world.size, bucket.params.device
        r = torch.cat([bucket.state["r"][v.name].double() for v in bucket.views])
        lengths = tuple(v.param.numel() for v in bucket.views)
        rates = compute.together([h["lr"] for _, h in bucket.by_tensor()], r.dtype, device)
        unknown = (r == _UNKNOWN) | (r == 0) | (rates == 0)
        r = r / rates.square()
        count = compute.constant(lengths, r.dtype, device)
        if self.scale == "bucket":
            r, count = torch.where(unknown, 0.0, r).sum().view(1), count.sum().view(1)
            unknown = unknown.all().view(1)
        factor = self.alpha * (count / (2 * n * r + self.epsilon)).sqrt()
        factor = torch.where(unknown, self.initial_factor, factor).to(torch.float32)
        return factor if self.scale == "bucket" else an_element(bucket, factor)

    def _from_exponent(self, largest: Tensor, n: int) -> Tensor:
        """a for the largest magnitude over all ranks; as many numbers as it has. 1 for 0, NaN for what is not finite."""
        exponent = (torch.frexp(largest).exponent - 1).clamp(min=-100)
        factor = torch.ldexp(torch.full_like(largest, (2 ** (self.bits - 1) - 1) / n), -exponent)
        factor = torch.where(largest == 0, 1.0, factor)
        return torch.where(largest.isfinite(), factor, torch.nan).view(-1)

    timed: ClassVar[Timed] = {
        "integer": {"warmup_steps": 0},
        "warm-up": {"warmup_steps": FOREVER},
    }
