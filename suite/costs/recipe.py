"""What a step asks for: which collectives, over which group, of how many bytes, bucket by bucket.

Found by taking the step: one rank of the method runs over a transport that answers every collective from the rank's own
buffer and writes down what was asked. So a recipe needs no network, holds for any number of ranks, and cannot differ from
what the method does. Answers are nonsense, and so are the numbers computed with them; sizes are not, save where data
decide what is sent (merged sparse vectors), which random gradients stand for.

A model of which only the size is known has a synthetic recipe: that of one bucket, repeated, its bytes corrected to what the
method declares to send for the whole of a transformer of that size (`Algorithm.wire_bytes`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import torch

from reference_impls.collectives import Collective
from reference_impls.drivers.engine import Engine
from reference_impls.drivers.groups import partitions
from reference_impls.drivers.ledger import Ledger
from reference_impls.drivers.local_workers import LocalWorkers
from reference_impls.drivers.null import answer
from reference_impls.drivers.requests import Bucket, Request, RequestLedger, Step
from reference_impls.drivers.worker import Worker
from reference_impls.errors import LayoutError, UnsupportedError
from reference_impls.registry import Method
from suite.timing.case import AVERAGE, ROUND

LEARNING_RATE: Final = 1e-6
LONGEST: Final = 200
"""Steps after which a kind of step that has not come is given up."""
COMPILE: Final = "BANDWISE_COMPILE"
"""0: codecs run eagerly (`reference_impls.compilation`)."""


class RecipeError(ValueError):
    """A method that cannot be asked what its steps send; the message says why."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The steps of a unit: one, or those of a round. Equal steps are one object."""

    steps: tuple[Step, ...]

    def scaled(self, factor: float) -> Recipe:
        """The same for a model of `factor` times as many elements, cut into as many buckets."""

        def larger(requests: Sequence[Request]) -> tuple[Request, ...]:
            return tuple(replace(request, nbytes=factor * request.nbytes) for request in requests)

        return Recipe(
            tuple(
                Step(
                    step.kind,
                    larger(step.plan),
                    tuple(Bucket(bucket.share, larger(bucket.requests)) for bucket in step.buckets),
                    larger(step.after),
                )
                for step in self.steps
            )
        )


def recipe_of(
    method: Method,
    shapes: Sequence[Sequence[int]],
    n: int,
    *,
    kind: str = "step",
    bucket_bytes: int = 4 << 20,
    node_size: int = 1,
) -> Recipe:
    """What a unit of steps of `kind` (one step, or a round ``round-H``) asks for on one of `n` ranks.

    method: configured so that it takes such steps at once and often (`Algorithm.steady`). shapes: of the model's
    parameters, in order. Raises `RecipeError` for steps that do not come, or a method that cannot be run.
    """
    size = int(kind.removeprefix(ROUND)) if kind.startswith(ROUND) else 1
    end = AVERAGE if kind.startswith(ROUND) else kind
    try:
        with _eagerly():
            steps = _steps(method, shapes, n, size, end, bucket_bytes, node_size)
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
    node_size: int,
) -> list[Step] | None:
    """The last `size` steps up to the second one that ends a unit: what is set up once is over then."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(tuple(shape), generator=generator).mul_(0.02) for shape in shapes]
    group = {
        "params": params, "param_names": [str(i) for i in range(len(params))], **method.group(lr=LEARNING_RATE),
    }  # fmt: skip
    worker = Worker(method.algorithm, [group], rank=0, size=n, node_size=node_size, bucket_bytes=bucket_bytes)
    engine = Engine(_Alone(n, node_size), [Ledger(0)])
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

    def __init__(self, n: int, node_size: int) -> None:
        self.ranks: Sequence[int] = [0]
        sets = partitions(n, node_size)
        self.groups = {name: [[0]] for name in sets}
        self.sizes = {name: len(ranks[0]) for name, ranks in sets.items()}

    def launch(self, requests: Sequence[Collective]) -> list[Any]:
        """Answer at once; the handle is the list of answers."""
        return [answer(request, self.sizes[request.group]) for request in requests]

    def wait(self, handle: list[Any]) -> list[Any]:
        """The answers."""
        return handle


def transformer_shapes(parameters: float) -> list[tuple[int, ...]]:
    """Shapes of a GPT-like model of about as many parameters: blocks of width w and depth w / 64, embeddings of 256 tokens.

    A synthetic model; methods that compress matrices depend on its shapes.
    """
    if not parameters >= 1:
        raise RecipeError(f"{parameters} parameters: give at least 1")
    width = min(round((parameters * 64 / 12) ** (1 / 3)), math.isqrt(int(parameters / 12)))
    depth = int(parameters / (12 * width * width)) if width else 0
    block = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    shapes: list[tuple[int, ...]] = [shape for _ in range(depth) for shape in block]
    rest = math.floor(parameters) - sum(math.prod(shape) for shape in shapes)
    return [*shapes, (rest,)] if rest > 0 else shapes


# ---- synthetic models, of which only the size is known

TRACED_BYTES: Final = 1 << 26
"""What all ranks' messages of a traced bucket may hold."""
LARGEST_BUCKET: Final = 1 << 20
"""Elements of a traced bucket, at most."""


def synthetic_recipe(
    method: Method, kind: str, parameters: float, n: int, bucket_bytes: int, node_size: int = 1
) -> Recipe:
    """The recipe of a model of any size, from one bucket of it. Raises `RecipeError`."""
    whole = method.algorithm.scope == "model"
    count = 1 if whole else max(1, round(4 * parameters / bucket_bytes))
    traced = int(min(parameters / count, LARGEST_BUCKET, max(TRACED_BYTES / n, 16 * n, 4096)))
    side = max(1, math.isqrt(traced))
    bucket = _traced(_Key(method), kind, side, n, node_size)
    factor = parameters / count / (side * side) * _correction(method, kind, parameters, side, n)
    scaled = bucket.scaled(factor)
    return Recipe(tuple(_repeated(step, count) for step in scaled.steps))


@dataclass(frozen=True)
class _Key:
    """A method as a key: its algorithm is a frozen dataclass, its hyper-parameters do not decide what is sent."""

    method: Method

    def __hash__(self) -> int:
        return hash((self.method.name, repr(self.method.algorithm)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and repr(self.method) == repr(other.method)


@cache
def _traced(key: _Key, kind: str, side: int, n: int, node_size: int) -> Recipe:
    return recipe_of(key.method, [(side, side)], n, kind=kind, bucket_bytes=1 << 40, node_size=node_size)


def _correction(method: Method, kind: str, parameters: float, side: int, n: int) -> float:
    """Declared bytes of the true shapes over those of the traced one, a parameter; 1 where a method does not say."""
    if method.algorithm.scope == "model" and kind.startswith("round-"):
        return 1.0
    name = "average" if kind.startswith("round-") else kind
    try:
        shapes = transformer_shapes(parameters)
        true = method.algorithm.wire_bytes(shapes, n).get(name)
        here = method.algorithm.wire_bytes([(side, side)], n).get(name)
    except (NotImplementedError, UnsupportedError):
        return 1.0
    if true is None or here is None:
        return 1.0
    total = sum(math.prod(shape) for shape in shapes)
    numbers = [sum(cost) / 2 if isinstance(cost, tuple) else cost for cost in (true, here)]
    return (numbers[0] / total) / (numbers[1] / (side * side)) if numbers[1] else 1.0


def _repeated(step: Step, count: int) -> Step:
    """One bucket as `count` of them; what follows the update, and the plan, once for each, and once."""
    buckets = tuple(
        replace(bucket, share=bucket.share / count) for bucket in step.buckets for _ in range(count)
    )
    return Step(step.kind, step.plan, buckets, step.after * count)
