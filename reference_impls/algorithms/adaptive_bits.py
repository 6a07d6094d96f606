"""Quantisers that choose their bits a coordinate step by step: QSGD, of a width that `plan` decides.

The kind of a step names the width ("4-bit"), so bytes are exact by kind and all ranks send messages of one length. `plan`
runs before the gradient exists: widths follow from numbers that `remember` kept of the last step's mean gradient, which
all ranks have. A method has its rule, `width_at`, and what it remembers.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from torch import Tensor

from reference_impls.algorithms.compressed_gradient import QSGD, CompressedGradient
from reference_impls.compressors.blocks import Norm
from reference_impls.compressors.compressor import Compressor
from reference_impls.compressors.sums import fixed_sum, largest
from reference_impls.core import compute
from reference_impls.core import schedules as rules
from reference_impls.core.algorithm import DEFAULT, Bucket, StateSpec, Timed, TrainState, option, replicated
from reference_impls.core.collectives import Exchange, Group
from reference_impls.core.errors import UnsupportedError

WIDEST = 16


@dataclass(frozen=True)
class AdaptiveBits(CompressedGradient):
    """Kinds of step: ``<b>-bit`` for the widths that may come, and ``warm-up``."""

    norm: Norm = option("linf", "what is sent as the scale: largest magnitude (linf) or 2-norm (l2)")
    block_size: int = option(0, "elements that share a scale; 0: all of a message", ge=0)
    min_bits: int = option(
        2, "fewest bits a coordinate, sign included (one bit is a sign without a level)", ge=2, le=WIDEST
    )
    max_bits: int = option(WIDEST, "most bits a coordinate", ge=2, le=WIDEST)

    @abstractmethod
    def width_at(self, train_state: TrainState) -> int:
        """Bits of this step, min_bits .. max_bits; writes ``train_state.counters``."""

    def plan(self, train_state: TrainState) -> str:
        return "warm-up" if train_state.step < self.warmup_steps else f"{self.width_at(train_state)}-bit"

    def reduce(self, bucket: Bucket) -> Exchange[Tensor]:
        return (yield from self.of_kind(bucket.kind).reduce(bucket))  # QSGD in as many bits

    def check(self, world: Group) -> None:
        if self.min_bits > self.max_bits:
            raise UnsupportedError(f"min_bits {self.min_bits} is more than max_bits {self.max_bits}")
        super().check(world)

    def fixed(self, bits: int) -> QSGD:
        """QSGD that takes every step with this width."""
        return QSGD(
            optimizer=self.optimizer, form=self.form, granularity=self.granularity,
            error_feedback=self.error_feedback, warmup_steps=self.warmup_steps,
            bits=bits, norm=self.norm, block_size=self.block_size,
        )  # fmt: skip

    def compressor(self, n: int) -> Compressor:
        return self.fixed(self.max_bits).compressor(n)

    @property
    def plans_from_data(self) -> bool:
        return True

    def of_kind(self, kind: str) -> QSGD:
        """QSGD that takes steps of this kind."""
        return self.fixed(self.max_bits if kind == "warm-up" else int(kind.removesuffix("-bit")))

    @property
    def widths(self) -> range:
        """The widths that may come."""
        return range(self.min_bits, self.max_bits + 1)

    @property
    def timed(self) -> Timed:  # type: ignore[override]
        of_all = {own.name for own in fields(AdaptiveBits)}  # the others only decide widths
        rule = [own.name for own in fields(self) if own.name not in of_all]
        when = dict.fromkeys((*rule, "warmup_steps"), DEFAULT)
        widths = {f"{bits}-bit": {**when, "min_bits": bits, "max_bits": bits} for bits in self.widths}
        return {**widths, "warm-up": CompressedGradient.timed["warm-up"]} if self.warmup_steps else widths


def whole_norm(parts: Sequence[Tensor], norm: Norm) -> float:
    """Norm of all parts together; not finite where an element is not."""
    if norm == "linf":
        return float(torch.stack([largest(part) for part in parts]).amax())
    squares = [fixed_sum(part, "wide square") for part in parts]
    return float(fixed_sum(torch.stack(squares)).sqrt())


@dataclass(frozen=True)
class DQSGD(AdaptiveBits):
    """DQ-SGD: as many bits a coordinate as the gradient's norm and the steps to go are worth. arXiv 2107.14575.

    g <- mean of g_i in as many bits as the rule gives the step.

    B = 1 + log2(1 + factor contraction^(left/2) |g|), rounded up: the quantiser's step |g| / s is then the same in all steps
    (non-convex, contraction 1), or shrinks geometrically towards the end of the training (strongly convex). The quantiser is
    QSGD's with s = 2^(B-1) - 1; no error feedback. `calibration_steps` of fixed width find the factor by which the average
    width, before it is rounded up, would be `target_bits` if the norm stayed as it is: up to a bit more is sent.

    Differences: read were the main text of an earlier version (ICLR 2021 submission; its second algorithm and how it sets the
    constants were not in it) and the abstract of the later one. |g| is that of the last step's mean gradient over the whole
    model, which all ranks know without a word, there of the step's own local gradient; the first width is
    ceil(target_bits). One bit, which would leave no level, is forbidden. The scale that is sent is a message's own, there
    the whole vector's: so the step is at most |g| / s. Calibration is ours. Only the way to a server is counted there.
    """

    rule: Literal["non-convex", "convex"] = option("non-convex", "weights of steps: equal, or growing")
    contraction: float = option(
        0.999, "convex rule: factor a step by which an error made now has faded", gt=0, le=1
    )
    factor: float = option(0.0, "k or t of the rule; 0: calibrated", ge=0)
    target_bits: float = option(
        4.5, "average bits a coordinate before rounding up, which the calibration aims at", gt=0
    )
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
        return rules.whole_bits(self.target_bits, self.min_bits, self.max_bits)

    def width_at(self, train_state: TrainState) -> int:
        left = max((self.total_steps or 0) - train_state.step, 1)
        return rules.whole_bits(self.nominal(train_state, left), self.min_bits, self.max_bits)

    def nominal(self, train_state: TrainState, left: int) -> float:
        """Bits of the rule, a real number."""
        counters = train_state.counters
        done = train_state.step - self.warmup_steps
        if "norm" not in counters or (not self.factor and done < self.calibration_steps):
            return self.first_bits
        contraction = self.contraction if self.rule == "convex" else 1.0
        factor = self.factor or counters.get("factor", 0.0)
        if not factor:
            factor = rules.factor_for(
                self.target_bits, counters["mean_norm"], contraction, left, self.min_bits, self.max_bits
            )
            counters["factor"] = factor
        return rules.nominal_bits(rules.wanted_levels(factor, counters["norm"], contraction, left))

    def remember(self, buckets: Sequence[Bucket], reduced: Sequence[Tensor]) -> Mapping[str, int | float]:
        counters = buckets[0].train_state.counters
        norm = whole_norm(reduced, self.norm)
        if buckets[0].kind == "warm-up":  # the factor is for the steps that it is used in
            return {"norm": norm}
        seen = int(counters.get("norms", 0))
        mean = counters.get("mean_norm", 0.0)
        return {"norm": norm, "norms": seen + 1, "mean_norm": mean + 1 / (seen + 1) * (norm - mean)}


@dataclass(frozen=True)
class AdaQS(AdaptiveBits):
    """AdaQS: one bit more a coordinate whenever the gradient's mean has halved against its deviation (Guo et al., 2020).

    g <- mean of g_i, from min_bits a coordinate upwards.

    m and v are running means of the mean gradient and of its square; the ratio is |m| / sqrt(sum(v - m^2)) over the whole
    model. At the start gradients agree from step to step and few levels do; near an optimum they are noise around little,
    and coarse levels would be noise upon it. QSGD's quantiser, levels doubled when the ratio has fallen by `fall` from
    its highest since the last time, looked at every `interval` steps; never fewer again.

    Differences: neither the paper (IEEE ICASSP 2020) nor its code could be read. That precision follows the ratio of mean to
    standard deviation and doubles is known from others' comparisons; how the ratio is taken (over steps, with the decay
    here, without the newest gradient), when, and by how much it must fall are our own reading.
    No claim of the paper can be held against this.
    """

    min_bits: int = option(4, "bits a coordinate at the start, sign included", ge=2, le=WIDEST)
    max_bits: int = option(8, "most bits a coordinate", ge=2, le=WIDEST)
    decay: float = option(0.9, "of the running means of the gradient and its square", gt=0, lt=1)
    fall: float = option(2.0, "factor by which the ratio must fall for one bit more", gt=1)
    interval: int = option(100, "steps between two looks at the ratio", ge=1)

    @property
    def state(self) -> Mapping[str, StateSpec]:
        return {**super().state, "mean": replicated(), "square": replicated()}

    def width_at(self, train_state: TrainState) -> int:
        counters = train_state.counters
        bits = int(counters.get("bits", self.min_bits))
        ratio = counters.get("ratio", math.nan)
        if (train_state.step - self.warmup_steps) % self.interval == 0 and 0 < ratio < math.inf:
            reference = counters.get("reference", 0.0)
            bits, counters["reference"] = rules.doubled(bits, ratio, reference, self.fall)
        counters["bits"] = min(bits, self.max_bits)
        return int(counters["bits"])

    def update(self, bucket: Bucket, reduced: Tensor) -> None:
        own = compute.empty_like(bucket.params).copy_(reduced)
        bucket.state["mean"].lerp_(own, 1 - self.decay)
        bucket.state["square"].lerp_(own.square_(), 1 - self.decay)
        super().update(bucket, reduced)

    def remember(self, buckets: Sequence[Bucket], reduced: Sequence[Tensor]) -> Mapping[str, int | float]:
        if buckets[0].train_state.choice(lambda now: (now.step + 1 - self.warmup_steps) % self.interval != 0):
            return {}
        means = [_wide(s.state["mean"]).square_() for s in buckets]
        squares = [_wide(s.state["square"]) for s in buckets]
        signal = float(sum(fixed_sum(m) for m in means))
        noise = float(sum(fixed_sum(v.sub_(m)) for v, m in zip(squares, means, strict=True)))
        return {"ratio": math.sqrt(signal / noise) if noise > 0 else math.nan}


def _wide(x: Tensor) -> Tensor:
    return compute.empty_like(x, torch.float64).copy_(x)
