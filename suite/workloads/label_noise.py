"""`label-noise-diagonal`: regression with squared weights under fresh label noise; flat minima generalise.

f(x) = <u^2 - v^2, x>, 100 inputs, 40 samples of N(0, 1) entries, a teacher with 5 entries of +-1 and 95 of 0. In
every step every worker sees one sample of its own under a label with fresh noise, +1 or -1. All of the samples can
be fitted in many ways; the noise goes on once they are, and drives the weights, over about 1/lr^2 steps, to where the
trace of the Hessian is least, which is near the sparse teacher (HaoChen et al., arXiv 2006.08680; Li, Wang and Arora,
arXiv 2110.06914). Workers that step locally keep more of the noise than workers whose gradients are averaged, so
here local methods can beat the baseline, and no bound holds that they come out alike.

The test loss is exact: E (f(x) - teacher(x))^2 over new x is the squared distance of u^2 - v^2 from the teacher.
Beside it stand `hessian_trace`, of the loss on all samples without noise, and `clean_loss`, that loss itself.

Sharding "iid" gives every worker 10 of the 40 samples (at four workers), so that one that is never told of the others
learns another function. With the option `shared` every worker draws from all 40; then a worker alone with its noise
generalises better than the baseline, and the controls do not lose.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from suite.workloads.base import Task, Workload
from suite.workloads.sampling import (
    Indices,
    Stream,
    generator,
    iid_shards,
    permutation,
    uniform_integers,
)

DIM, SAMPLES, SPARSITY = 100, 40, 5
BLOCK = 512
"""Steps that are drawn at a time."""

Floats = npt.NDArray[np.float32]


class Diagonal(nn.Module):
    """`Diagonal()(x [batch, 100], y [batch])` is the mean of (f(x) - y)^2 / 2; without y, f(x) [batch]."""

    initial_sd = 0.3

    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.empty(DIM, device="meta"))
        self.v = nn.Parameter(torch.empty(DIM, device="meta"))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        f = (x * (self.u * self.u - self.v * self.v)).sum(dim=-1)
        return f if y is None else 0.5 * (f - y).square().mean()


@dataclasses.dataclass(frozen=True)
class LabelNoiseDiagonal(Workload):
    """Exact test loss; trace of the Hessian and the training loss without noise beside it."""

    name = "label-noise-diagonal"
    version = 1
    summary = "sparse regression by u^2 - v^2 (200 parameters) under fresh label noise: flatness"
    metric = "test_loss"
    unit = "1"
    direction = "lower"
    margin = 0.2  # the weakest control lost 3.76 [2.09, 5.43], n = 6, 5,000 steps (controls-label-noise)
    batch_size = 1
    shardings = ("iid",)

    shared: bool = dataclasses.field(
        default=False, metadata={"help": "every worker draws from all samples, not from a share of its own"}
    )

    def build(self) -> nn.Module:
        return Diagonal()

    def task(
        self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None
    ) -> LabelNoiseTask:
        size = self.check(seed, world_size, sharding, batch_size)
        rng = generator(seed, Stream.TEACHER)
        teacher = np.zeros(DIM, dtype=np.float32)
        teacher[permutation(DIM, rng)[:SPARSITY]] = 2 * uniform_integers(SPARSITY, 2, rng) - 1
        inputs = generator(seed, Stream.SPLIT).standard_normal((SAMPLES, DIM), dtype=np.float32)
        everything = np.arange(SAMPLES)
        labels = (inputs.astype(np.float64) @ teacher).astype(np.float32)
        shards = (everything,) * world_size if self.shared else iid_shards(everything, world_size, seed)
        common = (self, seed, world_size, sharding, size, SAMPLES, 0)
        return LabelNoiseTask(*common, inputs, teacher, labels, shards)


@dataclasses.dataclass(frozen=True, eq=False)
class LabelNoiseTask(Task):
    """The regression for one seed.

    `batch(step)` is inputs float32 [world_size, batch_size, 100] and noisy labels float32 [world_size, batch_size];
    samples are drawn with replacement from a worker's shard.
    """

    inputs: Floats = dataclasses.field(repr=False)
    teacher: Floats = dataclasses.field(repr=False)
    labels: Floats = dataclasses.field(repr=False)
    """Without noise, [samples]."""
    shards: tuple[Indices, ...] = dataclasses.field(repr=False)
    _blocks: dict[int, tuple[Indices, Floats]] = dataclasses.field(default_factory=dict, repr=False)
    """The block in use, as a cache: answers do not depend on it."""

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        if step < 0:
            raise ValueError(f"step must be >= 0, got {step}")
        chosen, noise = (part[:, step % BLOCK] for part in self._block(step // BLOCK))
        return torch.from_numpy(self.inputs[chosen]), torch.from_numpy(self.labels[chosen] + noise)

    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        u, v = (params[name].detach().cpu().double().numpy() for name in ("u", "v"))
        distance = u * u - v * v - self.teacher
        inputs = self.inputs.astype(np.float64)
        return {
            "test_loss": float(np.sum(distance**2)),
            "hessian_trace": float(4.0 * np.mean(inputs**2 @ (u * u + v * v))),
            "clean_loss": float(0.5 * np.mean((inputs @ distance) ** 2)),
        }

    def _block(self, index: int) -> tuple[Indices, Floats]:
        """Samples and noise of `BLOCK` steps, both [world_size, BLOCK, batch_size]."""
        if index not in self._blocks:
            count = BLOCK * self.batch_size
            chosen, noise = [], []
            for rank, shard in enumerate(self.shards):
                rng = generator(self.seed, Stream.NOISE, rank, index)
                chosen.append(shard[uniform_integers(count, len(shard), rng)])
                noise.append(2.0 * uniform_integers(count, 2, rng) - 1.0)
            shape = (self.world_size, BLOCK, self.batch_size)
            self._blocks.clear()
            self._blocks[index] = (
                np.stack(chosen).reshape(shape),
                np.stack(noise).astype(np.float32).reshape(shape),
            )
        return self._blocks[index]
