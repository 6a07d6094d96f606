"""Gradients as training makes them: what every worker would send at three stages of a training.

For rate against distortion of quantisers over the number of workers, on gradients and not on noise. One training
with few workers gives the parameters of all three stages; the gradients of many workers are taken there, so that
only the number of workers changes along a curve, and not the training. The same arguments give the same bits, in
seconds, so nothing is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from suite.training.train import BatchedGradients, flatten, shapes_of, split
from suite.workloads import get

STAGES: Final = ("start", "middle", "end")
TRAINED_BY: Final = 4
"""Workers of the training that leads to the stages."""


@dataclass(frozen=True)
class Recipe:
    """How the workload is trained: uncompressed, at a constant learning rate."""

    algorithm: str
    lr: float
    steps: int
    options: Mapping[str, Any]


RECIPES: Final[Mapping[str, Recipe]] = MappingProxyType(
    {
        "digits-mlp": Recipe("allreduce-sgd", 0.03, 100, MappingProxyType({"momentum": 0.9})),
        "byte-mlm": Recipe("allreduce-adamw", 0.003, 150, MappingProxyType({})),
    }
)


@dataclass(frozen=True, eq=False)
class Captured:
    """The gradients of one stage.

    `gradients` [workers, elements] float32, a row a worker, parameters flattened in the order of `shapes`; the first
    n rows serve n workers. `losses` [workers] are the losses they belong to.
    """

    stage: str
    step: int
    shapes: Mapping[str, tuple[int, ...]]
    gradients: Tensor
    losses: Tensor


def capture(workload: str, workers: int = 64, seed: int = 0, sharding: str = "iid") -> list[Captured]:
    """The gradients of `workers` at the start, the middle and the end of a training of `workload`.

    Each worker draws a batch of the workload's size from its own of `workers` shards. Takes 12 bytes a parameter and
    worker, and one thread. Raises ValueError for a workload without a recipe.
    """
    if workload not in RECIPES:
        raise ValueError(f'no recipe to train "{workload}" for a capture: use {" or ".join(sorted(RECIPES))}')
    recipe, chosen = RECIPES[workload], get(workload)
    task, many = (
        chosen.task(seed, TRAINED_BY, sharding),
        chosen.task(seed, workers, sharding),
    )
    initial = task.initial()
    shapes = shapes_of(initial)
    size = flatten(initial).numel()
    params, grads = (
        flatten(initial).expand(TRAINED_BY, size).clone(),
        torch.zeros(TRAINED_BY, size),
    )
    cluster = SimulatedCluster(
        recipe.algorithm,
        list(initial.values()),
        world_size=TRAINED_BY,
        lr=recipe.lr,
        seed=seed,
        names=list(initial),
        storage=(params, grads),
        **recipe.options,
    )
    gradients, rows, found = BatchedGradients(task), split(grads, shapes), []
    stops = dict(zip((0, recipe.steps // 2, recipe.steps), STAGES, strict=True))
    for step in range(recipe.steps + 1):
        if step in stops:
            found.append(_take(stops[step], step, params[0], shapes, gradients, many.batch(step)))
        if step < recipe.steps:
            for name, gradient in gradients(split(params, shapes), task.batch(step))[0].items():
                rows[name].copy_(gradient)
            cluster.step(lr=recipe.lr)
    return found


def _take(
    stage: str,
    step: int,
    params: Tensor,
    shapes: Mapping[str, tuple[int, ...]],
    gradients: BatchedGradients,
    batch: tuple[Tensor, ...],
) -> Captured:
    """All workers' gradients at the flat `params`, four workers at a time: many at once would not fit the caches."""
    workers = len(batch[0])
    taken, losses = torch.empty(workers, params.numel()), torch.empty(workers)
    for first in range(0, workers, TRAINED_BY):
        part = slice(first, min(first + TRAINED_BY, workers))
        count = part.stop - part.start
        values, losses[part] = gradients(
            split(params.expand(count, -1), shapes), [own[part] for own in batch]
        )
        for name, rows in split(taken[part], shapes).items():
            rows.copy_(values[name])
    return Captured(stage, step, dict(shapes), taken, losses)


def first_tensors(whole: Captured, elements: int) -> Captured:
    """The first tensors of a capture, as many as `elements` hold and at least one."""
    lengths = [math.prod(shape) for shape in whole.shapes.values()]
    ends = list(accumulate(lengths))
    count = max(1, sum(end <= elements for end in ends))
    shapes = dict(list(whole.shapes.items())[:count])
    return replace(whole, shapes=shapes, gradients=whole.gradients[:, : ends[count - 1]].contiguous())
