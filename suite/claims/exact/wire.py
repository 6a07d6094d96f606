"""Bits on the wire, as methods declare them (`Algorithm.wire_bytes`); tests hold that to what the ledger counts."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Any

from reference_impls import wire
from reference_impls.algorithm import Cost
from reference_impls.algorithms.dq_sgd import DQSGD
from reference_impls.registry import create

Shapes = list[tuple[int, ...]]
_PAIR = 2
"""With two ranks a gathering sends each message once: bits of a message are what a rank sends."""


def bits_per_parameter(
    *,
    algorithm: str,
    n: int,
    kind: str = "step",
    options: dict[str, Any] | None = None,
    model: str | Sequence[Any] = "matrix",
) -> dict[str, float]:
    """Bits that a rank sends for a parameter in one step of a kind, and how many times fewer than a ring of fp32 and of fp16."""
    shapes = shapes_of(model)
    sent = 8 * _sent(algorithm, n, kind, shapes, **(options or {})) / wire.elements(shapes)
    ring = wire.all_reduce(32, n)
    return {"bits": sent, "times_less_than_fp32": ring / sent, "times_less_than_fp16": ring / 2 / sent}


def message_bits(
    *,
    algorithm: str,
    kind: str = "step",
    options: dict[str, Any] | None = None,
    model: str | Sequence[Any] = "matrix",
) -> dict[str, float]:
    """Bits a parameter of a message that is gathered: what one of two ranks sends to the other; and 32 over them."""
    shapes = shapes_of(model)
    bits = 8 * _sent(algorithm, _PAIR, kind, shapes, **(options or {})) / wire.elements(shapes)
    return {"bits": bits, "times_less": 32 / bits}


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


def by_workers(
    *,
    algorithm: str,
    sizes: list[int],
    kind: str = "step",
    options: dict[str, Any] | None = None,
    model: str | Sequence[Any] = "matrix",
) -> dict[str, float]:
    """How bytes grow with the workers: most over least of bytes (`spread`), of bytes over log2 n (`spread_over_log`), and of
    bytes over 2 (n-1)/n, which is a ring's share and so the size of what is handed over (`spread_of_payload`)."""
    shapes = shapes_of(model)
    sent = {n: _sent(algorithm, n, kind, shapes, **(options or {})) for n in sizes}

    def spread(values: list[float]) -> float:
        return max(values) / min(values)

    return {
        "spread": spread(list(sent.values())),
        "spread_over_log": spread([one / log2(n) for n, one in sent.items()]),
        "spread_of_payload": spread([one / wire.all_reduce(1, n) for n, one in sent.items()]),
    }


def volume_with_warm_up(
    *, algorithm: str, warm_up: float, n: int, uncompressed: str = "allreduce-fp16"
) -> dict[str, float]:
    """Traffic of an uncompressed training over that of one whose first share `warm_up` of the steps is uncompressed."""
    shapes = shapes_of("matrix")
    full = _sent(uncompressed, n, "step", shapes)
    coded = _sent(algorithm, n, "compressed", shapes, warmup_steps=1)
    return {"times_less": full / (warm_up * full + (1 - warm_up) * coded), "step": full / coded}


def dq_sgd_ratio(*, average_bits: float) -> dict[str, float]:
    """32 bits over what DQ-SGD sends, where its steps mix the two widths next to the average."""
    low = int(average_bits)
    share = average_bits - low
    shapes = shapes_of("matrix")

    def bits(width: int) -> float:
        costs = DQSGD().always(width).wire_bytes(shapes, _PAIR)
        return 8 * _number(next(iter(costs.values()))) / wire.elements(shapes)

    return {"times_less": 32 / ((1 - share) * bits(low) + share * bits(low + 1))}


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
