"""A small training for Lion Cub's tests: awkward shapes, gradients on which the ranks disagree in their own ways."""

from __future__ import annotations

import torch
from torch import Tensor

from reference_impls import SimulatedCluster, info
from tests.reference_impls.averages import normals

RATE, DECAY = 0.01, 0.2
SHAPES = ((5, 7), (11,), (3, 3, 3))
D = 73  # elements of SHAPES: no multiple of 8 or of any world size


def parameters(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return normals(SHAPES, 1, dtype)


def gradient(step: int, rank: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Different by rank, and on every rank around something that it likes itself."""
    pairs = zip(normals(SHAPES, 1000 * step + rank, dtype), normals(SHAPES, rank, dtype), strict=True)
    return [noise + bias for noise, bias in pairs]


def cluster(algorithm, size, precision=torch.float32, **options):
    never = {"momentum_sync": "never"} if "momentum_sync" in info(algorithm).options else {}
    options = {**never, "weight_decay": DECAY, **options}
    return SimulatedCluster(algorithm, parameters(precision), size, lr=RATE, seed=4, **options)


def advance(trained, steps, gradients=gradient, first=0):
    for step in range(first, first + steps):
        trained.step([gradients(step, rank) for rank in range(trained.world_size)])


def vector(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])
