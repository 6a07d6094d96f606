"""Gradients as training makes them, and one exchange of them: what a method answers to given vectors, and what it sends for that.

One training with few workers gives the parameters of three stages; the gradients of many workers are taken there, so that
only the number of workers changes along a curve, and not the training. The same arguments give the same bits, in
seconds, so nothing is kept.

A method is fresh in its exchange: its first step, no memory, parameters of 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.algorithms.compressed_gradient import CompressedGradient
from reference_impls.codecs.codec import Codec
from reference_impls.collectives import Group
from reference_impls.randomness import Key
from reference_impls.registry import Method, create
from suite.training.train import BatchedGradients, Shapes, flatten, shapes_of, split
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
    gradients, rows, stages = BatchedGradients(task), split(grads, shapes), []
    stops = dict(zip((0, recipe.steps // 2, recipe.steps), STAGES, strict=True))
    for step in range(recipe.steps + 1):
        if step in stops:
            stages.append(_take(stops[step], step, params[0], shapes, gradients, many.batch(step)))
        if step < recipe.steps:
            for name, gradient in gradients(split(params, shapes), task.batch(step))[0].items():
                rows[name].copy_(gradient)
            cluster.step(lr=recipe.lr)
    return stages


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


_LARGEST_BUCKET: Final = 1 << 40
_PHASES: Final = ("plan", "reduce", "update", "synchronize")


@dataclass(frozen=True)
class Quantiser:
    """A label for a method with options. quicker: a form that gives the same mean to the bit in less computing."""

    label: str
    algorithm: str
    options: Mapping[str, Any] = field(default_factory=dict)
    quicker: str = ""


def mean_by(quantiser: Quantiser, rows: Tensor, shapes: Shapes, seed: int) -> Tensor:
    """The mean of `rows` [n, d] as the method gives it in its first step, float32 [d].

    Where everybody gathers the same messages they are decoded once and not by each of n workers, with the same bits
    (an error of 0, as error feedback begins with, changes nothing: codecs do not tell -0 from 0).
    Raises `UnsupportedError` where the method cannot serve n workers.
    """
    form = {"form": quantiser.quicker} if quantiser.quicker else {}
    method, n = create(quantiser.algorithm, **{**quantiser.options, **form}), len(rows)
    codec = gathered_codec(method, n)
    if codec is None:
        return -step(method, rows, shapes, seed)
    total, out = torch.zeros(rows.shape[1]), torch.empty(rows.shape[1])
    message = torch.empty(codec.wire_bytes(rows.shape[1]), dtype=torch.uint8)
    for rank, row in enumerate(rows):
        codec.encode(row, Key.of(seed=seed, step=0, stage="gradient", rank=rank), message.zero_())
        codec.decode(message, out)
        total.add_(out)
    return total.div_(n)


def step(method: Method, rows: Tensor, shapes: Shapes, seed: int) -> Tensor:
    """What the first step adds to parameters of 0, float32 [d]: gradients `rows` [n, d], learning rate 1, one bucket."""
    params = torch.zeros_like(rows)
    cluster = SimulatedCluster(
        method,
        [torch.zeros(shape) for shape in shapes.values()],
        len(rows),
        lr=1.0,
        seed=seed,
        names=list(shapes),
        bucket_bytes=_LARGEST_BUCKET,
        storage=(params, rows.clone()),
    )
    cluster.step()
    return params[0]


def gathered_codec(method: Method, n: int) -> Codec | None:
    """The codec, where the first step is the mean of everybody's message of a whole bucket and nothing but that.

    None for one worker, and where an option or the method's own code may change what is sent or what is done with it:
    two phases, codes of single tensors, nodes, a warm-up, small tensors apart, phases of its own, an optimizer that is
    not plain descent.
    """
    algorithm = method.algorithm
    if n == 1 or not isinstance(algorithm, CompressedGradient):
        return None
    overridden = any(
        getattr(type(algorithm), phase) is not getattr(CompressedGradient, phase) for phase in _PHASES
    )
    special = (
        algorithm.form != "gather" or algorithm.granularity != "bucket"
        or algorithm.warmup_steps or algorithm.smallest
        or algorithm.optimizer != "sgd" or any(method.hyperparameters.values())
    )  # fmt: skip
    if overridden or special:
        return None
    algorithm.check(Group("world", 0, n))
    return algorithm.codec(n)


def wire_bits(quantiser: Quantiser, shapes: Shapes, n: int) -> float:
    """Bits that a rank sends for each coordinate, mean over ranks; where data decide, the middle of what is possible."""
    method = create(quantiser.algorithm, **quantiser.options)
    (cost,) = method.algorithm.wire_bytes(list(shapes.values()), n).values()
    sent = cost if isinstance(cost, int | float) else sum(cost) / len(cost)
    return 8 * sent / sum(math.prod(shape) for shape in shapes.values())
