"""What can be said of a configured method without running it: bytes it sends and state it keeps.

Bytes are those of steps taken alone (`runtime.alone`), state is what the method declares (`state`), and that of the local
optimizer is counted on a small one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from reference_impls.core.algorithm import Algorithm, View
from reference_impls.core.collectives import Group
from reference_impls.core.errors import UnsupportedError
from reference_impls.core.registry import Method
from reference_impls.runtime.alone import traced

SIZES = (2, 4, 8, 16, 64)
SHAPE = (1000, 1000)
"""The model of which facts are stated: one matrix of a million float32 parameters, in one bucket."""


@dataclass(frozen=True)
class State:
    """Bytes of state a parameter that a rank holds. owned: all ranks together, of which each holds one n-th."""

    replicated: float
    per_rank: float
    owned: float
    local_optimizer: float


@dataclass(frozen=True)
class Facts:
    """bits: world size -> kind of step -> bits that a rank sends a parameter; where data decide, those that `traced` drew did.

    refused: world size -> why the options do not admit it. needs: what the options lack to be run at all, or "".
    """

    needs_whole_gradient: bool
    bits: Mapping[int, Mapping[str, float]]
    refused: Mapping[int, str]
    needs: str
    state: State


def facts(method: Method, sizes: Sequence[int] = SIZES) -> Facts:
    """The facts of a method for a model of one matrix of `SHAPE`."""
    own = method.algorithm
    bits, refused = {}, {n: why for n in sizes if (why := _refusal(own, n))}
    needs = refused[sizes[0]] if len(refused) == len(sizes) else ""
    if needs:  # not for a world size, then
        refused = {}
    for n in sizes:
        if n in refused:
            continue
        try:
            bits[n] = {kind: 8 * sent / prod(SHAPE) for kind, sent in traced(method, [SHAPE], n).items()}
        except UnsupportedError as error:
            refused[n] = str(error)
    return Facts(own.scope == "model", bits, refused, needs, _state(method))


def _refusal(own: Algorithm, n: int) -> str:
    try:
        own.check(Group("world", 0, n))
    except UnsupportedError as error:
        return str(error)
    return ""


def _state(method: Method) -> State:
    matrix = torch.empty(SHAPE, dtype=torch.float32, device="meta")
    view = View("0", matrix, slice(0, matrix.numel()), 0, 0)
    held = {"replicated": 0.0, "per_rank": 0.0, "owned": 0.0}
    for spec in method.algorithm.state.values():
        own = SHAPE if spec.shape is None else spec.shape(view, Group("world", 0, SIZES[0]))
        width = (spec.dtype or matrix.dtype).itemsize
        held[spec.kind] += 0.0 if own is None else width * prod(own) / matrix.numel()
    return State(**held, local_optimizer=_optimizer_bytes(method))


def _optimizer_bytes(method: Method) -> float:
    """Bytes a parameter that the local optimizer has after a step."""
    if not method.algorithm.has_inner_optimizer:
        return 0.0
    param = torch.zeros(8, 8, dtype=torch.float32)
    group = {"params": [param], "param_names": ["0"], "lr": 0.0, **method.hyperparameters}
    optimizer = method.algorithm.inner_optimizer([group])
    param.grad = torch.ones_like(param)
    optimizer.step()
    kept = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    return sum(x.numel() * x.element_size() for x in kept if x.dim()) / param.numel()
