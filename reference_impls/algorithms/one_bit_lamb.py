"""1-bit LAMB: LAMB while it warms up, then a frozen variance, one-bit momenta, and trust ratios that follow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference_impls.aggregators.compressed_all_reduce import Scale
from reference_impls.algorithms.lion import mixed_in
from reference_impls.algorithms.one_bit_adam import (
    WarmUp,
    denominator,
    masked,
    moved,
)
from reference_impls.compressors.sums import fixed_sum
from reference_impls.core import compute
from reference_impls.core.algorithm import Bucket, StateSpec, one_number, option, per_tensor, replicated
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError


@dataclass(frozen=True)
class OneBitLAMB(WarmUp):
    """1-bit LAMB: LAMB while it warms up, then a frozen variance, one-bit momenta, and trust ratios that follow. 2104.06069.

    Kinds of step: ``warm-up`` (LAMB) and ``compressed`` (1-bit momentum, frozen trust ratios, a factor on each).

    Per tensor. Warm-up (T_w steps): Adam's m and v on the exact mean; upd = m / (sqrt(v) + eps) + wd x;
    c = |x| / |upd| within [min_coeff, max_coeff] (1 if either norm is 0); x <- x - lr c upd; C <- mean of c, exponential.
    At the switch: rho = mean over tensors of rms(m) / rms(m), so that momenta of all tensors of a buffer are of one size.
    Compressed: m <- CAR((b1 m + (1-b1) g_i) rho) / rho; the mean gradient is rebuilt, (m - b1 m_old) / (1-b1), and feeds a
    second, fresh variance; f = max (sqrt(v) + eps) / (sqrt(v_fresh) + eps), limited (see options) and against the last f;
    x <- x - lr C f upd, with v frozen. The body of the paper could not be read; DeepSpeed's code and tutorial were.

    Differences: C is an average that starts at 0 and takes up every c from the first gradient of its tensor on, corrected for
    its start; DeepSpeed does not correct it, so that short warm-ups shrink every step, and leaves out c of exactly 1, so that a
    tensor that always has 1 never moves again. A tensor without momentum at the switch gets rho = 1 and is left out of the
    mean (there a division by zero). Coordinates without variance are not moved and their agreed momentum is 0, where
    DeepSpeed wants a mask. The buffer is a bucket, and rho's mean is over its tensors: a factor common to a buffer cancels
    in the compression. There one buffer holds the model, its padding takes part, and the first call trains nothing; the
    padding's last output
    is the next step's input, so ``pad_in_scale`` is DeepSpeed's only where 8 n divides d. T_w is
    15 % of the training unless given, and never before the learning rate's warm-up ends. One worker compresses nothing.
    A variance that overflows makes its tensor NaN, where Adam and 1-bit Adam leave the coordinate where it is.
    """

    scale: Scale = option("shard", "on the way up one scale a server's chunk (chunk), or a bucket (shard)")
    min_coeff: float = option(0.01, "least trust ratio of the warm-up", gt=0)
    max_coeff: float = option(10.0, "largest trust ratio of the warm-up", gt=0)
    coeff_beta: float = option(0.9, "memory of the average of trust ratios", ge=0, lt=1)
    factor_min: float = option(0.5, "least factor on the frozen trust ratio", gt=0)
    factor_max: float = option(4.0, "largest factor on the frozen trust ratio", gt=0)
    factor_threshold: float = option(
        0.1, "largest change of the factor in a step, as a share of it", ge=0, lt=1
    )

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {
            "momentum": replicated(),
            "variance": replicated(),
            "fresh_variance": replicated(),
            "coefficient": per_tensor("replicated", one_number),  # C, without correction
            "factor": per_tensor("replicated", one_number, 1.0),  # the last f
            "fusion": per_tensor("replicated", one_number, 1.0),  # rho
            **super().state,
        }

    def check(self, world: Group) -> None:
        super().check(world)
        if self.frozen_from < 1:
            raise UnsupportedError(
                "1-bit LAMB needs a warm-up of at least 1 step: without one nothing has a trust ratio"
            )
        if self.min_coeff > self.max_coeff or self.factor_min > self.factor_max:
            raise UnsupportedError("1-bit LAMB wants min_coeff <= max_coeff and factor_min <= factor_max")

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        if bucket.kind == "warm-up":
            return (yield from bucket.world.mean(bucket.grads, "gradient"))
        if bucket.train_state.choice(lambda now: now.step == self.frozen_from):
            self._fuse(bucket)
        u = mixed_in(bucket, bucket.state["momentum"], bucket.grads)
        for view in bucket.views:
            u[view.part].mul_(bucket.state["fusion"][view.name])
        return (yield from self.one_bit_mean(bucket, u, "momentum"))

    def _fuse(self, bucket: Bucket) -> None:
        """Set rho, and begin the fresh variance at the frozen one."""
        bucket.state["fresh_variance"].copy_(bucket.state["variance"])
        m = bucket.state["momentum"]
        sizes = torch.stack([_norm(m[v.part]) / math.sqrt(v.param.numel()) for v in bucket.views])
        some = sizes != 0
        mean = sizes.sum() / some.sum().clamp(min=1)
        for view, rho in zip(bucket.views, torch.where(some, mean / sizes, 1.0), strict=True):
            bucket.state["fusion"][view.name].fill_(rho)

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        step = self._warm_up if bucket.kind == "warm-up" else self._compressed
        for view, h in bucket.by_tensor():
            own = {name: bucket.state[name][view.name] for name in ("coefficient", "factor", "fusion")}
            whole = {
                name: bucket.state[name][view.part] for name in ("momentum", "variance", "fresh_variance")
            }
            x = bucket.params[view.part]
            x.sub_(step(bucket, x, reduced[view.part], {**own, **whole}, h))

    def _warm_up(
        self, bucket: Bucket, x: Tensor, g: Tensor, state: Mapping[str, Tensor], h: Mapping[str, Any]
    ) -> Tensor:
        beta1, beta2 = h["betas"]
        m, v = state["momentum"].lerp_(g, 1 - beta1), state["variance"]
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        move = moved(m, v, h["eps"]).add_(x, alpha=h["weight_decay"])
        norms = _norm(x), _norm(move)
        ratio = (norms[0] / norms[1]).clamp(self.min_coeff, self.max_coeff)
        ratio = torch.where((norms[0] == 0) | (norms[1] == 0), 1.0, ratio)
        average = state["coefficient"]
        # a tensor's first ratio stands for those of the steps before, in which it had no gradient
        first = (1 - self.coeff_beta ** (bucket.step + 1)) * ratio
        going = self.coeff_beta * average + (1 - self.coeff_beta) * ratio
        average.copy_(torch.where(v.any(), torch.where(average == 0, first, going), 0.0))
        return move.mul_(h["lr"] * ratio)

    def _compressed(
        self, bucket: Bucket, x: Tensor, agreed: Tensor, state: Mapping[str, Tensor], h: Mapping[str, Any]
    ) -> Tensor:
        beta1, beta2 = h["betas"]
        m, v, fresh = state["momentum"], state["variance"], state["fresh_variance"]
        now = masked(torch.div(agreed, state["fusion"], out=compute.empty_like(agreed)), v)
        g = torch.mul(m, beta1, out=compute.empty_like(m))
        torch.sub(now, g, out=g).div_(1 - beta1)
        fresh.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        m.copy_(now)
        move = moved(m, v, h["eps"])
        factor = denominator(v, h["eps"]).div_(denominator(fresh, h["eps"])).max()
        if h["weight_decay"]:
            adaptive = _norm(move)
            move.add_(x, alpha=h["weight_decay"])
            whole = _norm(move)
            share = torch.where(whole == 0, 1.0, (adaptive / whole).clamp(max=1.0))
            factor = factor * share + (1 - share)
        last = state["factor"]
        factor = factor.clamp(self.factor_min, self.factor_max)
        factor = torch.clamp(factor, last * (1 - self.factor_threshold), last * (1 + self.factor_threshold))
        last.copy_(factor)
        started = 1 - self.coeff_beta**self.frozen_from  # the average of trust ratios starts at 0
        return move.mul_(h["lr"] / started * state["coefficient"] * factor)


def _norm(x: Tensor) -> Tensor:
    return fixed_sum(x, "square").sqrt()
