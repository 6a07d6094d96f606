"""The contract of a workload: what is trained, how it is judged, and a task for each seed.

A `Workload` is configuration: its dataclass fields are its options, its class constants say how it is judged. It makes `Task`s.
A task hands out initial parameters, every worker's batch of any step, the loss of one worker, and the metric. All of it is
deterministic from the seed; nothing touches a global random generator.

*Initial parameters* are the same on every machine. Distributions are torch's defaults by layer (`reset_parameters` in torch 2):
linear and bilinear layers, convolutions of any dimension and recurrent layers uniform within 1/sqrt(fan-in) or 1/sqrt(hidden
size), weight and bias alike; embeddings normal, the padding zero; norms one and zero; attention as Glorot and Bengio have it. A
module that holds bare parameters (a table of tokens, positions) says in `initial_sd` how wide a normal distribution they come
from, which goes before all else. Each parameter draws from a stream of its own, named by its place in the model.

*Who sees which example when* is counter-based: every draw has its own Philox stream, named by (seed, purpose, rank, epoch), so
any step can be asked for in any order, in any process, with the same answer, and no draw moves another. Permutations sort
raw 64-bit words, which NumPy keeps fixed between its releases (it does not promise that for its own `permutation`).

*Names* are ours (`BUILT_IN`), or of workloads from outside, which come as methods do (`reference_impls.core.registry`): a plugin
file calls `add`, or an installed package names its classes in the entry-point group ``bandwise.workloads``.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import importlib.metadata
import importlib.util
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import cache, lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from reference_impls import list_algorithms
from reference_impls.core.errors import UnknownOptionError, UnsupportedError, nearest
from reference_impls.core.options import Declared, declared

Indices = npt.NDArray[np.int64]

UNSCORED_SEED: Final = 10_000
"""First of the seeds that are never scored: those of tuning (`TUNING_SEED` of sweeps, which load no torch) and of pilots."""


class Stream(IntEnum):
    """What a random stream is for. The numbers are part of every workload's version: never renumber them."""

    SPLIT = 1
    SHARD = 2
    EPOCH = 3
    INITIAL = 4
    NOISE = 5
    SHIFT = 6
    FLIP = 7
    TEACHER = 8
    EXAMPLE = 9
    TEST = 10
    FOLD = 11


def generator(seed: int, stream: Stream, *counters: int) -> np.random.Generator:
    """A generator of its own for `(seed, stream, counters)`. Seed and counters are integers >= 0."""
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}")
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence(seed, spawn_key=(int(stream), *counters)))
    )


def permutation(count: int, rng: np.random.Generator) -> Indices:
    """A uniformly random order of `0 .. count-1`, int64 [count]."""
    return np.argsort(rng.bit_generator.random_raw(count), kind="stable").astype(np.int64)


def uniform_integers(count: int, below: int, rng: np.random.Generator) -> Indices:
    """`count` independent draws from `0 .. below-1`, int64; biased by at most `below` in 2**64."""
    return (rng.bit_generator.random_raw(count) % np.uint64(below)).astype(np.int64)


def uniforms(count: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Uniform on [0, 1) in steps of 2**-53, straight from raw words, [count]."""
    words = (rng.bit_generator.random_raw(count) >> np.uint64(11)).astype(np.float64)
    return np.asarray(words * 2.0**-53)


def places(windows: int, length: int, chosen: int, rng: np.random.Generator) -> Indices:
    """`chosen` places of each of some windows of `length`, uniformly drawn, int64 [windows, chosen], ascending."""
    words = rng.bit_generator.random_raw(windows * length).reshape(windows, length)
    return np.sort(np.argsort(words, axis=1, kind="stable")[:, :chosen], axis=1).astype(np.int64)


def evenly(count: int, most: int) -> Indices:
    """Up to `most` of the numbers below `count`, spread evenly."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def chunks(indices: Indices, size: int) -> Iterator[Indices]:
    """The indices in their order, `size` at a time."""
    return (indices[start : start + size] for start in range(0, len(indices), size))


def split(count: int, test_size: int, seed: int) -> tuple[Indices, Indices]:
    """Training and test indices of `count` examples: ascending, disjoint, covering; redrawn for each seed."""
    if not 0 < test_size < count:
        raise ValueError(f"test_size must lie between 1 and {count - 1}, got {test_size}")
    order = permutation(count, generator(seed, Stream.SPLIT))
    return np.sort(order[test_size:]), np.sort(order[:test_size])


FOLDS: Final = 16
"""Parts into which windows of a text are cut so that seeds share none."""
SCORED_FOLDS: Final = 12
"""Folds of scored seeds; the others are for seeds of tuning and pilots."""


def fold_of(seed: int) -> int:
    """The fold of a seed: the first twelve scored seeds have one each, and so have the first four of tuning.

    Args:
        seed: Of a run, >= 0.

    Returns:
        0 to 11 for scored seeds, 12 to 15 for those from `UNSCORED_SEED` on.
    """
    if seed < UNSCORED_SEED:
        return seed % SCORED_FOLDS
    return SCORED_FOLDS + (seed - UNSCORED_SEED) % (FOLDS - SCORED_FOLDS)


def in_fold(windows: Indices, fold: int, block: int = 16) -> Indices:
    """The windows of one fold. Blocks of neighbours stay together, since neighbours are nearly copies of each other.

    Args:
        windows: Of one text, in its order, int64 [count].
        fold: 0 to `FOLDS` - 1.
        block: Windows that stay together.

    Returns:
        About a sixteenth of them, in order; folds are disjoint and cover all, and depend on no seed.
    """
    blocks = -(-len(windows) // block)
    drawn = permutation(blocks, generator(blocks, Stream.FOLD)) % FOLDS
    found: Indices = windows[np.repeat(drawn, block)[: len(windows)] == fold]
    return found


def by_part_shards(parts: Sequence[Indices], world_size: int, seed: int) -> tuple[Indices, ...]:
    """Whole parts for every rank: in an order drawn by the seed, each goes to the rank that has least by then.

    Args:
        parts: Examples of each part (a package, a domain); empty ones are left out.
        world_size: Ranks.
        seed: Of the run.

    Returns:
        The examples of each rank, in order.

    Raises:
        ValueError: There are fewer parts than ranks.
    """
    filled = [part for part in parts if len(part)]
    if world_size > len(filled):
        raise ValueError(
            f"{len(filled)} parts of the data leave some of {world_size} workers without any: use world_size <= "
            f'{len(filled)}, or sharding "iid"'
        )
    shards: list[list[Indices]] = [[] for _ in range(world_size)]
    for index in permutation(len(filled), generator(seed, Stream.SHARD)):
        smallest = min(range(world_size), key=lambda rank: sum(map(len, shards[rank])))
        shards[smallest].append(filled[index])
    return tuple(np.sort(np.concatenate(shard)) for shard in shards)


def iid_shards(train: Indices, world_size: int, seed: int) -> tuple[Indices, ...]:
    """A fixed random partition of `train` into `world_size` shards whose sizes differ by at most one."""
    if world_size > len(train):
        raise ValueError(
            f"{world_size} workers cannot share {len(train)} training examples: use at most {len(train)}"
        )
    order = train[permutation(len(train), generator(seed, Stream.SHARD))]
    return tuple(np.sort(part) for part in np.array_split(order, world_size))


def shards_of(
    sharding: str, train: Indices, labels: npt.NDArray[np.int64], world_size: int, seed: int
) -> tuple[Indices, ...]:
    """The shards of `train` by the name of a sharding.

    "iid", or "by-class": rank r holds the examples of `train` with `labels[example] % world_size == r` (of all).
    """
    if sharding != "by-class":
        return iid_shards(train, world_size, seed)
    classes = int(labels.max()) + 1
    shards = tuple(train[labels[train] % world_size == rank] for rank in range(world_size))
    if any(len(shard) == 0 for shard in shards):
        raise ValueError(
            f"by-class shards of {classes} classes leave some of {world_size} workers without data: "
            f'use world_size <= {classes}, or sharding "iid"'
        )
    return shards


class ShardSampler:
    """Each rank goes through its own shard for ever, in a fresh order each local epoch.

    The ranks' streams are the concatenated orders of epochs 0, 1, 2, ...; step t of a rank is the stream's
    positions `t * batch_size` to `(t + 1) * batch_size - 1`. So a batch may straddle two epochs, no example
    is dropped, and a shard may be smaller than a batch. Only the order in use is kept, as a cache: answers
    do not depend on it.
    """

    def __init__(self, shards: Sequence[Indices], batch_size: int, seed: int) -> None:
        self.shards = tuple(shards)
        self.batch_size = batch_size
        self.seed = seed
        self._orders: list[tuple[int, Indices] | None] = [None] * len(self.shards)

    def indices(self, step: int) -> Indices:
        """The examples of every rank at `step` (>= 0): int64 [world_size, batch_size]."""
        if step < 0:
            raise ValueError(f"step must be >= 0, got {step}")
        out = np.empty((len(self.shards), self.batch_size), dtype=np.int64)
        for rank in range(len(self.shards)):
            self._fill(out[rank], rank, step * self.batch_size)
        return out

    def _fill(self, out: Indices, rank: int, position: int) -> None:
        filled, size = 0, len(self.shards[rank])
        while filled < len(out):
            epoch, offset = divmod(position + filled, size)
            taken = min(len(out) - filled, size - offset)
            out[filled : filled + taken] = self._order(rank, epoch)[offset : offset + taken]
            filled += taken

    def _order(self, rank: int, epoch: int) -> Indices:
        cached = self._orders[rank]
        if cached is not None and cached[0] == epoch:
            return cached[1]
        shard = self.shards[rank]
        order = shard[permutation(len(shard), generator(self.seed, Stream.EPOCH, rank, epoch))]
        self._orders[rank] = (epoch, order)
        return order


# ---- the contract


class DataError(RuntimeError):
    """The data of a workload is missing, or its bytes are not the ones the workload is defined on."""


@dataclasses.dataclass(frozen=True)
class Workload(ABC):
    """What is trained and how it is judged. Subclasses are frozen dataclasses; their fields are the options, declared as those of
    methods (`reference_impls.core.options`): what a single value has to be, `get` sees to.

    `margin` is the largest difference of `metric`, in `unit`, that still counts as *equal*: at most half of
    what the weakest negative control loses on this workload. It judges results and changes no run, so it is
    no part of `version`. Where the controls do not lose, or have not been measured, `no_verdict` says so: then
    the margin is the scale of pictures and tuning alone, and no method is called equal.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    summary: ClassVar[str]
    metric: ClassVar[str]
    """A key of what `evaluate` answers."""
    unit: ClassVar[str]
    """Of `metric`; "1" for a plain number."""
    direction: ClassVar[Literal["higher", "lower"]]
    margin: ClassVar[float]
    no_verdict: ClassVar[str] = ""
    """Why no verdict on equality can rest on this workload, in a clause; empty where one can."""
    shared_examples: ClassVar[int] = 0
    """Examples of which every seed draws its splits anew, so that what one is judged on another has trained on; 0: none does."""
    batch_size: ClassVar[int]
    """Examples per worker and step where the caller names none."""
    stacks: ClassVar[bool] = False
    """Whether the model, of layers of `suite.workloads.stacked`, also takes parameters and batches [rows, ...] of many workers
    and answers their losses [rows]: what a GPU is fast with."""
    mixed: ClassVar[bool] = False
    """Whether its rows are computed at once, and compiled, on CPUs too; a simulated run then is a group of its own."""
    products: ClassVar[torch.dtype] = torch.bfloat16
    """What matrices of such a model are multiplied in."""
    shardings: ClassVar[tuple[str, ...]]

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its value, defaults filled in."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @property
    def tokens_per_example(self) -> int:
        """Tokens (bytes, words) that an example has; 1 where it is one thing."""
        return 1

    def direction_of(self, score: str) -> Literal["higher", "lower"]:
        """Whether higher or lower is better: of the metric its own, of the losses and the sharpness beside it "lower"."""
        return self.direction if score == self.metric else "lower"

    def demand(self, option: str, holds: bool, wanted: str) -> None:
        """Raise UnsupportedError unless an option is what is wanted of it beside the others."""
        if not holds:
            raise UnsupportedError(
                f"workload {self.name}: {option} must be {wanted}; got {getattr(self, option)!r}"
            )

    @abstractmethod
    def build(self) -> nn.Module:
        """The model, with unfilled parameters on the "meta" device.

        `forward(*batch_of_one_worker)` is the mean loss over the batch, a scalar; it is the workload's only
        definition of the model, and is written so that `torch.func.vmap` can batch it over workers and
        seeds.
        """

    @abstractmethod
    def task(self, seed: int, world_size: int, sharding: str = "iid", batch_size: int | None = None) -> Task:
        """The task of one seed; `batch_size` is per worker. Raises ValueError for what cannot be."""

    def module(self, seed: int) -> nn.Module:
        """The model for a real process group: float32 on CPU, with the values of `task(seed, ...).initial()`.

        `module(*batch_of_one_worker)` is the loss, bit-equal to `task.loss` at the same parameters.
        """
        module = self.build()
        module.load_state_dict(self.draw(module, seed), assign=True)
        return module

    def draw(self, module: nn.Module, seed: int) -> dict[str, Tensor]:
        """Initial parameters of the model, whose own may live on "meta": name -> float32 tensor on CPU, in its order."""
        return draw_parameters(module, seed)

    def check(self, seed: int, world_size: int, sharding: str, batch_size: int | None) -> int:
        """Refuse impossible arguments of `task` with ValueError; return the batch size to use."""
        size = self.batch_size if batch_size is None else batch_size
        for label, value, least in (
            ("seed", seed, 0),
            ("world_size", world_size, 1),
            ("batch_size", size, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{label} of workload {self.name} must be an integer >= {least}, got {value!r}"
                )
        if sharding not in self.shardings:
            allowed = " or ".join(f'"{name}"' for name in self.shardings)
            raise ValueError(f'workload {self.name} has no sharding "{sharding}": use {allowed}')
        return size


@dataclasses.dataclass(frozen=True, eq=False)
class Task(ABC):
    """One workload at one seed for one number of workers.

    Tasks of one workload share the code of `loss`, so the workers of all seeds can be batched into one call
    of `torch.func.vmap(torch.func.grad_and_value(task.loss))`.
    """

    workload: Workload
    seed: int
    world_size: int
    sharding: str
    batch_size: int
    train_size: int
    """Training examples over all ranks."""
    test_size: int
    """Examples that `evaluate` judges; 0 where the metric is a closed form."""

    def initial(self) -> dict[str, Tensor]:
        """Initial parameters, name -> float32 tensor on CPU, in the model's order; fresh tensors each call.

        They depend on the seed alone: not on the world size, the sharding or the batch size.
        """
        return self.workload.draw(skeleton(self.workload), self.seed)

    def loss(self, params: Mapping[str, Tensor], *batch: Tensor) -> Tensor:
        """Mean loss of one worker's batch (entries of `batch(step)` at one rank), a float32 scalar. Pure."""
        model = skeleton(self.workload)
        loss: Tensor = functional_call(model, _values(model, params), batch)
        return loss

    @abstractmethod
    def batch(self, step: int) -> tuple[Tensor, ...]:
        """Every worker's batch at `step` >= 0: tensors [world_size, batch_size, ...], of fixed shapes."""

    def examples(self, step: int) -> tuple[Tensor, ...]:
        """What the host draws for `batch(step)`, where that is less than the batch: tensors [world_size, ...]."""
        return self.batch(step)

    def gather(self, *examples: Tensor) -> tuple[Tensor, ...]:
        """The batch of `examples`, where they are; rows of several seeds can be gathered in one call."""
        return examples

    @abstractmethod
    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        """The metric, and what stands beside it, over the whole test part, in fixed chunks.

        Parameters that are not finite give a NaN `nll` or metric; that is the caller's sign of divergence.
        """

    def table_loss(self, steps: int) -> float | None:
        """The metric of a table of all that the workers read in so many steps, which a model has to beat; None: there is none."""
        return None

    def watch(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        """A point of a run's curve: as `evaluate`, of a fixed part of the test part where the whole would take long."""
        return self.evaluate(params)


@lru_cache(maxsize=32)
def skeleton(workload: Workload) -> nn.Module:
    """The workload's model without values, one for all its tasks; called only by `functional_call`."""
    return workload.build()


def predict(task: Task, params: Mapping[str, Tensor], *inputs: Tensor | None) -> Tensor:
    """What the model says of `inputs` ([batch, ...]; no targets), its logits, without a graph, where the parameters are.

    A model that is trained in mixed precision everywhere (`Workload.mixed`) is judged in it, as a row of its own.
    """
    model, device = skeleton(task.workload), next(iter(params.values())).device
    there = tuple(part if part is None else part.to(device) for part in inputs)
    with torch.no_grad():
        if not task.workload.mixed:
            output: Tensor = functional_call(model, _values(model, params), there)
            return output
        rows = {name: value.unsqueeze(0) for name, value in params.items()}
        row = tuple(part if part is None else part.unsqueeze(0) for part in there)
        return _in_mixed(model, task.workload.products, rows, row, may_compile())[0]


def scores_of(metric: str, chunks: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """The metric and NLL in nats, over chunks of logits [..., classes] and what was to be predicted, int64 [...].

    The metric is "accuracy" in percent; by any other name it is the NLL in bits.
    """
    correct, total, count = 0, 0.0, 0
    for logits, truth in chunks:
        flat, wanted = logits.flatten(0, -2), truth.flatten().to(logits.device)
        if metric == "accuracy":
            correct += int((flat.argmax(dim=-1) == wanted).sum())
        total += float(F.cross_entropy(flat.double(), wanted, reduction="sum"))
        count += len(wanted)
    nll = total / count
    return {metric: 100.0 * correct / count if metric == "accuracy" else nll / math.log(2.0), "nll": nll}


@dataclasses.dataclass(frozen=True, eq=False)
class SampledTask(Task):
    """Ranks sample examples of their shards; the same examples always judge, some at a time."""

    chunk: ClassVar[int]
    """Examples that are judged at a time."""
    watched: ClassVar[int] = 0
    """Examples, spread evenly, that a point of the curve is of; 0: all that judge."""
    sampler: ShardSampler = dataclasses.field(repr=False)

    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        return self.scores(params, np.arange(self.test_size))

    def watch(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        return self.scores(params, evenly(self.test_size, self.watched or self.test_size))

    def scores(self, params: Mapping[str, Tensor], chosen: Indices) -> dict[str, float]:
        """The scores over some of the examples that judge, by their numbers."""
        parts = (self.judging(numbers) for numbers in chunks(chosen, self.chunk))
        return scores_of(
            self.workload.metric, ((self.logits(params, *given), wanted) for *given, wanted in parts)
        )

    @abstractmethod
    def judging(self, numbers: Indices) -> tuple[Tensor, ...]:
        """What the model is given of the examples of these numbers that judge, and last what it is to predict."""

    def logits(self, params: Mapping[str, Tensor], *given: Tensor) -> Tensor:
        """What the model says of examples that are judged."""
        return predict(self, params, *given)


def _values(model: nn.Module, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters, and the model's buffers where these are."""
    device = next(iter(params.values())).device
    return {**{name: buffer.to(device) for name, buffer in model.named_buffers()}, **params}


# ---- gradients -------------------------------------------------------------------------------------------------------------


class BatchedGradients:
    """The gradient function of a workload over rows of workers.

    Args:
        task: Any of the workload's.
        mixed: Whether a model that stacks is computed in mixed precision, as on a GPU, also where its workload does not say so.

    Attributes:
        path: How the last call computed losses in mixed precision, ``compiled`` or ``eager``; empty where it was not in it.
    """

    path = ""

    def __init__(self, task: Task, mixed: bool = False) -> None:
        own = task.workload
        self._everywhere, self._stacks = own.mixed, own.mixed or (mixed and own.stacks)
        self._products = own.products
        self._model, self._by_rows = skeleton(own), vmap(grad_and_value(task.loss))

    def __call__(
        self, params: Mapping[str, Tensor], batch: Sequence[Tensor]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Gradients name -> [rows, *shape] and losses [rows] for parameters name -> [rows, *shape].

        batch: tensors [rows, batch, ...].
        """
        if not self._stacks:
            gradients, losses = self._by_rows(dict(params), *batch)
            return gradients, losses.detach()
        # by plain autograd: a row's loss depends on its own parameters alone
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        compiled = may_compile() and (self._everywhere or batch[0].is_cuda)
        self.path = "compiled" if compiled else "eager"
        losses = _in_mixed(self._model, self._products, leaves, batch, compiled)
        found = torch.autograd.grad(losses.sum(), list(leaves.values()))
        return dict(zip(leaves, found, strict=True)), losses.detach()


def may_compile() -> bool:
    """Whether models in mixed precision are compiled; ``BANDWISE_COMPILE=0`` says that they are not."""
    return os.environ.get("BANDWISE_COMPILE", "1") != "0"


def _in_mixed(
    model: nn.Module,
    products: torch.dtype,
    params: dict[str, Tensor],
    batch: Sequence[Tensor | None],
    compiled: bool,
) -> Tensor:
    """What a model answers for rows of workers, by plain autograd."""
    if not compiled:
        return _mixed(model, products, params, *batch)
    with torch._dynamo.config.patch(recompile_limit=SHAPES):
        return _compiled()(model, products, params, *batch)


def _mixed(
    model: nn.Module, products: torch.dtype, params: dict[str, Tensor], *batch: Tensor | None
) -> Tensor:
    device = next(iter(params.values())).device.type
    with torch.autocast(device, products, enabled=products != torch.float32):
        output: Tensor = functional_call(model, params, batch)
    return output


@cache
def _compiled() -> Callable[..., Tensor]:
    """One for all groups of a process, so that those of a shape share it; the compiler is loaded when it is asked for."""
    return torch.compile(_mixed, fullgraph=True, dynamic=False)


SHAPES: Final = 64
"""Kinds of groups (workload, rows, batch) that a process compiles the gradients of."""


# ---- initial parameters ----------------------------------------------------------------------------------------------------


def draw_parameters(module: nn.Module, seed: int) -> dict[str, Tensor]:
    """Values for all parameters of `module` (which may live on "meta"), name -> float32 tensor, in its own order."""
    return {
        name: _draw(module, name, tuple(parameter.shape), generator(seed, Stream.INITIAL, place))
        for place, (name, parameter) in enumerate(module.named_parameters())
    }


def _draw(module: nn.Module, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    path, _, leaf = name.rpartition(".")
    owner = module.get_submodule(path)
    if isinstance(sd := getattr(owner, "initial_sd", None), float):
        return _normal(shape, sd, rng)
    match owner:
        # behind attention, where torch sets it to zero
        case NonDynamicallyQuantizableLinear() if leaf == "bias":
            return torch.zeros(shape)
        case nn.Linear():
            return _uniform(shape, 1.0 / math.sqrt(owner.in_features), rng)
        case nn.Bilinear():
            return _uniform(shape, 1.0 / math.sqrt(owner.in1_features), rng)
        case _ConvNd():
            return _uniform(shape, 1.0 / math.sqrt(math.prod(owner.weight.shape[1:])), rng)
        case nn.RNNBase() | nn.RNNCellBase():
            return _uniform(shape, 1.0 / math.sqrt(owner.hidden_size), rng)
        case _NormBase() | nn.LayerNorm() | nn.GroupNorm() | nn.RMSNorm():
            return torch.ones(shape) if leaf == "weight" else torch.zeros(shape)
        case nn.Embedding() | nn.EmbeddingBag():
            table = _normal(shape, 1.0, rng)
            if owner.padding_idx is not None:
                table[owner.padding_idx] = 0.0
            return table
        case nn.MultiheadAttention():
            return _attention(leaf, shape, rng)
        case nn.PReLU():
            return torch.full(shape, 0.25)
    raise TypeError(
        f"{type(owner).__name__} holds the bare parameter {name}: give the class an initial_sd, the standard deviation "
        "of the normal distribution that its parameters come from"
    )


def _attention(leaf: str, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    """What MultiheadAttention holds itself; Glorot and Bengio, AISTATS 2010."""
    if leaf == "in_proj_bias":
        return torch.zeros(shape)
    if leaf in {"bias_k", "bias_v"}:  # (1, 1, width): of both fans there are width
        return _normal(shape, math.sqrt(1.0 / shape[-1]), rng)
    return _uniform(shape, math.sqrt(6.0 / sum(shape)), rng)


def _normal(shape: tuple[int, ...], sd: float, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) * sd


def _uniform(shape: tuple[int, ...], bound: float, rng: np.random.Generator) -> Tensor:
    """Uniform on [-bound, bound) in steps of 2**-24, straight from raw words."""
    words = rng.bit_generator.random_raw(math.prod(shape)) >> np.uint64(40)
    unit = words.astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    return torch.from_numpy((unit * np.float32(bound)).reshape(shape))


# ---- bytes that an installed distribution brought along, found without importing it ------------------------------------------


def find_distribution(name: str, why: str) -> Distribution:
    """The installed distribution `name`. Raises DataError, with `why` it is needed, where it is not installed."""
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise DataError(f"{why}, but {name} is not installed: pip install {name}") from error


def sources_of(name: str, version: str, why: str, remedy: str) -> list[tuple[PackagePath, bytes]]:
    """The Python files of an installed distribution with their content, in the order of their paths.

    Raises DataError, with `why` they are needed and the remedy, for another version and for what cannot be read.
    """
    installed = find_distribution(name, why)
    if installed.version != version:
        raise DataError(f"{why}, found {installed.version}: {remedy}")
    files = [file for file in installed.files or () if file.suffix == ".py"]
    try:
        return [
            (file, Path(str(installed.locate_file(file))).read_bytes())
            for file in sorted(files, key=PackagePath.as_posix)
        ]
    except OSError as error:
        raise DataError(f"cannot read the source of {name} ({error}): {remedy}") from error


def check_sha256(expected: str, what: str, remedy: str, *parts: bytes) -> None:
    """Refuse bytes whose SHA-256 (hex, of all parts) is not the expected one with DataError: results on others do not compare."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    if digest.hexdigest() != expected:
        raise DataError(f"{what} has SHA-256 {digest.hexdigest()}, expected {expected}: {remedy}")


# ---- names, and workloads from outside


BUILT_IN: Final[Mapping[str, str]] = {
    "byte-mlm": "suite.workloads.code:ByteMLM",
    "causal-lm": "suite.workloads.language:CausalLM",
    "cifar10": "suite.workloads.vision:Cifar10",
    "cifar100": "suite.workloads.vision:Cifar100",
    "code-gpt": "suite.workloads.code:CodeGPT",
    "code-packages": "suite.workloads.code:CodePackages",
    "ctr-zipf": "suite.workloads.synthetic:CtrZipf",
    "digits-cnn": "suite.workloads.digits:DigitsCNN",
    "digits-mlp": "suite.workloads.digits:DigitsMLP",
    "digits-noisy": "suite.workloads.digits:DigitsNoisy",
    "fashion-mnist": "suite.workloads.fashion:FashionMNIST",
    "image-folder": "suite.workloads.vision:ImageFolder",
    "label-noise-diagonal": "suite.workloads.synthetic:LabelNoiseDiagonal",
    "masked-lm": "suite.workloads.language:MaskedLM",
    "python-gpt": "suite.workloads.python_text:PythonGPT",
    "python-gpt-fp32": "suite.workloads.python_text:PythonGPTFloat32",
    "python-gpt-fp32-128": "suite.workloads.python_text:PythonGPTShort",
    "quadratic": "suite.workloads.synthetic:Quadratic",
}
ENTRY_POINTS: Final = "bandwise.workloads"


class UnknownWorkloadError(ValueError):
    """No workload has this name."""


class WorkloadDeclarationError(ValueError):
    """A workload from outside does not say of itself what it has to; the message names it and what is wrong."""


@dataclasses.dataclass(frozen=True)
class Outside:
    """A workload from outside. source_hash: of the code that was loaded, by which a result is found to be older."""

    workload: type[Workload]
    source_hash: str


_outside: dict[str, Outside] = {}


def add(workload: type[Workload]) -> None:
    """Register a workload of one's own under its `name`, in every process that loads the file that says so.

    Args:
        workload: A frozen dataclass derived from `Workload`.

    Raises:
        WorkloadDeclarationError: The name is taken, or what the class says of itself cannot be.
    """
    wrong = "derive it from suite.workloads.Workload"
    if isinstance(workload, type) and issubclass(workload, Workload):
        from suite.workloads.stated import problems  # here, since what ships is listed without pydantic

        wrong = next(problems(workload), "")
    if wrong:
        raise WorkloadDeclarationError(f"{_where(workload)} cannot be a workload: {wrong}")
    name, known = workload.name, {**_entry_points(), **BUILT_IN}
    taken = _where(_outside[name].workload) if name in _outside else known.get(name, _where(workload))
    if name in _outside or taken != _where(workload):
        raise WorkloadDeclarationError(
            f"{_where(workload)}: there is a workload called {name} already, {taken}: choose another name"
        )
    _outside[name] = Outside(workload, _source_hash(workload))


def names() -> list[str]:
    """The names of all workloads, sorted."""
    return sorted({*BUILT_IN, *_registered(), *_entry_points()})


def from_outside() -> list[str]:
    """The names of the workloads that were registered by `add` in this process so far, sorted."""
    return sorted(_outside)


def source_hash(name: str) -> str | None:
    """The hash of the file, or of all files of the package, that a workload from outside is declared in; None for ours.

    Ours are not hashed: their draws are held by tests, and their `version` moves with them. Raises UnknownWorkloadError.
    """
    if name in BUILT_IN:
        return None
    _load(name)
    return _outside[name].source_hash


def options(name: str) -> Mapping[str, Declared]:
    """The options of workload `name`, in their order. Raises UnknownWorkloadError."""
    return declared(_load(name))


def get(name: str, **values: Any) -> Workload:
    """The workload `name` with these options; options not named keep their defaults.

    Raises UnknownWorkloadError for the name, UnknownOptionError for that of an option and UnsupportedError (all are ValueErrors)
    for its type or value. An integer is taken where a float is due.
    """
    known = options(name)
    for key in values:
        if key not in known:
            raise UnknownOptionError(f"workload {name} has no option {key!r}{nearest(key, known)}")
    return _load(name)(
        **{key: known[key].checked(f"workload {name}", value) for key, value in values.items()}
    )


def _load(name: str) -> type[Workload]:
    if name in BUILT_IN:
        return _imported(BUILT_IN[name])
    if name not in _registered():
        points = _entry_points()
        if name not in points:
            raise UnknownWorkloadError(f'unknown workload "{name}"{nearest(name, names())}')
        found = _imported(points[name])
        if getattr(found, "name", None) != name:
            raise WorkloadDeclarationError(
                f"the entry point {name} of group {ENTRY_POINTS} is {points[name]}, whose name is "
                f"{getattr(found, 'name', None)!r}: give both one name"
            )
        if name not in _outside:  # else its module has said so itself
            add(found)
    return _outside[name].workload


def _imported(target: str) -> type[Workload]:
    module, _, attribute = target.partition(":")
    try:
        cls: type[Workload] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if target in BUILT_IN.values():
            raise
        raise WorkloadDeclarationError(
            f"{target}, an entry point of group {ENTRY_POINTS}, cannot be loaded: {error}; mend its package or uninstall it"
        ) from error
    return cls


def _registered() -> Mapping[str, Outside]:
    """What is registered, once the plugin files that the environment names have been executed."""
    list_algorithms()
    return _outside


def _entry_points() -> dict[str, str]:
    """Name -> ``module:Class`` of installed packages. Raises WorkloadDeclarationError for a name of ours."""
    found = {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    if taken := sorted(found.keys() & BUILT_IN.keys()):
        raise WorkloadDeclarationError(
            f"the entry point {taken[0]} of group {ENTRY_POINTS}, {found[taken[0]]}, has the name of a workload that is there "
            "already: choose another name"
        )
    return found


def _where(workload: Any) -> str:
    return f"{getattr(workload, '__module__', '?')}:{getattr(workload, '__qualname__', workload)}"


def _source_hash(workload: type[Workload]) -> str:
    """First 16 hex digits of SHA-256 over the file that declares it and what it imports from beside it, or over all Python
    files of its package."""
    package = importlib.util.find_spec(workload.__module__.partition(".")[0])
    if package is not None and package.submodule_search_locations is not None:
        tops = [Path(top) for top in package.submodule_search_locations]
        files = {path.relative_to(top).as_posix(): path for top in tops for path in top.rglob("*.py")}
    else:
        file = getattr(sys.modules.get(workload.__module__), "__file__", None)
        if file is None:
            raise WorkloadDeclarationError(
                f"{_where(workload)} stands in no file: other processes could not load it, so write it into one"
            )
        files = {Path(file).name: Path(file), **imported_beside(Path(file))}
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0".encode() + files[name].read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def imported_beside(file: Path) -> dict[str, Path]:
    """The Python files that a plugin file imports from its own folder, directly or through one another, without itself.

    A package there counts with all its files. A name that was loaded from elsewhere is somebody else's.

    Args:
        file: Of the plugin.

    Returns:
        Paths by their name relative to the folder.
    """
    folder, found, todo = file.resolve().parent, dict[str, Path](), [file.resolve()]
    while todo:
        for name in _imports(todo.pop()):
            loaded = getattr(sys.modules.get(name), "__file__", None)
            if loaded is not None and not Path(loaded).resolve().is_relative_to(folder):
                continue
            module, package = folder / f"{name}.py", folder / name
            paths = sorted(package.rglob("*.py")) if (package / "__init__.py").is_file() else [module]
            new = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
            todo += [path for key, path in new.items() if key not in found and path != file.resolve()]
            found |= {key: path for key, path in new.items() if path != file.resolve()}
    return found


def _imports(file: Path) -> set[str]:
    """The first parts of the names of all modules that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names
