"""When and how unsynchronised momenta are brought together: never, periodically, at doubling gaps, or selectively.

Lion Cub's third factor (arXiv 2411.16462). Periodic and doubling rules are those of its author's code, index 0
included. *Selective* is our definition, since the paper's was not readable and the code parses its flag without using
it: at every `measure_every`-th step tensors are ranked by the disagreement of workers,
V = mean over elements of (E[m^2] - E[m]^2) / (E[m^2] + 1e-30), from fp32 means of m and m^2. Those of largest V are
averaged then and there, and at every `every`-th step until the next measurement: as many as stay within the share
`fraction` of the shard's elements, at least one, so a tensor that fills a bucket of its own is always averaged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impls import buffers
from reference_impls.algorithm import Clock, Shard, Slot, per_rank, replicated
from reference_impls.codecs.sums import fixed_mean
from reference_impls.collectives import Exchange
from reference_impls.errors import UnsupportedError, one_of
from reference_impls.reducers.coded_mean import joined, spread

MODES = ("never", "periodic", "doubling", "selective")


@dataclass(frozen=True)
class MomentumSync:
    """The rule. Kinds of step: ``step``, ``sync`` and, for selective, ``measure``."""

    mode: str
    every: int = 100
    doubling: float = 1.0
    fraction: float = 0.25
    measure_every: int = 1000

    def __post_init__(self) -> None:
        one_of("momentum_sync", self.mode, MODES)
        if self.every < 1 or self.measure_every < 1 or not self.doubling > 0 or not 0 < self.fraction <= 1:
            raise UnsupportedError(
                "momentum sync wants every, measure_every >= 1, doubling > 0 and 0 < fraction <= 1"
            )

    def slots(self) -> Mapping[str, Slot]:
        """The momentum, and for selective which elements are averaged."""
        chosen = {"selected": replicated()} if self.mode == "selective" else {}
        return {"momentum": per_rank(), **chosen}

    def kind(self, clock: Clock) -> str:
        """What this step is; called by `plan`, so it may write counters."""
        if self.mode == "never":
            return "step"
        if self.mode == "selective" and clock.step % self.measure_every == 0:
            return "measure"
        if self.mode == "doubling":
            if clock.step < clock.counters.get("next_sync", 0):
                return "step"
            done = int(clock.counters.get("syncs", 0))
            clock.counters["syncs"] = done + 1
            clock.counters["next_sync"] = int(clock.step + 2 ** (done / self.doubling))
            return "sync"
        return "sync" if clock.step % self.every == 0 else "step"

    def synchronize(self, shard: Shard) -> Exchange[None]:
        """Average the momenta as the kind of the step asks."""
        momentum = shard.state["momentum"]
        if shard.kind == "measure":
            square = torch.square(momentum, out=buffers.empty_like(momentum))
            square = yield from shard.world.mean(square, "momentum-square")
            mean = yield from shard.world.mean(buffers.empty_like(momentum).copy_(momentum), "momentum")
            self._select(shard, mean, square)
            for part in self._selected(shard):
                momentum[part] = mean[part]
        elif shard.kind == "sync" and self.mode == "selective":
            parts = self._selected(shard)
            spread(momentum, parts, (yield from shard.world.mean(joined(momentum, parts), "momentum")))
        elif shard.kind == "sync":
            yield from shard.world.mean(momentum, "momentum")

    def _select(self, shard: Shard, mean: Tensor, square: Tensor) -> None:
        """Choose from reduced values alone, hence alike on all ranks. Consumes `square`."""
        disagreement = torch.square(mean, out=buffers.empty_like(mean))
        torch.sub(square, disagreement, out=disagreement).div_(square.add_(1e-30))
        ranking = [(float(fixed_mean(disagreement[v.part])), v) for v in shard.views]
        order = [v for _, v in sorted(ranking, key=lambda pair: pair[0], reverse=True)]
        selected, budget = shard.state["selected"].zero_(), self.fraction * shard.d
        for place, view in enumerate(order):
            budget -= view.part.stop - view.part.start
            if place > 0 and budget < 0:
                break
            selected[view.part] = 1.0

    @staticmethod
    def _selected(shard: Shard) -> list[slice]:
        """The tensors chosen at the last measurement; step 0 is one, so there is always something."""
        return [view.part for view in shard.views if shard.state["selected"][view.part.start] > 0]
