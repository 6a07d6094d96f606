"""0/1 Adam: the variance refreshed at ever rarer steps, then local steps with one-bit averages of the momentum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from reference_impls.aggregators.compressed_all_reduce import Scale
from reference_impls.algorithms.one_bit_adam import (
    COMPRESSION,
    OneBitMean,
    masked,
    moved,
)
from reference_impls.core import compute
from reference_impls.core.algorithm import (
    DEFAULT,
    FOREVER,
    Bucket,
    StateSpec,
    Timed,
    TrainState,
    one_number,
    option,
    per_rank,
    per_tensor,
    replicated,
)
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError

_WHEN: Final = (
    "variance_steps", "variance_fraction", "refreshes_per_gap", "first_gap", "local_growth_steps",
    "local_growth_fraction", "first_round", "longest_round", "total_steps", "lr_warmup_steps",
)  # fmt: skip
_ANY_TIME: Final[Mapping[str, Any]] = dict.fromkeys(_WHEN, DEFAULT)
_UNCOMPRESSED: Final[Mapping[str, Any]] = dict.fromkeys(COMPRESSION, DEFAULT)
_VARIANCE_PHASE: Final[Mapping[str, Any]] = {"variance_steps": FOREVER, "local_growth_steps": 1}
_LOCAL_PHASE: Final[Mapping[str, Any]] = {"variance_steps": 1, "local_growth_steps": FOREVER}
"""What steps of a kind need or leave open (`Algorithm.timed`); at 0 steps of the variance phase, no coordinate has a variance."""


@dataclass(frozen=True)
class ZeroOneAdam(OneBitMean):
    """0/1 Adam: the variance refreshed at ever rarer steps, then local steps with one-bit averages of the momentum. 2202.06009.

    Kinds of step: ``variance`` (fp32), ``gradient`` (1 bit), ``local`` (nothing) and ``average`` (1 bit).

    Variance phase (first `variance_steps` steps), replicas equal after every step:
      ``variance``  g = mean g_i exactly; m, v as in Adam. Gaps between them are 1 for `refreshes_per_gap` times, then 2, 4, ...
      ``gradient``  g = CAR(g_i): one bit; m <- b1 m + (1-b1) g; v stays.
    Local phase, v frozen, errors begun anew; rounds of 1 step, doubled every `local_growth_steps` up to `longest_round`:
      ``local``     m <- b1 m + (1-b1) g_i; x <- x - lr m / (sqrt(v) + eps); u <- u + lr m, all of this worker alone.
      ``average``   the same, then u = CAR(u), m = u / sum of lr, x = anchor - u / (sqrt(v) + eps), anchor = x, u = 0.
    x moves by m / (sqrt(v) + eps) in all of them. The body of the paper could not be read; third parties' equations and
    DeepSpeed's code were. In the equations x and u move by the momentum before the step, in the code by the new one: so here.

    Differences: weight decay stays out of u. In DeepSpeed's code it goes in, is multiplied by sqrt(v) + eps, and becomes
    momentum, which decays up to 1 / (1 - b1) times too much. Here it acts on x and on the anchor at every step. The anchor is
    kept, so that replicas are equal to the bit after an average (there x is put back by adding what was subtracted, and
    rounding parts them). One worker uses its gradient at every step (there the gradients of all ``gradient`` steps are
    lost). Counters and errors are in the checkpoint (there a reload starts the schedule anew while gradients are averaged by
    the old one). The schedule is one for the model (there one a parameter, while one switch averages all). A round's length
    is that of its first step, and with `total_steps` the last one ends there (there steps are counted modulo the length).
    Defaults are shares of the training, of the published 125,000 steps of BERT-Large: 10 % variance phase, as long as the
    learning rate's warm-up, and growth every 26 % (32,678 steps). In a round whose learning rates are all 0 the momentum
    stays each worker's own. Coordinates without variance are not moved and their averaged momentum is 0; what ``gradient`` steps
    gave them, since one bit cannot say 0, stays and moves them once they have one (there as well, but for a mask of the user's).
    """

    scale: Scale = option("shard", "on the way up one scale a server's chunk (chunk), or a bucket (shard)")
    variance_steps: int | None = option(
        None, "steps of the variance phase; default variance_fraction of total_steps", ge=0
    )
    variance_fraction: float = option(0.1, "the variance phase as a share of total_steps", ge=0, le=1)
    refreshes_per_gap: int = option(16, "kappa: refreshes of the variance before their gap doubles", ge=1)
    first_gap: int = option(1, "steps between the first refreshes of the variance", ge=1)
    local_growth_steps: int | None = option(
        None, "local steps before rounds double; default local_growth_fraction of total_steps", ge=1
    )
    local_growth_fraction: float = option(
        0.26, "local steps before rounds double as a share of total_steps", gt=0
    )
    first_round: int = option(1, "steps of the first rounds", ge=1)
    longest_round: int = option(16, "H: steps of a round at most", ge=1)
    total_steps: int | None = option(None, "steps of the whole training; the last round ends there", ge=1)
    lr_warmup_steps: int = option(
        0, "steps of learning-rate warm-up; the variance phase is never shorter", ge=0
    )

    local_steps: ClassVar[bool] = True
    like_parameters: ClassVar[tuple[str, ...]] = ("anchor",)

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {
            "momentum": per_rank(),  # agreed after steps of the kinds variance, gradient and average
            "variance": replicated(),
            "anchor": replicated(),  # the parameters at the last average
            "moved": per_rank(),  # u
            "rates": per_tensor("replicated", one_number),  # sum of the learning rates of the round
            **super().state,
        }

    @property
    def local_from(self) -> int:
        """First step of the local phase."""
        steps = self.variance_steps
        if steps is None:
            assert self.total_steps is not None  # check() has refused anything else
            steps = math.ceil(round(self.variance_fraction * self.total_steps, 6))
        return max(steps, self.lr_warmup_steps)

    def round_length(self, step: int) -> int:
        """Steps of the round that begins at `step`, which is of the local phase."""
        growth = self.local_growth_steps
        if growth is None:
            assert self.total_steps is not None
            growth = max(1, math.ceil(self.local_growth_fraction * self.total_steps))
        doublings = min((step - self.local_from) // growth, self.longest_round.bit_length())
        length = min(self.first_round << doublings, self.longest_round)
        return length if self.total_steps is None else max(1, min(length, self.total_steps - step))

    def check(self, world: Group) -> None:
        for name in ("variance_steps", "local_growth_steps"):
            value = getattr(self, name)
            if value is None and self.total_steps is None:
                raise UnsupportedError(f"0/1 Adam needs {name}, or total_steps from which it takes a share")
        if self.local_from < 1:
            raise UnsupportedError(
                "0/1 Adam needs a variance phase of at least 1 step: without one no coordinate has a variance, and "
                "nothing moves"
            )
        super().check(world)

    def plan(self, train_state: TrainState) -> str:
        counters = train_state.counters
        if train_state.step < self.local_from:
            if train_state.step < counters.get("refresh", 0):
                return "gradient"
            done = counters.get("refreshes", 0)
            counters["refreshes"] = done + 1
            counters["refresh"] = train_state.step + self.first_gap * 2 ** int(done // self.refreshes_per_gap)
            return "variance"
        left = int(counters.get("left", 0)) or self.round_length(train_state.step)
        counters["left"] = left - 1
        return "local" if left > 1 else "average"

    def reduce(self, bucket: Bucket) -> Exchange[Tensor] | Tensor:
        if bucket.kind == "variance":
            return bucket.world.mean(bucket.grads, "gradient")
        if bucket.kind == "gradient":
            return self.one_bit_mean(bucket, bucket.grads, "gradient")
        m, u = bucket.state["momentum"], bucket.state["moved"]
        if bucket.train_state.choice(lambda now: now.step == self.local_from):
            forget_errors(bucket)
            bucket.state["anchor"].copy_(bucket.params)
        for part, h in bucket.groups():
            m[part].lerp_(bucket.grads[part], 1 - h["betas"][0])
            compute.add_scaled(u[part], m[part], h["lr"])
        for view, h in bucket.by_tensor():
            bucket.state["rates"][view.name].add_(h["lr"])
        return (
            u
            if bucket.kind == "local"
            else self.one_bit_mean(bucket, compute.empty_like(u).copy_(u), "momentum")
        )

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        m, v = bucket.state["momentum"], bucket.state["variance"]
        for part, h in bucket.groups():
            beta1, beta2 = h["betas"]
            if bucket.kind in ("variance", "gradient"):
                m[part].lerp_(reduced[part], 1 - beta1)
            if bucket.kind == "variance":
                v[part].mul_(beta2).addcmul_(reduced[part], reduced[part], value=1 - beta2)
            keep = 1 - h["lr"] * h["weight_decay"]
            x = bucket.params[part].mul_(keep)
            if bucket.kind in ("local", "average"):
                bucket.state["anchor"][part].mul_(keep)
            if bucket.kind == "average":
                x.copy_(bucket.state["anchor"][part]).sub_(moved(reduced[part], v[part], h["eps"]))
            else:
                compute.add_scaled(x, moved(m[part], v[part], h["eps"]), -h["lr"])
        if bucket.kind == "average":
            self._begin_round(bucket, reduced)

    def _begin_round(self, bucket: Bucket, u: Tensor) -> None:
        m, v = bucket.state["momentum"], bucket.state["variance"]
        for view in bucket.views:
            part, rates = view.part, bucket.state["rates"][view.name]
            mean = masked(torch.div(u[part], rates, out=compute.empty_like(u[part])), v[part])
            torch.where(rates == 0, m[part], mean, out=m[part])
            rates.zero_()
        bucket.state["moved"].zero_()
        bucket.state["anchor"].copy_(bucket.params)

    timed: ClassVar[Timed] = {
        "variance": {**_ANY_TIME, **_UNCOMPRESSED, **_VARIANCE_PHASE, "refreshes_per_gap": FOREVER},
        "gradient": {**_ANY_TIME, **_VARIANCE_PHASE, "first_gap": FOREVER},
        "local": {
            **_ANY_TIME,
            **_UNCOMPRESSED,
            **_LOCAL_PHASE,
            "first_round": FOREVER,
            "longest_round": FOREVER,
        },
        "average": {**_ANY_TIME, **_LOCAL_PHASE},
    }


def forget_errors(bucket: Bucket) -> None:
    """What was lost so far is let go of."""
    bucket.state["worker_error"].zero_()
    bucket.state["server_error"].zero_()
    for error in bucket.state.get("pad_error", {}).values():
        error.zero_()
