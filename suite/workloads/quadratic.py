"""`quadratic`: a noisy strongly convex quadratic; optimum, excess loss and noise are known in closed form.

Worker i has f_i(w) = 1/2 (w - 1)^T A (w - 1) - (A b_i)^T (w - 1), with A diagonal and its eigenvalues spaced
evenly in the logarithm from 1/condition to 1. Its own optimum is 1 + b_i; the b_i sum to zero, so the mean
of the f_i is 1/2 (w - 1)^T A (w - 1), with optimum 1 (all ones) and value 0 there. An example is a vector xi
of independent N(0, sigma^2) entries, and its loss is f_i(w) - xi^T (w - 1): the gradient of a batch is exact
plus noise of variance sigma^2 / batch_size in every coordinate. Training starts at N(0, 1).

A is diagonal in the coordinates that methods see, which favours coordinate-wise methods (sign, Adam). And SGD
is linear here: averaging once at the end equals averaging every step, so the control without communication
loses nothing. The workload is there for closed forms; no verdict on equal accuracy can rest on it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from suite.workloads.base import Task, Workload
from suite.workloads.sampling import Stream, generator

Vector = npt.NDArray[np.float32]


class QuadraticModel(nn.Module):
    """`forward(slopes [batch, dim])` is the mean over the batch of 1/2 (w-1)^T A (w-1) - slope^T (w-1)."""

    curvature: Tensor
    initial_sd = 1.0

    def __init__(self, dim: int, condition: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(dim, device="meta"))
        self.register_buffer("curvature", torch.from_numpy(spectrum(dim, condition).copy()), persistent=False)

    def forward(self, slopes: Tensor) -> Tensor:
        offset = self.w - 1.0
        return (offset * (0.5 * self.curvature * offset - slopes.mean(dim=-2))).sum()


@lru_cache(maxsize=8)
def spectrum(dim: int, condition: float) -> Vector:
    """The eigenvalues of A in coordinate order, float32 [dim], ascending from 1/condition to 1; read-only."""
    values = np.logspace(-math.log10(condition), 0.0, dim).astype(np.float32)
    values.flags.writeable = False
    return values


@dataclasses.dataclass(frozen=True)
class Quadratic(Workload):
    """Excess loss over the optimum, exact. Sharding "by-class" gives the workers different optima."""

    name = "quadratic"
    version = 1
    summary = "noisy quadratic with known spectrum, optimum and noise"
    metric = "excess_loss"
    unit = "1"
    direction = "lower"
    margin = 0.01
    no_verdict = "SGD is linear on it, so that one average at the end loses nothing"
    batch_size = 1
    shardings = ("iid", "by-class")

    dim: int = dataclasses.field(default=100, metadata={"help": "number of parameters"})
    condition: float = dataclasses.field(default=100.0, metadata={"help": "largest over smallest eigenvalue"})
    sigma: float = dataclasses.field(
        default=0.1, metadata={"help": "standard deviation of the gradient noise, per coordinate and example"}
    )
    heterogeneity: float = dataclasses.field(
        default=1.0, metadata={"help": 'standard deviation of the workers\' optima with sharding "by-class"'}
    )

    def __post_init__(self) -> None:
        for key, value, least in (
            ("dim", self.dim, 1),
            ("condition", self.condition, 1.0),
            ("sigma", self.sigma, 0.0),
            ("heterogeneity", self.heterogeneity, 0.0),
        ):
            self.demand(key, math.isfinite(value) and value >= least, f">= {least}")

    def build(self) -> nn.Module:
        return QuadraticModel(self.dim, self.condition)

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> QuadraticTask:
        size = self.check(seed, world_size, sharding, batch_size)
        shifts = np.zeros((world_size, self.dim), dtype=np.float32)
        if sharding == "by-class":
            drawn = generator(seed, Stream.SHIFT).standard_normal((world_size, self.dim))
            shifts = (self.heterogeneity * (drawn - drawn.mean(axis=0))).astype(np.float32)
        common = (self, seed, world_size, sharding, size, world_size * size, 0)
        return QuadraticTask(*common, spectrum(self.dim, self.condition), shifts, self.sigma)


@dataclasses.dataclass(frozen=True, eq=False)
class QuadraticTask(Task):
    """The quadratic for one seed.

    `batch(step)` is one tensor, the slopes xi + A b_i, float32 [world_size, batch_size, dim]. `evaluate`
    gives `excess_loss`, 1/2 (w-1)^T A (w-1) in float64. There is no finite training set: `train_size` is one
    batch of every worker, so that an epoch is one step; `test_size` is 0.
    """

    curvature: Vector = dataclasses.field(repr=False)
    shifts: Vector = dataclasses.field(repr=False)
    """b_i, [world_size, dim]; zero with sharding "iid"."""
    sigma: float

    def batch(self, step: int) -> tuple[Tensor]:
        if step < 0:
            raise ValueError(f"step must be >= 0, got {step}")
        slopes = np.empty((self.world_size, self.batch_size, len(self.curvature)), dtype=np.float32)
        for rank, own in enumerate(slopes):
            generator(self.seed, Stream.NOISE, rank, step).standard_normal(dtype=np.float32, out=own)
            own *= np.float32(self.sigma)
            own += self.curvature * self.shifts[rank]
        return (torch.from_numpy(slopes),)

    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        offset = params["w"].detach().cpu().double().numpy() - 1.0
        return {"excess_loss": float(0.5 * np.sum(self.curvature * offset * offset))}
