"""Shapes of the models that papers count bytes for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Shapes = list[tuple[int, ...]]


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
