"""One exchange of a method, alone: what it answers to given vectors, and what it sends for that.

For tables that judge methods on vectors as training makes them, with no training around it. A method is fresh: its
first step, no memory, parameters of 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from reference_impls import SimulatedCluster
from reference_impls.algorithms.compressed_gradient import CompressedGradient
from reference_impls.codecs.codec import Codec
from reference_impls.collectives import Group
from reference_impls.randomness import Key
from reference_impls.registry import Method, create
from suite.training.train import Shapes

_LARGEST_BUCKET: Final = 1 << 40
_PHASES: Final = ("plan", "reduce", "_across", "update", "synchronize")


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
    own = any(getattr(type(algorithm), phase) is not getattr(CompressedGradient, phase) for phase in _PHASES)
    special = (
        algorithm.form != "gather" or algorithm.granularity != "bucket" or algorithm.hierarchical
        or algorithm.warmup_steps or algorithm.smallest
        or algorithm.optimizer != "sgd" or any(method.hyperparameters.values())
    )  # fmt: skip
    if own or special:
        return None
    algorithm.check(Group("world", 0, n))
    return algorithm.codec(n)


def wire_bits(quantiser: Quantiser, shapes: Shapes, n: int) -> float:
    """Bits that a rank sends for each coordinate, mean over ranks; where data decide, the middle of what is possible."""
    method = create(quantiser.algorithm, **quantiser.options)
    (cost,) = method.algorithm.wire_bytes(list(shapes.values()), n).values()
    sent = cost if isinstance(cost, int | float) else sum(cost) / len(cost)
    return 8 * sent / sum(math.prod(shape) for shape in shapes.values())
