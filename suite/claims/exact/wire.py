"""Bits on the wire, as methods declare them (`Algorithm.wire_bytes`); tests hold that to what the ledger counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reference_impls import wire
from reference_impls.algorithm import Cost
from reference_impls.registry import create

Shapes = list[tuple[int, ...]]


def low_rank_volume(*, model: str, ranks: list[int], n: int = 2) -> dict[str, tuple[float, ...]]:
    """A ring of fp32 over what PowerSGD sends for a model, every matrix compressed, for each rank."""
    shapes = shapes_of(model)
    full = wire.all_reduce(4 * wire.elements(shapes), n)
    sent = (_sent("powersgd", n, "compressed", shapes, rank=rank, min_compression_rate=0.0) for rank in ranks)
    return {"times_less": tuple(full / one for one in sent)}


def ratio(
    *,
    of: dict[str, Any],
    over: dict[str, Any],
    n: int | list[int],
    model: str | Sequence[Any] = "matrix",
) -> dict[str, float]:
    """Bytes of one method over those of another, each given by algorithm, kind, options and `per` (steps that one such step
    stands for). With several n the least and the most."""
    shapes = shapes_of(model)
    sizes = n if isinstance(n, list) else [n]
    found = [_per_step(of, size, shapes) / _per_step(over, size, shapes) for size in sizes]
    return {"ratio": found[0], "least": min(found), "most": max(found)}


def volume_with_warm_up(
    *, algorithm: str, warm_up: float, n: int, uncompressed: str = "allreduce-fp16"
) -> dict[str, float]:
    """Traffic of an uncompressed training over that of one whose first share `warm_up` of the steps is uncompressed."""
    shapes = shapes_of("matrix")
    full = _sent(uncompressed, n, "step", shapes)
    coded = _sent(algorithm, n, "compressed", shapes, warmup_steps=1)
    return {"times_less": full / (warm_up * full + (1 - warm_up) * coded), "step": full / coded}


def _per_step(one: dict[str, Any], n: int, shapes: list[tuple[int, ...]]) -> float:
    options = one.get("options", {})
    return _sent(one["algorithm"], n, one.get("kind", "step"), shapes, **options) / float(one.get("per", 1))


def _sent(algorithm: str, n: int, kind: str, shapes: Sequence[Sequence[int]], /, **options: Any) -> float:
    costs = create(algorithm, **options).algorithm.wire_bytes(shapes, n)
    if kind not in costs:
        raise KindError(f"{algorithm} has no step of the kind {kind!r}: there are {', '.join(costs)}")
    return _number(costs[kind])


class KindError(ValueError):
    """The method has no step of that kind."""


def _number(cost: Cost) -> float:
    """The most, where data decide."""
    return float(cost[1] if isinstance(cost, tuple) else cost)


class ShapeError(ValueError):
    """No such model."""


def shapes_of(model: str | Sequence[Any]) -> Shapes:
    """`matrix` (1000 x 1000), `resnet18-cifar`, or shapes as they are given."""
    if not isinstance(model, str):
        return [tuple(int(side) for side in shape) for shape in model]
    if model == "matrix":
        return [(1000, 1000)]
    if model == "resnet18-cifar":
        return _resnet18()
    raise ShapeError(f"no model is called {model!r}: give matrix, resnet18-cifar or a list of shapes")


def _resnet18(classes: int = 10) -> Shapes:
    """ResNet-18 with a first convolution of 3 x 3, as for images of 32 x 32."""
    found: Shapes = [(64, 3, 3, 3), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            found += [(width, before, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if block == 0 and before != width:
                found += [(width, before, 1, 1), (width,), (width,)]
            before = width
    return [*found, (classes, before), (classes,)]
