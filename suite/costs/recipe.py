"""What a step asks for: which collectives, over which group, of how many bytes, bucket by bucket.

Found by taking the step: one rank of the method runs over a transport that answers every collective from the rank's own
buffer and writes down what was asked. So a recipe needs no network, holds for any number of ranks, and cannot differ from
what the method does. Answers are nonsense, and so are the numbers computed with them; sizes are not, save where data
decide what is sent (merged sparse vectors), which random gradients stand for.

A model of which only the size is known has a synthetic recipe: that of one bucket, repeated, its bytes corrected to what the
method declares to send for the whole of a transformer of that size (`Algorithm.wire_bytes`).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np
import torch

from reference_impls.collectives import Collective
from reference_impls.drivers.engine import Engine
from reference_impls.drivers.ledger import Ledger
from reference_impls.drivers.local_workers import LocalWorkers
from reference_impls.drivers.null import answer
from reference_impls.drivers.requests import RequestLedger
from reference_impls.drivers.worker import Worker
from reference_impls.errors import LayoutError, UnsupportedError
from reference_impls.registry import Method
from reference_impls.requests import Request, Step
from suite.costs.step import Recipe, RecipeError, Traffic, declared_terms, transformer_shapes
from suite.timing.case import AVERAGE, ROUND
from suite.timing.cases import unit_steps

LEARNING_RATE: Final = 1e-6
LONGEST: Final = 200
"""Steps after which a kind of step that has not come is given up."""
COMPILE: Final = "BANDWISE_COMPILE"
"""0: codecs run eagerly (`reference_impls.compilation`)."""


def recipe_of(
    method: Method,
    shapes: Sequence[Sequence[int]],
    n: int,
    *,
    kind: str = "step",
    bucket_bytes: int = 4 << 20,
) -> Recipe:
    """What a unit of steps of `kind` (one step, or a round ``round-H``) asks for on one of `n` ranks.

    method: configured so that it takes such steps at once and often (`Algorithm.steady`). shapes: of the model's
    parameters, in order. Raises `RecipeError` for steps that do not come, or a method that cannot be run.
    """
    size = unit_steps(method.algorithm, kind)
    end = AVERAGE if kind.startswith(ROUND) else kind
    try:
        with _eagerly():
            steps = _steps(method, shapes, n, size, end, bucket_bytes)
    except (UnsupportedError, LayoutError) as error:
        raise RecipeError(f"{method.name} with {n} workers: {error}") from error
    if steps is None:
        raise RecipeError(f"{method.name} took no steps of kind {kind!r} within {LONGEST}")
    return Recipe(tuple(steps))


@contextmanager
def _eagerly() -> Iterator[None]:
    """Sizes do not depend on how codecs are run, and compiling them takes longer than the steps."""
    held = os.environ.get(COMPILE)
    os.environ[COMPILE] = "0"
    try:
        yield
    finally:
        if held is None:
            del os.environ[COMPILE]
        else:
            os.environ[COMPILE] = held


def _steps(
    method: Method,
    shapes: Sequence[Sequence[int]],
    n: int,
    size: int,
    end: str,
    bucket_bytes: int,
) -> list[Step] | None:
    """The last `size` steps up to the second one that ends a unit: what is set up once is over then."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(tuple(shape), generator=generator).mul_(0.02) for shape in shapes]
    group = {
        "params": params, "param_names": [str(i) for i in range(len(params))], **method.group(lr=LEARNING_RATE),
    }  # fmt: skip
    worker = Worker(method.algorithm, [group], rank=0, size=n, bucket_bytes=bucket_bytes)
    engine = Engine(_Alone(n), [Ledger(0)])
    asked = RequestLedger(engine, worker.shards)
    # gradients are drawn in place: nobody counts which have come
    workers = LocalWorkers([worker], engine, unused="zeros")
    ended = 0
    for _ in range(max(LONGEST, 3 * size)):
        for shard in worker.shards:
            shard.grads.normal_(generator=generator)
            for probe in worker.algorithm.probes:
                shard.gradients[probe] = shard.grads.clone()
        workers.plan()
        workers.complete()
        if asked.steps[-1].kind == end:
            ended += len(asked.steps) >= size
            if ended == 2 or (ended and size > 1):
                return asked.steps[-size:]
    return None


class _Alone:
    """A transport for one rank of `n` that sends nothing and answers from the rank's own buffer."""

    def __init__(self, n: int) -> None:
        self.ranks: Sequence[int] = [0]
        self.size = n

    def launch(self, requests: Sequence[Collective]) -> list[Any]:
        """Answer at once; the handle is the list of answers."""
        return [answer(request, self.size) for request in requests]

    def wait(self, handle: list[Any]) -> list[Any]:
        """The answers."""
        return handle


# ---- synthetic models, of which only the size is known

TRACED_BYTES: Final = 1 << 22
"""What all ranks' messages of a traced bucket may hold."""
LARGEST_BUCKET: Final = 1 << 16
"""Elements of a traced bucket, at most."""


def traffic_of(method: Method, kind: str, n: int) -> Traffic:
    """What a method's steps of a kind send, of any model. Raises `RecipeError`."""
    return _traced(_Key(method), kind, n)


@dataclass(frozen=True)
class _Key:
    """A method as a key: its algorithm is a frozen dataclass, its hyper-parameters do not decide what is sent."""

    method: Method

    def __hash__(self) -> int:
        return hash((self.method.name, repr(self.method.algorithm)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and repr(self.method) == repr(other.method)


@cache
def _traced(key: _Key, kind: str, n: int) -> Traffic:
    side = math.isqrt(int(min(LARGEST_BUCKET, max(TRACED_BYTES / n, 16 * n, 4096))))
    recipe, smaller = (
        recipe_of(key.method, [(s, s)], n, kind=kind, bucket_bytes=1 << 40) for s in (side, side // 2)
    )
    steps = tuple(
        (len(list(same)), step)
        for step, same in itertools.groupby(map(_growing, recipe.steps, smaller.steps))
    )
    whole = key.method.algorithm.scope == "model"
    return Traffic(side * side, whole, _declared(key.method, kind, side, n), steps)


SIZES: Final = tuple(10 ** (k / 2) for k in range(12, 21))
"""Parameters of the models whose declared bytes decide how bytes grow."""


def _growing(step: Step, smaller: Step) -> Step:
    """A step, with what a smaller bucket sends alike marked as what does not grow: a scale, say."""

    def marked(requests: Sequence[Request], others: Sequence[Request]) -> tuple[Request, ...]:
        alike = (
            [other.nbytes for other in others] if len(others) == len(requests) else [math.nan] * len(requests)
        )
        return tuple(
            replace(request, grows=request.nbytes != other)
            for request, other in zip(requests, alike, strict=True)
        )

    (bucket,), (other,) = step.buckets, smaller.buckets
    return replace(
        step,
        plan=marked(step.plan, smaller.plan),
        buckets=(replace(bucket, requests=marked(bucket.requests, other.requests)),),
        after=marked(step.after, smaller.after),
    )


PLAIN: Final = 1e-3
"""Relative error up to which bytes are taken to grow with the parameters alone: padding."""
NEAR: Final = 0.02
"""Relative error up to which they are met: places of entries travel in whole bits."""


def _declared(method: Method, kind: str, side: int, n: int) -> tuple[float, float, float, float]:
    """`Traffic.declared`; bytes grow with the parameters where a method does not say. Raises `RecipeError` where they grow
    otherwise than its terms."""
    name = "average" if kind.startswith("round-") else kind

    def sent(shapes: Sequence[Sequence[int]]) -> float | None:
        cost = method.algorithm.wire_bytes(shapes, n).get(name)
        return sum(cost) / 2 if isinstance(cost, tuple) else cost

    try:
        here, all_of = sent([(side, side)]), [sent(transformer_shapes(size)) for size in SIZES]
    except (NotImplementedError, UnsupportedError):
        return 1.0, 0.0, 0.0, 0.0
    if not here or (method.algorithm.scope == "model" and kind.startswith("round-")):
        return 1.0, 0.0, 0.0, 0.0
    true = np.array(all_of, dtype=float) * side * side / here
    if np.allclose(true, SIZES, rtol=PLAIN):
        return 1.0, 0.0, 0.0, 0.0
    terms = np.array([declared_terms(size) for size in SIZES])
    found = np.linalg.lstsq(terms / true[:, None], np.ones(len(true)), rcond=None)[0]
    if not np.allclose(terms @ found, true, rtol=NEAR):
        raise RecipeError(
            f"{method.name} declares bytes that grow with neither parameters nor the sides of matrices nor bits of places: give "
            "the model's shapes (--shapes)"
        )
    each, sides, outside, places = map(float, found)
    return each, sides, outside, places
