"""DQ-SGD: as many bits a coordinate as the gradient's norm and the steps to go are worth. arXiv 2107.14575.

B = 1 + log2(1 + factor contraction^(left/2) |g|), rounded up: the quantiser's step |g| / s is then the same in all steps
(non-convex, contraction 1), or shrinks geometrically towards the end of the training (strongly convex). The quantiser is
QSGD's with s = 2^(B-1) - 1; no error feedback. `calibration_steps` of fixed width find the factor by which the average
width would be `target_bits` if the norm stayed as it is.

Differences: read were the main text of an earlier version (ICLR 2021 submission; its second algorithm and how it sets the
constants were not in it) and the abstract of the later one. |g| is that of the last step's mean gradient over the whole
model, which all ranks know without a word, there of the step's own local gradient; the first width is
ceil(target_bits). One bit, which would leave no level, is forbidden. The scale that is sent is a message's own, there
the whole vector's: so the step is at most |g| / s. Calibration is ours. Only the way to a server is counted there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from reference_impls.algorithm import Clock, Shard, option
from reference_impls.algorithms.adaptive_bits import AdaptiveBits, whole_norm
from reference_impls.collectives import Exchange, Group
from reference_impls.errors import UnsupportedError
from reference_impls.schedules import factor_for, nominal_bits, wanted_levels, whole_bits

_WHEN = (
    "rule", "contraction", "factor", "target_bits", "calibration_steps", "total_steps",
    "min_bits", "max_bits", "warmup_steps",
)  # fmt: skip


@dataclass(frozen=True)
class DQSGD(AdaptiveBits):
    """g <- mean of g_i in as many bits as the rule gives the step."""

    rule: Literal["non-convex", "convex"] = option("non-convex", "weights of steps: equal, or growing")
    contraction: float = option(
        0.999, "convex rule: factor a step by which an error made now has faded", gt=0, le=1
    )
    factor: float = option(0.0, "k or t of the rule; 0: calibrated", ge=0)
    target_bits: float = option(4.5, "average bits a coordinate, which the calibration aims at", gt=0)
    calibration_steps: int = option(100, "first steps, of ceil(target_bits), whose norms are averaged", ge=0)
    total_steps: int | None = option(None, "steps of the training (convex rule)", ge=1)

    def check(self, world: Group) -> None:
        super().check(world)
        if not self.factor and self.calibration_steps < 1:
            raise UnsupportedError("without a factor there must be at least one of calibration_steps")
        if self.rule == "convex" and not self.total_steps:
            raise UnsupportedError("the convex rule needs total_steps, the training's length")

    @property
    def first_bits(self) -> int:
        """Width before a norm is known."""
        return whole_bits(self.target_bits, self.min_bits, self.max_bits)

    def plan(self, clock: Clock) -> str:
        return "warm-up" if clock.step < self.warmup_steps else f"{self.width_at(clock)}-bit"

    def reduce(self, shard: Shard) -> Exchange[Tensor]:
        return (yield from self.of_kind(shard.kind).reduce(shard))  # QSGD in as many bits

    def width_at(self, clock: Clock) -> int:
        """Bits of this step, min_bits .. max_bits; writes ``clock.counters``."""
        left = max((self.total_steps or 0) - clock.step, 1)
        return whole_bits(self.nominal(clock, left), self.min_bits, self.max_bits)

    def nominal(self, clock: Clock, left: int) -> float:
        """Bits of the rule, a real number."""
        counters = clock.counters
        done = clock.step - self.warmup_steps
        if "norm" not in counters or (not self.factor and done < self.calibration_steps):
            return self.first_bits
        contraction = self.contraction if self.rule == "convex" else 1.0
        factor = self.factor or counters.get("factor", 0.0)
        if not factor:
            factor = factor_for(
                self.target_bits, counters["mean_norm"], contraction, left, self.min_bits, self.max_bits
            )
            counters["factor"] = factor
        return nominal_bits(wanted_levels(factor, counters["norm"], contraction, left))

    def remember(self, shards: Sequence[Shard], reduced: Sequence[Tensor]) -> Mapping[str, int | float]:
        counters = shards[0].clock.counters
        norm = whole_norm(reduced, self.norm)
        seen = int(counters.get("norms", 0))
        mean = counters.get("mean_norm", 0.0)
        return {"norm": norm, "norms": seen + 1, "mean_norm": mean + 1 / (seen + 1) * (norm - mean)}

    when: ClassVar[Sequence[str]] = _WHEN
