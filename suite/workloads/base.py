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
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

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


def by_class_shards(train: Indices, labels: npt.NDArray[np.int64], world_size: int) -> tuple[Indices, ...]:
    """Rank r holds the examples of `train` with `labels[example] % world_size == r` (of all)."""
    classes = int(labels.max()) + 1
    shards = tuple(train[labels[train] % world_size == rank] for rank in range(world_size))
    if any(len(shard) == 0 for shard in shards):
        raise ValueError(
            f"by-class shards of {classes} classes leave some of {world_size} workers without data: "
            f'use world_size <= {classes}, or sharding "iid"'
        )
    return shards


def shards_of(
    sharding: str, train: Indices, labels: npt.NDArray[np.int64], world_size: int, seed: int
) -> tuple[Indices, ...]:
    """The shards of `train` by the name of a sharding, "iid" or "by-class"."""
    if sharding == "by-class":
        return by_class_shards(train, labels, world_size)
    return iid_shards(train, world_size, seed)


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


class WorkloadOptionError(ValueError):
    """An option that this workload does not have, or a value that it cannot take."""


class DataError(RuntimeError):
    """The data of a workload is missing, or its bytes are not the ones the workload is defined on."""


@dataclasses.dataclass(frozen=True)
class Workload(ABC):
    """What is trained and how it is judged. Subclasses are frozen dataclasses; their fields are the options.

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
    """Examples of which every seed draws its splits anew, so that seeds are not independent; 0: a seed has data of its own."""
    batch_size: ClassVar[int]
    """Examples per worker and step where the caller names none."""
    shardings: ClassVar[tuple[str, ...]]

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its value, defaults filled in."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def direction_of(self, score: str) -> Literal["higher", "lower"]:
        """Whether higher or lower is better: of the metric its own, of the losses and the sharpness beside it "lower"."""
        return self.direction if score == self.metric else "lower"

    def demand(self, option: str, holds: bool, wanted: str) -> None:
        """Raise WorkloadOptionError unless an option holds what is wanted."""
        if not holds:
            raise WorkloadOptionError(
                f'option "{option}" of workload {self.name} must be {wanted}, got {getattr(self, option)!r}'
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

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which the workers together have seen `train_size` examples, rounded up."""
        return math.ceil(self.train_size / (self.world_size * self.batch_size))

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

    @abstractmethod
    def evaluate(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        """The metric, and what stands beside it, over the whole test part, in fixed chunks.

        Parameters that are not finite give a NaN `nll` or metric; that is the caller's sign of divergence.
        """

    def watch(self, params: Mapping[str, Tensor]) -> dict[str, float]:
        """A point of a run's curve: as `evaluate`, of a fixed part of the test part where the whole would take long."""
        return self.evaluate(params)


@lru_cache(maxsize=32)
def skeleton(workload: Workload) -> nn.Module:
    """The workload's model without values, one for all its tasks; called only by `functional_call`."""
    return workload.build()


def predict(task: Task, params: Mapping[str, Tensor], *inputs: Tensor | None) -> Tensor:
    """What the model says of `inputs` ([batch, ...]; no targets), its logits, without a graph.

    It is computed where the parameters are; the logits come back to the processor, where what judges them is.
    """
    model, device = skeleton(task.workload), next(iter(params.values())).device
    there = tuple(part if part is None else part.to(device) for part in inputs)
    with torch.no_grad():
        output: Tensor = functional_call(model, _values(model, params), there)
    return output.cpu()


def classified(chunks: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Accuracy in percent and NLL in nats an example, over chunks of logits [examples, classes] and labels [examples]."""
    correct, nll, count = 0, 0.0, 0
    for logits, labels in chunks:
        correct += int((logits.argmax(dim=-1) == labels).sum())
        nll += float(F.cross_entropy(logits.double(), labels, reduction="sum"))
        count += len(labels)
    return {"accuracy": 100.0 * correct / count, "nll": nll / count}


def told(metric: str, chunks: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Bits a token, under the name `metric`, and NLL in nats, over chunks of logits [..., tokens] and the tokens [...]."""
    total, count = 0.0, 0
    for logits, tokens in chunks:
        total += float(F.cross_entropy(logits.flatten(0, -2).double(), tokens.flatten(), reduction="sum"))
        count += tokens.numel()
    nll = total / count
    return {metric: nll / math.log(2.0), "nll": nll}


def _values(model: nn.Module, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters, and the model's buffers where these are."""
    device = next(iter(params.values())).device
    return {**{name: buffer.to(device) for name, buffer in model.named_buffers()}, **params}


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
        case NonDynamicallyQuantizableLinear() if (
            leaf == "bias"
        ):  # behind attention, where torch sets it to zero
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


def check_sha256(expected: str, what: str, remedy: str, *parts: bytes) -> None:
    """Refuse bytes whose SHA-256 (hex, of all parts) is not the expected one with DataError: results on others do not compare."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    if digest.hexdigest() != expected:
        raise DataError(f"{what} has SHA-256 {digest.hexdigest()}, expected {expected}: {remedy}")
