"""Streaming DiLoCo: DiLoCo fragment by fragment, in the background of local steps. arXiv 2501.18512.

The model is cut into P fragments; each is averaged every H = `period` steps, one fragment every H / P steps, so an
average sends 1/P of the model. What a fragment's workers made of it leaves at step t; the mean is applied `overlap`
steps later: the fragment's outer optimizer moves its anchor A, and x <- c x + (1 - c) A with c = `mixing`. c = 0 throws
away the steps made meanwhile, c = 1 never takes over what others found. The progress may travel by any compression.

Differences: a fragment is a set of buckets, not of transformer blocks (every P-th bucket if ``strided``, consecutive
ones if ``sequential``), so its size depends on the bucket size, and with fewer buckets than fragments some fragments
are empty. Fragment p first leaves after (p + 1) H / P steps, rounded down, then every H steps. The quantised forms are
compressions: integers summed on the way or a compressor; ``e3m0`` stands for the paper's 4-bit floats (a sign and eight
exponents, here zero and seven powers of two under the largest magnitude of a block, rounded at random; scale and
rounding are our choice), gathered and added in full precision. The paper's runs use these; the default here is
``fp32``, whose all-reduce sends more than n-1 gathered messages of 4 bits while n < 16. With `total_steps` the last
step ends what is under way and then averages all fragments without overlap or mixing, so that all workers end with the
anchor, which is what the paper evaluates; without it, they stay apart. The outer momentum is DiLoCo's, our reading.
Buffers are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from reference_impls.algorithms.local_updates import ROUNDS, LocalUpdates, OuterKind
from reference_impls.core.algorithm import (
    DEFAULT,
    Bucket,
    OptimizerFactory,
    Timed,
    TrainState,
    option,
)
from reference_impls.core.collectives import Exchange, Group, finish, start
from reference_impls.core.errors import UnsupportedError


@dataclass(frozen=True)
class Timetable:
    """One of the fragments leaves every `period` / `fragments` steps; all of them meet at `total`."""

    period: int
    fragments: int
    total: int | None

    def leaving(self, done: int) -> int | None:
        """The fragment that leaves when `done` steps are complete, if one does."""
        for p in range(self.fragments):
            first = (p + 1) * self.period // self.fragments
            if done >= first and (done - first) % self.period == 0:
                return p
        return None

    def plan(self, train_state: TrainState) -> str:
        done = train_state.step + 1
        if done == self.total:
            return "final"
        return "local" if self.leaving(done) is None else "average"


@dataclass(frozen=True)
class StreamingDiLoCo(LocalUpdates):
    """Kinds of step: ``local``, ``average`` (a fragment leaves), ``final`` (everything is averaged, at `total_steps`)."""

    total_steps: int | None = option(
        None, "steps of the whole training; at its end all fragments are averaged", ge=1
    )
    period: int = option(100, "H: steps between two averages of a fragment", ge=1)
    fragments: int = option(4, "P: fragments of the model, at most H", ge=1)
    pattern: Literal["strided", "sequential"] = option(
        "strided", "buckets of a fragment: strided (every P-th) or sequential (neighbours)"
    )
    overlap: int = option(
        1, "steps between sending a fragment's progress and applying the mean, less than H", ge=0
    )
    mixing: float = option(
        0.5, "c: share of its own parameters that a worker keeps when it applies the mean", ge=0, le=1
    )
    optimizer: str | OptimizerFactory = option("adamw", "local optimizer, as of all-reduce")
    outer: OuterKind = option("nesterov", "outer optimizer")
    outer_lr: float = option(0.4, "learning rate of the outer optimizer", ge=0)
    outer_momentum: float = option(0.9, "momentum of the outer optimizer", ge=0, lt=1)

    @property
    def anchored(self) -> bool:
        return True

    def behind(self, kind: str) -> int:
        return 1 + self.overlap if kind == "average" else 1

    @property
    def cycle(self) -> int | None:  # type: ignore[override]
        """Fragments differ in size, and where there are fewer buckets some are empty."""
        return self.period if self.fragments > 1 else None

    def check(self, world: Group) -> None:
        super().check(world)
        if self.fragments > self.period:
            raise UnsupportedError(
                f"{self.fragments} fragments do not fit into a period of {self.period} steps: one leaves a step"
            )
        if self.overlap >= self.period:
            raise UnsupportedError(f"overlap must be below the period, {self.period}; got {self.overlap}")
        if self.inner_state != "keep":
            raise UnsupportedError(
                "fragments are averaged at different times: only inner_state='keep' makes sense"
            )

    def fragment(self, bucket: Bucket) -> int:
        """The fragment that a bucket belongs to."""
        if self.pattern == "strided":
            return bucket.index % self.fragments
        return bucket.index * self.fragments // bucket.count

    @property
    def rule(self) -> Timetable:
        return Timetable(self.period, self.fragments, self.total_steps)

    def synchronize(self, bucket: Bucket) -> Exchange[None]:
        if bucket.kind == "final":
            if "progress" in bucket.pending:
                yield from self._arrive(bucket)
            yield from self.meet(bucket)
            return
        own = self.fragment(bucket)
        if bucket.train_state.choice(lambda now: self.rule.leaving(now.step + 1) == own):
            mean = self.compression.mean(bucket, self.progress(bucket), "progress")
            bucket.pending["progress"] = yield from start(mean)
        arrives = bucket.train_state.choice(lambda now: self.rule.leaving(now.step + 1 - self.overlap) == own)
        if "progress" in bucket.pending and arrives:
            yield from self._arrive(bucket)

    def _arrive(self, bucket: Bucket) -> Exchange[None]:
        """The mean progress of this fragment is there: outer step, and the worker mixes it with its own."""
        mean = yield from finish(bucket.pending.pop("progress"))
        self.outer_step(bucket, mean)
        mixed(bucket.params, bucket.state["anchor"], self.mixing)  # x <- c x + (1 - c) A

    @property
    def timed(self) -> Timed:  # type: ignore[override]
        """Kind ``round-H``: H steps of which the last sends a fragment, like a round of local SGD."""
        return {
            f"round-{h}": {
                "total_steps": DEFAULT,
                "period": h * self.fragments,
                "overlap": min(self.overlap, h * self.fragments - 1),
            }
            for h in ROUNDS
        }


def mixed(own: Tensor, shared: Tensor, share: float) -> None:
    """own <- share x own + (1 - share) x shared; at 0 and 1 exactly one of the two."""
    if share == 0:
        own.copy_(shared)
    elif share != 1:
        torch.lerp(shared, own, share, out=own)
