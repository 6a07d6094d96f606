"""What a method sends: one rank takes its steps alone, without a network, of a model of which only the shapes are known.

Tensors lie on the meta device, so nothing is computed and a model of any size costs the same. A method that asks for their
values takes its steps on the CPU, from parameters of zeros, with gradients drawn from a normal distribution: it sends what those
led to. What chooses by the gradients of earlier steps (`remember`) sends what it sends before its first choice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat
from math import prod
from statistics import fmean
from typing import Any, Final

import torch
from torch import Tensor

from reference_impls.core.algorithm import FOREVER, Algorithm, TrainState
from reference_impls.core.collectives import Group, Ledger
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.registry import Method
from reference_impls.runtime.engine import Engine, NoOpBackend
from reference_impls.runtime.worker import Worker

LARGEST: Final = 1 << 27
"""Parameters of the largest model whose gradients are drawn."""
MOST: Final = 16
"""Ranks that each take a step where they send unlike each other."""
_TOLD: Final[Mapping[str, float]] = {"loss": 1.0, "accuracy": 0.0}
"""What `optimizer.observe` has told."""
Shapes = Sequence[Sequence[int]] | Mapping[str, Sequence[int]]
"""Of a model's parameters, in order; by name for methods that look at names. Without names all matrices are hidden ones."""
_ONE_BUCKET: Final = 1 << 62
_SHORTEST: Final = 200
_RATE: Final = 1e-3
"""Steps and learning rate of a training of which nothing is known."""


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
        rows: The ledger's of the first rank, in the order of first use.
    """

    nbytes: float
    planning: float
    rows: Sequence[Mapping[str, Any]]


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
    train_state = TrainState(Group("world", 0, n), observed=dict(_TOLD))
    algorithm.check(train_state.world)
    engine = _engine(0, n)
    for train_state.step, train_state.lr in enumerate(rates):
        before = Moment(train_state.step, dict(train_state.counters), train_state.lr)
        kind = algorithm.plan(train_state)
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


def kinds(algorithm: Algorithm, n: int = 2) -> dict[str, Moment]:
    """The kinds of steps of a training that is long enough for all of them.

    Args:
        algorithm: Configured.
        n: Ranks.

    Returns:
        Kind -> what the first step of that kind is planned by, in order.

    Raises:
        UnsupportedError: As `planned`.
    """
    return firsts(planned(algorithm, n, repeat(_RATE, _length(algorithm))))


def traced(method: Method, shapes: Shapes, n: int) -> dict[str, float]:
    """Bytes that a rank sends, of a model of float32 in one bucket.

    Args:
        method: Configured.
        shapes: Of the model's parameters.
        n: Ranks.

    Returns:
        Kind of step -> bytes in one, the mean over ranks; ``plan`` -> bytes in `plan`, in steps in which it sends.

    Raises:
        UnsupportedError: As `taken`.
    """
    own = method.algorithm
    if getattr(own, "total_steps", 0) is None:  # it asks how long the training is
        own = _ending(own, _length(own))
    method = replace(method, algorithm=own)
    found = taken(method, shapes, n, kinds(own, n))
    if own.plans_from_data:  # kinds that came of no gradient
        for kind in own.timed.keys() - found.keys():
            steady = replace(method, algorithm=own.steadily(kind))
            coming = kinds(steady.algorithm, n)
            found |= taken(steady, shapes, n, {kind: coming[kind]} if kind in coming else {})
        found = {kind: found[kind] for kind in dict.fromkeys((*own.timed, *found)) if kind in found}
    planning = [one.planning for one in found.values() if one.planning]
    return {kind: one.nbytes for kind, one in found.items()} | ({"plan": fmean(planning)} if planning else {})


def taken(method: Method, shapes: Shapes, n: int, moments: Mapping[str, Moment]) -> dict[str, Taken]:
    """What a step of each kind sends, of a model of float32 in one bucket.

    Args:
        method: Configured.
        shapes: Of the model's parameters.
        n: Ranks.
        moments: Kind -> what a step of that kind is planned by (`firsts`), in the order of the training.

    Returns:
        Kind -> what is sent; the mean over a period where exchanges go on over steps, or over `Algorithm.cycle`.

    Raises:
        UnsupportedError: The method cannot be used so, or asks for the values of more than `LARGEST` parameters.
    """
    try:
        return _mean(method, shapes, n, moments, "meta")
    except RuntimeError as error:  # torch's: there are no values
        if (d := sum(map(prod, _by_name(shapes).values()))) > LARGEST:
            raise UnsupportedError(
                f"{method.name} asks for values of gradients, which are not drawn for {d:,} parameters: `bandwise try` counts "
                f"what it sends; or it makes a tensor without `device=`: {str(error).partition(chr(10))[0]}"
            ) from error
    return _mean(method, shapes, n, moments, "cpu")


def _mean(
    method: Method, shapes: Shapes, n: int, moments: Mapping[str, Moment], device: str
) -> dict[str, Taken]:
    """Of all ranks; of the first alone where all send alike, as in every collective but one.

    Of many that send unlike each other it is that of n / 2^i and n / 2^(i+1) ranks on a line in 1/n, which is so in trees, in
    halving and doubling, in rings and in pairs, but for pieces that are filled up.
    """
    first = _of_rank(method, shapes, 0, n, moments, device)
    if not any(row["collective"] == "send-recv" for one in first.values() for row in one.rows):
        return first
    if n <= MOST:
        every = [first, *(_of_rank(method, shapes, rank, n, moments, device) for rank in range(1, n))]
        means = {kind: fmean(one[kind].nbytes for one in every) for kind in first}
    else:
        halved = (n - 1).bit_length() - MOST.bit_length() + 1
        some, fewer = (_like(n, halved + i) for i in range(2))
        at, below = (_mean(method, shapes, ranks, moments, device) for ranks in (some, fewer))
        share = (1 / some - 1 / n) / (1 / fewer - 1 / some)
        means = {kind: at[kind].nbytes + share * (at[kind].nbytes - below[kind].nbytes) for kind in first}
    return {kind: Taken(means[kind], taken.planning, taken.rows) for kind, taken in first.items()}


def _like(n: int, halved: int) -> int:
    """About n / 2^halved ranks: odd where n is, which leaves one without a partner, and a power of two where n is one."""
    found = (n >> halved) + ((n >> halved) + n) % 2
    return found + 2 if found & (found - 1) == 0 and n & (n - 1) else found


def _of_rank(
    method: Method,
    shapes: Shapes,
    rank: int,
    n: int,
    moments: Mapping[str, Moment],
    device: str,
) -> dict[str, Taken]:
    alone = _Alone(method, shapes, rank, n, device)
    cycle = method.algorithm.cycle or 0
    found, goes_on = {}, cycle > 0
    for kind, moment in moments.items():
        found[kind] = alone.take(moment)
        goes_on = alone.forget_pending() or goes_on
    if not goes_on:
        return found
    period = cycle or int(getattr(method.algorithm, "period", 1))
    # the last step of a training is another
    alone = _Alone(replace(method, algorithm=_ending(method.algorithm, None)), shapes, rank, n, device)
    begin, sent = next(iter(moments.values())), defaultdict[str, list[float]](list)
    for step in range(2 * period):
        taken = alone.take(begin if step == 0 else None)
        if step >= period:
            sent[alone.kind].append(taken.nbytes)
    return {
        kind: Taken(fmean(sent[kind]), one.planning, one.rows) if kind in sent else one
        for kind, one in found.items()
    }


def _length(algorithm: Algorithm) -> int:
    """Steps in which all kinds come: those of the training, or four times the largest number among the options."""
    options = {own.name: getattr(algorithm, own.name) for own in fields(algorithm)}
    numbers = [value for value in options.values() if isinstance(value, int) and value < FOREVER]
    return options.get("total_steps") or 4 * max([_SHORTEST // 4, *numbers])


def _ending(algorithm: Algorithm, total_steps: int | None) -> Algorithm:
    """Told how long the training is, or, by None, nothing of its end."""
    changed: dict[str, Any] = {"total_steps": total_steps}
    return replace(algorithm, **changed) if hasattr(algorithm, "total_steps") else algorithm


class _Alone:
    """A rank that hears from nobody. Its steps leave out what sends nothing: `update`, `remember`, the local optimizer.

    That one is stepped once, since what it keeps may be sent, and in every local step where values decide what is sent. Where
    there are none it is stepped only if somebody asks for what it keeps, since that takes far longer than all else.
    """

    def __init__(self, method: Method, shapes: Shapes, rank: int, n: int, device: str) -> None:
        params = {name: torch.zeros(tuple(shape), device=device) for name, shape in _by_name(shapes).items()}
        group = {"params": [*params.values()], "param_names": [*params], **method.group(lr=0.0)}
        worker = Worker(method.algorithm, [group], rank=rank, size=n, bucket_bytes=_ONE_BUCKET)
        (self._bucket,) = worker.buckets
        worker.train_state.device = torch.device("cpu")  # where `plan` sends from
        worker.train_state.observed.update(_TOLD)
        self._engine, self._worker = _engine(rank, n), worker
        self._moves = (
            method.algorithm.local_steps and method.algorithm.has_inner_optimizer and device != "meta"
        )
        if method.algorithm.has_inner_optimizer:
            worker.given = None  # all parameters are used
            if device == "meta":
                self._bucket.inner_state_of = self._kept
            else:
                worker.step_optimizer()

    def _kept(self, param: Tensor) -> dict[str, Any]:
        if not self._worker.optimizer.state:
            self._worker.step_optimizer()
        kept: dict[str, Any] = self._worker.optimizer.state.get(param, {})
        return kept

    @torch.no_grad()
    def take(self, moment: Moment | None = None) -> Taken:
        """The step of `moment`, or the next one."""
        worker, bucket, engine = self._worker, self._bucket, self._engine
        algorithm, train_state, (ledger,) = worker.algorithm, worker.train_state, engine.ledgers
        if moment is not None:
            train_state.step, train_state.lr = moment.step, moment.lr
            train_state.counters.update(moment.counters)
            for group in worker.optimizer.param_groups:
                group["lr"] = moment.lr
        for gradient in (bucket.grads, *bucket.gradients.values()):
            draws = None if gradient.is_meta else torch.Generator().manual_seed(train_state.step)
            gradient.normal_(generator=draws)
        ledger.clear()
        ledger.step, ledger.kind = train_state.step, "plan"
        (train_state.kind,) = engine.run([algorithm.plan(train_state)])
        planning, ledger.kind = _sent(ledger), train_state.kind
        engine.submit([algorithm.reduce(bucket)])
        engine.finish()
        engine.advance_background()
        if self._moves:
            worker.step_optimizer()
        engine.run([algorithm.synchronize(bucket)])
        train_state.step += 1
        return Taken(_sent(ledger) - planning, planning, ledger.rows())

    @property
    def kind(self) -> str:
        """Of the step taken last."""
        return self._worker.train_state.kind

    def forget_pending(self) -> bool:
        """Whether something was under way."""
        waits = bool(self._bucket.pending)
        self._bucket.pending.clear()
        self._engine.discard()
        return waits


def _by_name(shapes: Shapes) -> Mapping[str, Sequence[int]]:
    return shapes if isinstance(shapes, Mapping) else {str(i): shape for i, shape in enumerate(shapes)}


def _engine(rank: int, n: int) -> Engine:
    return Engine(NoOpBackend([rank], n), [Ledger(rank)])


def _sent(ledger: Ledger) -> float:
    return float(sum(row["wire_bytes"] for row in ledger.rows()))
