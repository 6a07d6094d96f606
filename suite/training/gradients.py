"""The gradients of many workers from one batched call; with one worker it is the same arithmetic, to the bit.

Row r of every tensor belongs to one worker. Rows may belong to different runs and seeds of one workload. A row's
result does not depend on how many rows are computed with it, so a run has the same bits alone, in any group, and on a
real process group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from suite.workloads import Task

Shapes = Mapping[str, Sequence[int]]


class BatchedGradients:
    """The gradient function of a workload over rows of workers."""

    def __init__(self, task: Task) -> None:
        self._function = vmap(grad_and_value(task.loss))

    def __call__(
        self, params: Mapping[str, Tensor], batch: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients name -> [rows, *shape] and losses [rows] for parameters name -> [rows, *shape].

        batch: tensors [rows, batch, ...].
        """
        gradients, losses = self._function(dict(params), *batch)
        return gradients, losses.detach()


def shapes_of(values: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Name -> shape, in order."""
    return {name: tuple(value.shape) for name, value in values.items()}


def split(rows: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Views name -> [rows, *shape] of flat rows [rows, elements], in the order of `shapes`."""
    found, start = {}, 0
    for name, shape in shapes.items():
        size = torch.Size(shape).numel()
        found[name] = rows[:, start : start + size].view(-1, *shape)
        start += size
    return found


def flatten(values: Mapping[str, Tensor]) -> Tensor:
    """The parameters as one flat tensor [elements]."""
    return torch.cat([value.reshape(-1) for value in values.values()])


def first_difference(rows: Tensor, shapes: Shapes) -> str | None:
    """Where the flat parameter rows [ranks, elements] are not all the same bits, in words; None when they are."""
    for name, values in split(rows, shapes).items():
        bits = values.reshape(len(rows), -1).view(torch.int32)
        differing = (bits != bits[0]).any(1).nonzero().flatten().tolist()
        if differing:
            return (
                f"at the end ranks 0 and {differing[0]} hold different parameters, first in {name!r}: "
                "the method did not synchronise"
            )
    return None
