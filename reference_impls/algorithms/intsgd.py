"""IntSGD: gradients times an adaptive factor, rounded to integers at random and summed as such. arXiv 2102.08374.

q_i = Int(a g_i), g <- sum(q_i) / (n a), summed in `bits` bits. Every rank knows a without being told, from steps that all
have seen: r <- beta r + (1 - beta) |x_t - x_{t-1}|^2, a = alpha sqrt(d) / sqrt(2 n r / lr^2 + epsilon), so that the noise
follows the recent step. After the first step, in full precision, no float travels.

``factor="exponent"`` (`intsgd-heuristic`): a = (2^(b-1) - 1) / (n 2^e), e the exponent of the
largest magnitude over all ranks, 4 bytes in a max all-reduce: the rule of in-network aggregation.

Differences: the body of the paper could not be read; two published codes and what is recalled of the paper were. The
published code averages |g|^2 of the applied mean in the place of the movement. a is per
tensor (their block-wise form, with epsilon for each tensor instead of a share of it) or per bucket, not per model. Codes
are cut at the whole number floor((2^(b-1) - 1) / n), so no sum overflows; theirs is cut at a fraction and truncated. Cutting
is biased in both, and ``unbiased`` is said of what is not cut: 8 bits leave +-1 at n = 64, where of an element above
sqrt(2 n) = 11 times the root mean square the excess is lost; the
exponent's rule cuts as a matter of course: magnitudes reach up to twice the limit. The first a is known
after one step in full precision (``warmup_steps``); with none it is `initial_factor`, 100 as in their GPU code. Momentum
and weight decay are the local optimizer's, after the mean; their ResNet script applies them before. Where a tensor has not
moved or lr is 0, the factor is `initial_factor`. What is not finite is counted by one more integer of the sum and makes
the whole bucket NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import (
    FOREVER,
    Clock,
    Shard,
    Slot,
    Timed,
    View,
    option,
    per_tensor,
)
from reference_impls.algorithms.all_reduce import WithLocalOptimizer
from reference_impls.codecs import scaled_rounding
from reference_impls.codecs.sums import fixed_sum
from reference_impls.collectives import Exchange, Group
from reference_impls.reducers.integer_sum import (
    WIDTHS,
    Scaling,
    an_element,
    integer_sum,
    shared_scale,
)
from reference_impls.reducers.majority import voided

_UNKNOWN = -1.0  # r of a tensor that has not been seen to move


def _one(view: View, world: Group) -> tuple[int, ...]:
    return (1,)


@dataclass(frozen=True)
class IntSGD(WithLocalOptimizer):
    """Kinds of step: ``warm-up`` (fp32 all-reduce of gradients) and ``integer``."""

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
    warmup_steps: int = option(1, "first steps, in full precision", ge=0)

    @property
    def slots(self) -> Mapping[str, Slot]:
        return {"r": per_tensor("replicated", _one, _UNKNOWN)} if self.factor == "adaptive" else {}

    def check(self, world: Group) -> None:
        scaled_rounding.room(self.bits, world.size)

    def plan(self, clock: Clock) -> str:
        return "warm-up" if clock.step < self.warmup_steps else "integer"

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        if shard.kind == "warm-up":
            return (yield from shard.world.mean(shard.grads, "gradient"))
        n = shard.world.size
        x = shard.grads.to(torch.float32)
        limit = scaled_rounding.room(self.bits, n)
        if self.factor == "exponent":
            factor = self._from_exponent((yield from shared_scale(shard, x, "gradient", self._scaling())), n)
        else:
            factor = self._adaptive(shard)
        codes = buffers.empty(shard.d + 1, torch.int32, x.device)
        codes[shard.d] = scaled_rounding.encode(
            x, factor, limit, self.rounding, shard.key("gradient-round"), codes[: shard.d]
        )
        total = yield from integer_sum(shard.world, codes, self.bits, limit, "gradient")
        mean = buffers.empty_like(x).copy_(total[: shard.d])
        divisor = torch.mul(factor, n, out=buffers.empty_like(factor))
        return voided(mean.div_(divisor), total[shard.d] != 0)

    def update(self, shard: Shard, reduced: Tensor) -> None:
        super().update(shard, reduced)
        if self.factor == "adaptive":
            shard.scratch("before", shard.d, shard.params.dtype).copy_(shard.params)

    def synchronize(self, shard: Shard) -> None:
        if self.factor == "adaptive":
            before = shard.scratch("before", shard.d, shard.params.dtype)
            self._average(shard, torch.sub(shard.params, before, out=before))

    def _average(self, shard: Shard, step: Tensor) -> None:
        """r <- beta r + (1 - beta) |step|^2, tensor by tensor; the first one is taken as it is."""
        for view in shard.views:
            r = shard.state["r"][view.name]
            own = step[view.part]
            wide = buffers.empty_like(own, torch.float64).copy_(own)
            square = fixed_sum(wide.square_()).view(1).to(r.dtype)
            r.copy_(torch.where(r == _UNKNOWN, square, self.beta * r + (1 - self.beta) * square))

    def _adaptive(self, shard: Shard) -> Tensor:
        """a, float32: [1] for a bucket, else [d], one an element."""
        n, device = shard.world.size, shard.params.device
        r = torch.cat([shard.state["r"][v.name].double() for v in shard.views])
        lengths = torch.tensor([v.part.stop - v.part.start for v in shard.views], device=device)
        rates = r.new_empty(len(shard.views))
        for part, group in shard.groups():
            inside = [i for i, v in enumerate(shard.views) if part.start <= v.part.start < part.stop]
            rates[inside] = float(group["lr"])
        unknown = (r == _UNKNOWN) | (r == 0) | (rates == 0)
        r = r / rates.square()
        count = lengths.double()
        if self.scale == "bucket":
            r, count = torch.where(unknown, 0.0, r).sum().view(1), count.sum().view(1)
            unknown = unknown.all().view(1)
        factor = self.alpha * (count / (2 * n * r + self.epsilon)).sqrt()
        factor = torch.where(unknown, self.initial_factor, factor).to(torch.float32)
        return factor if self.scale == "bucket" else an_element(shard, factor)

    def _scaling(self) -> Scaling:
        return Scaling("linf", self.scale)

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
