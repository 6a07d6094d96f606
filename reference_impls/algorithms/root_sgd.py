"""ROOT-SGD: a running mean of gradients that follows the parameters, by a second gradient of the same samples. 2008.12690.

Step t = 1, 2, ..., the two gradients of the same fresh samples, averaged over workers in one vector:
  v_t = grad f(theta_{t-1}) + (t-1)/t (v_{t-1} - grad f(theta_{t-2}));  theta_t = theta_{t-1} - eta_t v_t
with eta_t = 0 before step T_0 (burn-in): v is then the plain mean of t gradients at theta_0. Where the noise of the
gradient does not depend on the parameters, v_t is the true gradient plus the mean of all t noises, exactly.

The distributed form is our own: each worker sends w_i = grad f_i(theta_{t-1}) - (t-1)/t grad f_i(theta_{t-2}), so a step
sends what SGD sends, and computes two gradients. While the parameters stand still both are the same, and one is computed.

Differences: the body of the paper could not be read; two implementations were, whose recursion this is. Burn-in takes
T_0 batches of the usual size (one code takes its first batch 10 times as large, the default here in steps). Another
code starts its loop from a random theta_{-1} and steps from theta_0 twice, and begins the weights (t-1)/t anew every
epoch without a burn-in: not repeated. Weight decay is L2, a part of f, in both gradients (none in the codes). The
learning rate is the training's; `step_size` shrinks it by the codes' rules. The paper's restarts are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from reference_impls.core import compute
from reference_impls.core.algorithm import (
    DEFAULT,
    FOREVER,
    Algorithm,
    Bucket,
    StateSpec,
    Timed,
    TrainState,
    option,
    replicated,
)
from reference_impls.core.collectives import Exchange

_PREVIOUS = "previous"


@dataclass(frozen=True)
class RootSGD(Algorithm):
    """Kinds of step: ``burn-in`` (one gradient) and ``step`` (two)."""

    burn_in: int = option(10, "T_0: the first step that moves the parameters; 1 for none", ge=1)
    step_size: Literal["constant", "power", "inverse"] = option(
        "constant", "eta_t: lr, lr t^-exponent, or 1 / (1/lr + slope t^exponent)"
    )
    exponent: float = option(0.505, "exponent of the step-size rule", ge=0)
    slope: float = option(0.0, "slope of the inverse rule", ge=0)

    defaults: ClassVar[Mapping[str, Any]] = {"lr": 1e-2, "weight_decay": 0.0}
    reduces_gradient: ClassVar[bool] = False
    reference_points: ClassVar[tuple[str, ...]] = (_PREVIOUS,)
    state: ClassVar[Mapping[str, StateSpec]] = {_PREVIOUS: replicated(), "direction": replicated()}

    def rate(self, t: float | Tensor, lr: float | Tensor) -> float | Tensor:
        """eta_t of step t = 1, 2, ... at learning rate lr."""
        if self.step_size == "power":
            lr = lr * t**-self.exponent  # not in place: on a GPU all ranks share the tensor
        elif self.step_size == "inverse" and lr != 0:
            lr = 1 / (1 / lr + self.slope * t**self.exponent)
        return lr

    def plan(self, train_state: TrainState) -> str:
        return "step" if self.reference_points_at(train_state.step) else "burn-in"

    def reference_points_at(self, step: int) -> tuple[str, ...]:
        """Until step T_0 the parameters have not moved: the gradient at the point before is the gradient here."""
        return self.reference_points if step >= self.burn_in else ()

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        weight = self._weight(bucket)
        w = self._gradient(bucket, bucket.grads, bucket.params)
        if bucket.kind == "step":
            before = self._gradient(bucket, bucket.gradients[_PREVIOUS], bucket.state[_PREVIOUS])
            compute.add_scaled(w, before, -weight)
        else:
            w.mul_(1 - weight)
        return (yield from bucket.world.mean(w, "gradient"))

    def _gradient(self, bucket: Bucket, gradient: Tensor, x: Tensor) -> Tensor:
        """Of f with its L2 term, a new tensor."""
        total = compute.empty_like(gradient).copy_(gradient)
        for part, decay in bucket.decays():
            if decay:
                total[part].add_(x[part], alpha=decay)
        return total

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        v = bucket.state["direction"].mul_(self._weight(bucket)).add_(reduced)
        bucket.state[_PREVIOUS].copy_(bucket.params)
        if bucket.train_state.choice(lambda now: now.step + 1 >= self.burn_in):
            t = bucket.train_state.number(lambda now: now.step + 1)
            for part, h in bucket.groups():
                compute.add_scaled(bucket.params[part], v[part], -self.rate(t, h["lr"]))

    @staticmethod
    def _weight(bucket: Bucket) -> float | Tensor:
        """(t-1) / t."""
        return bucket.train_state.number(lambda now: now.step / (now.step + 1))

    timed: ClassVar[Timed] = {
        kind: {**dict.fromkeys(("step_size", "exponent", "slope"), DEFAULT), "burn_in": burn_in}
        for kind, burn_in in (("burn-in", FOREVER), ("step", 1))
    }
