"""1-bit Adam: APMSqueeze's rule with one scale a buffer, a momentum mask, and a freeze that may come by itself. 2102.02888.

Warm-up (T_w steps, ``freeze_step`` elsewhere): Adam without bias correction on the exact mean gradient. Then v is
frozen, u_i = b1 m + (1-b1) g_i is averaged in one bit with worker and server errors, and x <- x - lr m / (sqrt(v) + eps).
With ``freeze="auto"`` the variance is frozen when |v|_1 and what it was `auto_window` steps before are within a factor
`auto_ratio` of each other. The body of the paper could not be read; DeepSpeed's code, tutorial and blog were.

``one-bit-adam-deepspeed`` fixes DeepSpeed's numbers: one scale a buffer on the way up, padding takes part in scales
and carries errors. Not repeated there, on purpose: its first call only allocates, which in fp32 throws the first
gradient away and in fp16 shortens the warm-up by a step; a checkpoint loses the errors and the momentum mask, and in
fp32 a resumed run averages nothing in its first step, so that replicas part; scales are gathered as tensors without
dimension, which gloo refuses; groups that are never frozen are averaged over all processes; every parameter is padded
and sent alone in fp32; max_grad_norm, which it takes and ignores, works here.

Differences: the mask is not given but is where the frozen variance is 0 (rows of a table that no batch reads): their
agreed momentum is set to 0, their errors are kept, as in DeepSpeed. The buffer is a bucket; DeepSpeed's is a parameter
group (fp16) or a parameter (fp32), and is padded to n lcm(n, 8) elements, which is our 8 n where n divides 8. T_w is
15 % of the training unless given (15 to 25 % in the tutorial), and never before the learning rate's warm-up ends. The
automatic freeze compares at multiples of the window only, and both ways: as third parties' notes have it, later over
earlier, a variance that starts at 0 and grows would pass at once. Its ratio is known from those notes, its window of
1 / (1 - b2) steps is our own reading, so it is no default. One worker compresses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from reference_impls.algorithm import (
    DEFAULT,
    Clock,
    Shard,
    Timed,
    option,
)
from reference_impls.algorithms.apmsqueeze import APMSqueeze
from reference_impls.algorithms.compressed_momentum import TIMED
from reference_impls.codecs.sums import fixed_sum
from reference_impls.reducers.compressed_all_reduce import Scale


@dataclass(frozen=True)
class OneBitAdam(APMSqueeze):
    """Kinds of step: ``warm-up`` (fp32 all-reduce of gradients) and ``compressed`` (1-bit momentum)."""

    scale: Scale = option("shard", "on the way up one scale a server's chunk, a shard, or a tensor")
    freeze: Literal["steps", "auto"] = option(
        "steps", "steps: after T_w; auto: when the variance stops growing"
    )
    auto_ratio: float = option(
        0.96, "freeze when |v|_1 then and now are within this factor (freeze=auto)", gt=0, le=1
    )
    auto_window: int = option(1000, "steps between the two, 1 / (1 - beta2) (freeze=auto)", ge=1)

    masks_momentum: ClassVar[bool] = True

    def check_freezing(self) -> None:
        if self.freeze == "steps":
            super().check_freezing()

    @property
    def plans_from_data(self) -> bool:
        return self.freeze == "auto"

    def plan(self, clock: Clock) -> str:
        if self.freeze != "auto":
            return super().plan(clock)
        counters = clock.counters  # of the variance, which is the same on all ranks
        if "frozen" not in counters and clock.step >= self.lr_warmup_steps:
            before, norm = counters.get("norm_before", 0.0), counters.get("norm", 0.0)
            if min(before, norm) >= self.auto_ratio * max(before, norm) > 0:
                counters["frozen"] = clock.step
        return "compressed" if "frozen" in counters else "warm-up"

    def remember(self, shards: Sequence[Shard], reduced: Sequence[Tensor]) -> Mapping[str, int | float]:
        """|v|_1 once a window, as it was before this step's update, and what it was a window earlier."""
        clock = shards[0].clock
        if (
            self.freeze == "steps"
            or clock.kind != "warm-up"
            or clock.step == 0
            or clock.step % self.auto_window
        ):
            return {}
        norm = sum(
            float(fixed_sum(shard.state["variance"].double())) for shard in shards
        )  # alike on all ranks
        return {"norm_before": clock.counters.get("norm", 0.0), "norm": norm}

    timed: ClassVar[Timed] = {
        kind: {**changes, **dict.fromkeys(("freeze", "auto_ratio", "auto_window"), DEFAULT)}
        for kind, changes in TIMED.items()
    }
