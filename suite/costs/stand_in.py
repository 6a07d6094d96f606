"""The recipe of a model of which only the size is known: that of one bucket, repeated, its bytes corrected to what the method
declares to send for the whole of a transformer of that size (`Algorithm.wire_bytes`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from reference_impls.errors import UnsupportedError
from reference_impls.registry import Method
from suite.costs.recipe import Recipe, Step, recipe_of, transformer_shapes

TRACED_BYTES: Final = 1 << 26
"""What all ranks' messages of a traced bucket may hold."""
LARGEST_BUCKET: Final = 1 << 20
"""Elements of a traced bucket, at most."""


def large_recipe(
    method: Method, kind: str, parameters: float, n: int, bucket_bytes: int, node_size: int = 1
) -> Recipe:
    """The recipe of a model of any size, from one bucket of it. Raises `RecipeError`."""
    whole = method.algorithm.scope == "model"
    count = 1 if whole else max(1, round(4 * parameters / bucket_bytes))
    traced = int(min(parameters / count, LARGEST_BUCKET, max(TRACED_BYTES / n, 16 * n, 4096)))
    side = max(1, math.isqrt(traced))
    one = _traced(_Key(method), kind, side, n, node_size)
    factor = parameters / count / (side * side) * _correction(method, kind, parameters, side, n)
    scaled = one.scaled(factor)
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
