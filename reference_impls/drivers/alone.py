"""What a method sends: one rank takes its steps alone, without a network, of a model of which only the shapes are known.

Tensors lie on the meta device, so nothing is computed and a model of any size costs the same. A method that asks for their
values takes its steps on the CPU, with gradients drawn from a normal distribution: it sends what those led to. `remember` is
not asked, so that a method which chooses by the last gradient sends what it sends before its first choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from reference_impls import wire
from reference_impls.algorithm import Algorithm, Clock
from reference_impls.collectives import Group
from reference_impls.drivers.engine import Engine
from reference_impls.drivers.ledger import Ledger
from reference_impls.drivers.local_workers import LocalWorkers
from reference_impls.drivers.null import NullTransport
from reference_impls.drivers.requests import RequestLedger
from reference_impls.drivers.worker import Worker
from reference_impls.errors import UnsupportedError
from reference_impls.registry import Method
from reference_impls.requests import Step

LARGEST: Final = 1 << 27
"""Parameters of the largest model whose gradients are drawn."""
_TOLD: Final[Mapping[str, float]] = {"loss": 1.0, "accuracy": 0.0}
"""What `optimizer.observe` has told."""
_ONE_SHARD: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Moment:
    """What a step is planned by: completed steps, counters, learning rate."""

    step: int
    counters: Mapping[str, int | float]
    lr: float


@dataclass(frozen=True, slots=True)
class Taken:
    """A step of some kind.

    Attributes:
        nbytes: That a rank sends in it, without `plan`; the mean over ranks.
        planning: That it sends in `plan`.
        step: What the first rank asks for.
    """

    nbytes: float
    planning: float
    step: Step


def planned(algorithm: Algorithm, n: int, rates: Iterable[float]) -> Iterator[tuple[str, Moment]]:
    """The steps of a training in order, as far as options, step and learning rate decide.

    Args:
        algorithm: Configured.
        n: Ranks.
        rates: Learning rates, one a step.

    Yields:
        The kind of a step, and what it was planned by.

    Raises:
        UnsupportedError: The method cannot be used so, or asks others without saying that it plans by what happens.
    """
    clock = Clock(Group("world", 0, n), observed=dict(_TOLD))
    algorithm.check(clock.world)
    engine = _engine(0, n)
    for clock.step, clock.lr in enumerate(rates):
        before = Moment(clock.step, dict(clock.counters), clock.lr)
        kind = algorithm.plan(clock)
        if not isinstance(kind, str):
            if not algorithm.plans_from_data:
                raise UnsupportedError(
                    f"{type(algorithm).__name__} asks others for the kind of a step: let it declare `plans_from_data`"
                )
            (kind,) = engine.run([kind])
        yield kind, before


def firsts(steps: Iterable[tuple[str, Moment]]) -> dict[str, Moment]:
    """Kind -> what the first step of that kind was planned by, in order."""
    found: dict[str, Moment] = {}
    for kind, moment in steps:
        found.setdefault(kind, moment)
    return found


def traced(
    method: Method, shapes: Sequence[Sequence[int]], n: int, moments: Mapping[str, Moment]
) -> dict[str, Taken]:
    """What a step of each kind sends, of a model of float32 in one shard.

    Args:
        method: Configured.
        shapes: Of the model's parameters, in order.
        n: Ranks.
        moments: Kind -> what a step of that kind is planned by (`firsts`), in the order of the training.

    Returns:
        Kind -> what is sent; the mean over a period where exchanges go on over steps, or a model is averaged in fragments.

    Raises:
        UnsupportedError: The method cannot be used so, or asks for the values of more than `LARGEST` parameters.
    """
    try:
        return _mean(method, shapes, n, moments, "meta")
    except RuntimeError as error:  # torch's: there are no values
        if (d := wire.elements(shapes)) > LARGEST:
            raise UnsupportedError(
                f"{method.name} asks for values of gradients, which are not drawn for {d:,} parameters: `bandwise try` counts "
                "what it sends"
            ) from error
    return _mean(method, shapes, n, moments, "cpu")


def _mean(
    method: Method, shapes: Sequence[Sequence[int]], n: int, moments: Mapping[str, Moment], device: str
) -> dict[str, Taken]:
    """Of all ranks; of the first alone where all send alike, as in every collective but one."""
    first = _of_rank(method, shapes, 0, n, moments, device)
    if not any(asked.collective == "send-recv" for one in first.values() for asked in one.step.requests()):
        return first
    every = [first, *(_of_rank(method, shapes, rank, n, moments, device) for rank in range(1, n))]
    return {
        kind: Taken(fmean(one[kind].nbytes for one in every), taken.planning, taken.step)
        for kind, taken in first.items()
    }


def _of_rank(
    method: Method,
    shapes: Sequence[Sequence[int]],
    rank: int,
    n: int,
    moments: Mapping[str, Moment],
    device: str,
) -> dict[str, Taken]:
    alone = _Alone(method, shapes, rank, n, device)
    found, goes_on = {}, getattr(method.algorithm, "fragments", 1) > 1
    for kind, moment in moments.items():
        found[kind] = alone.take(moment)
        goes_on = alone.forget_pending() or goes_on
    if not goes_on:
        return found
    alone, period = _Alone(method, shapes, rank, n, device), int(getattr(method.algorithm, "period", 1))
    begin, sent = next(iter(moments.values())), defaultdict[str, list[float]](list)
    for step in range(2 * period):
        taken = alone.take(begin if step == 0 else None)
        if step >= period:
            sent[taken.step.kind].append(taken.nbytes)
    return {
        kind: Taken(fmean(sent[kind]), one.planning, one.step) if kind in sent else one
        for kind, one in found.items()
    }


class _Alone:
    """A rank that goes on without hearing from others."""

    def __init__(
        self, method: Method, shapes: Sequence[Sequence[int]], rank: int, n: int, device: str
    ) -> None:
        params = [torch.zeros(*shape, device=device) for shape in shapes]
        group = {"params": params, "param_names": [str(i) for i in range(len(params))], **method.group(lr=0.0)}
        self._worker = _Unwatched(method.algorithm, [group], rank=rank, size=n, bucket_bytes=_ONE_SHARD)
        self._worker.clock.device = torch.device("cpu")  # where `plan` sends from
        self._worker.clock.observed.update(_TOLD)
        self._engine = _engine(rank, n)
        self._asked = RequestLedger(self._engine, self._worker.shards)
        self._phases = LocalWorkers([self._worker], self._engine, unused="zeros")

    def take(self, moment: Moment | None = None) -> Taken:
        """The step of `moment`, or the next one."""
        clock = self._worker.clock
        if moment is not None:
            clock.step = moment.step
            clock.counters.update(moment.counters)
            for group in self._worker.optimizer.param_groups:
                group["lr"] = moment.lr
        for shard in self._worker.shards:
            shard.grads.normal_(generator=_generator(shard.grads, clock.step))
            for probe in self._worker.algorithm.probes:
                shard.gradients[probe] = shard.grads.clone()
        self._asked.clear()
        self._phases.plan()
        self._phases.complete()
        of_plan, rest = 0.0, 0.0
        for row in self._asked.rows():
            if row["kind"] == "plan":
                of_plan += row["wire_bytes"]
            else:
                rest += row["wire_bytes"]
        return Taken(rest, of_plan, self._asked.steps[-1])

    def forget_pending(self) -> bool:
        """Whether something was under way."""
        waiting = [shard for shard in self._worker.shards if shard.pending]
        for shard in waiting:
            shard.pending.clear()
        self._engine.discard()
        return bool(waiting)


class _Unwatched(Worker):
    """A worker whose parameters may lie nowhere, and which remembers nothing of its gradients."""

    def check_home(self) -> None:
        """They lie where they lay."""

    def remember(self, reduced: Sequence[Tensor]) -> None:
        """Nothing: what others sent is not known."""


def _engine(rank: int, n: int) -> Engine:
    ranks: Any = SimpleNamespace(ranks=[rank], size=n)
    return Engine(NullTransport(ranks), [Ledger(rank)])


def _generator(like: Tensor, step: int) -> torch.Generator | None:
    return None if like.is_meta else torch.Generator().manual_seed(step)
