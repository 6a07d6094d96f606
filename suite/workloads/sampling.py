"""Who sees which example when: splits, shards and endless batches, all counter-based.

Every draw comes from its own Philox stream, named by (seed, purpose, rank, epoch), so any step can be asked
for in any order, in any process, with the same answer, and no draw moves another. Permutations sort raw
64-bit words, which NumPy keeps fixed between its releases (it does not promise that for its own
`permutation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

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
