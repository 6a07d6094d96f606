"""Rounds in which workers agree on a part, or late: DES-LOC, SPARTA, Eager DiLoCo. 2505.22549, openreview stFPf3gzq1, 2502.12996.

DES-LOC averages parameters, first and second moments at three periods. SPARTA averages a random share of the parameters after
every step, whatever rounds there are besides. Eager DiLoCo takes the outer step at once, with the others' progress of the round
before, which has travelled meanwhile. All are local updates (`local_updates`), whose options they share.

Differences of all: none of the papers could be read beyond the abstract; others' formula sheets were, and for SPARTA its code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from reference_impls.algorithms.local_updates import (
    TIMED_ROUNDS,
    DiLoCo,
    LocalUpdates,
    OuterKind,
    PeriodicAveraging,
    average_inner_states,
)
from reference_impls.compressors.sparse import kept, largest
from reference_impls.core import compute
from reference_impls.core.algorithm import (
    FOREVER,
    Bucket,
    OptimizerFactory,
    StateSpec,
    Timed,
    TrainState,
    option,
    per_rank,
)
from reference_impls.core.collectives import Exchange, Group, finish, start
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.schedules import Constant

_FIRST: Final = ("exp_avg", "momentum", "momentum_buffer")
_SECOND: Final = ("exp_avg_sq",)
"""First and second moments by the names that optimizers give them."""


@dataclass(frozen=True)
class DESLOC(PeriodicAveraging):
    """DES-LOC: local AdamW whose moments meet less often than its parameters. arXiv 2505.22549.

    Parameters are averaged every `period` steps, first moments every `first_every`-th of these times, second moments every
    `second_every`-th. All at once is Local Adam; moments never, averaging of parameters alone. The slower a moment forgets, the
    rarer it need meet: 3 and 6 times send half of what Local Adam sends.

    Differences: there is no published code. All is averaged after the step (in the box before it, so that replicas differ again
    when the step is done), nothing at step 0, where all are equal. Periods of moments are whole multiples of that of parameters.
    The step is AdamW's, with bias correction and decoupled decay (the box has neither), and clips nothing unless told to. With
    `total_steps` the last round ends there, and a cut one averages no moments.
    """

    optimizer: str | OptimizerFactory = option("adamw", "local optimizer, as of all-reduce")
    period: int = option(256, "Kx: steps from one average of the parameters to the next", ge=1)
    first_every: int = option(3, "Ku / Kx: averages of parameters to one of first moments; 0: never", ge=0)
    second_every: int = option(6, "Kv / Kx: averages of parameters to one of second moments; 0: never", ge=0)

    @property
    def cycle(self) -> int | None:  # type: ignore[override]
        return self.period * math.lcm(self.first_every or 1, self.second_every or 1)

    def settle_inner_states(self, bucket: Bucket) -> Exchange[None]:
        if bucket.train_state.choice(lambda now: self._due(now, self.first_every)):
            yield from average_inner_states(bucket, _FIRST)
        if bucket.train_state.choice(lambda now: self._due(now, self.second_every)):
            yield from average_inner_states(bucket, _SECOND)

    def _due(self, now: TrainState, every: int) -> bool:
        return every > 0 and (now.step + 1) % (every * self.period) == 0

    def check(self, world: Group) -> None:
        super().check(world)
        if self.inner_state != "keep":
            raise UnsupportedError(
                "DES-LOC says itself when moments are averaged (first_every, second_every): leave inner_state='keep'"
            )

    timed: ClassVar[Timed] = TIMED_ROUNDS


@dataclass(frozen=True)
class SPARTA(LocalUpdates):
    """SPARTA: after every step a random share of the parameters is averaged. openreview stFPf3gzq1.

    k = max(1, floor(p d)) places of a bucket, p = `share`, are drawn by a stream that all workers share; x there becomes the mean
    over workers. Moments of the local optimizer stay each worker's own. There may be rounds besides (``sparta-diloco``): at the
    end of one, everything is averaged in the place of the share, and the outer optimizer steps.

    Differences: exactly k places without replacement (the published code draws each with probability p, by tensor, on one rank,
    and broadcasts the mask, a byte a parameter, 25 times what the values take). Of its three ways to choose, the default. Its
    combination with DiLoCo has an interval that is never read; here too the share is sent after every step. Parameters without a
    gradient are averaged too. The share travels in full precision, whatever the `carrier` of the averages is. With `total_steps`
    everything is averaged at the end, so that all workers end alike.
    """

    meets_locally: ClassVar[bool] = True

    optimizer: str | OptimizerFactory = option("adamw", "local optimizer, as of all-reduce")
    share: float = option(0.005, "p: share of the parameters that is averaged after a step", gt=0, le=1)
    period: int = option(0, "H: steps from one average of everything to the next; 0: none", ge=0)

    @property
    def rule(self) -> Constant:
        return Constant(self.period or FOREVER, self.total_steps)

    def synchronize(self, bucket: Bucket) -> Exchange[None]:
        if bucket.kind == "average":
            yield from self.meet(bucket)
        elif bucket.world.size > 1:
            draws = bucket.key("places", shared=True).bits(bucket.d, bucket.params.device)
            places = largest(draws, kept(self.share, bucket.d))  # a stream has no number twice
            mean = yield from bucket.world.mean(bucket.params.index_select(0, places), "share")
            bucket.params.index_copy_(0, places, mean)

    timed: ClassVar[Timed] = TIMED_ROUNDS


@dataclass(frozen=True)
class SPARTADiLoCo(SPARTA):
    """SPARTA besides rounds of DiLoCo, which may then be a hundred times longer, as its authors say."""

    period: int = option(10_000, "H: steps from one average of everything to the next; 0: none", ge=0)
    outer: OuterKind = option("nesterov", "outer optimizer")
    outer_lr: float = option(0.7, "learning rate of the outer optimizer", ge=0)
    outer_momentum: float = option(0.9, "momentum of the outer optimizer", ge=0, lt=1)


@dataclass(frozen=True)
class EagerDiLoCo(DiLoCo):
    """Eager DiLoCo: the outer step comes at once, with the others' progress of the round before. arXiv 2502.12996.

    At the end of a round a worker has D = A - x. It starts the average of D over n workers, which has a round's time, and steps
    its own anchor by DiLoCo's outer optimizer along mean(D') + (D - D') / n, where D' is the progress of the round before, whose
    mean has arrived: its own part is fresh, that of others one round old. So workers never agree exactly, and anchor, outer
    momentum and D' are each one's own. In the first round D' is 0.

    Differences: there is no published code, and what is done in the first round was not found. With `total_steps` the last
    step lets go of what is under way beyond its outer step, and averages anchors, so that all workers end alike (kind ``final``).
    One worker is DiLoCo.
    """

    @property
    def anchored(self) -> bool:
        return True

    def behind(self, kind: str) -> int:
        return 1 + self.period if kind == "average" else 1

    @property
    def state(self) -> Mapping[str, StateSpec]:
        found = {**super().state, "anchor": per_rank(), "progress": per_rank()}
        return found | {"outer_momentum": per_rank()} if "outer_momentum" in found else found

    def plan(self, train_state: TrainState) -> str:
        kind = self.rule.plan(train_state)
        return "final" if train_state.step + 1 == self.total_steps else kind

    def synchronize(self, bucket: Bucket) -> Exchange[None]:
        if bucket.kind == "local":
            return
        if bucket.world.size == 1:
            yield from self.meet(bucket)
            return
        earlier, own = bucket.state["progress"], self.progress(bucket)
        mixed = compute.zeros(own.shape, own.dtype, own.device)
        if "progress" in bucket.pending:
            mixed.copy_((yield from finish(bucket.pending.pop("progress"))))
        mixed.add_(own, alpha=1 / bucket.world.size).sub_(earlier, alpha=1 / bucket.world.size)
        earlier.copy_(own)
        if bucket.kind == "average":
            bucket.pending["progress"] = yield from start(self.compression.mean(bucket, own, "progress"))
        self.outer_step(bucket, mixed)
        if bucket.kind == "final":
            yield from bucket.world.mean(bucket.state["anchor"], "anchor")
        bucket.params.copy_(bucket.state["anchor"])
        yield from self.settle_inner_states(bucket)

    timed: ClassVar[Timed] = TIMED_ROUNDS
