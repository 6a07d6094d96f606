"""Splits, shards and endless batches: disjoint, covering, fair, and the same from any step."""

from __future__ import annotations

import numpy as np
import pytest

from suite.workloads.base import ShardSampler, Stream, generator, iid_shards, shards_of, split


def sampler(batch_size: int = 4) -> ShardSampler:
    """Three ranks with shards of 10, 7 and 3 examples."""
    return ShardSampler([np.arange(0, 10), np.arange(10, 17), np.arange(17, 20)], batch_size, seed=0)


def stream(of: ShardSampler, rank: int, steps: int) -> np.ndarray:
    return np.concatenate([of.indices(step)[rank] for step in range(steps)])


def test_streams_are_independent_of_each_other() -> None:
    words = {
        tuple(generator(seed, kind, *counters).bit_generator.random_raw(4))
        for seed in (0, 1, 2**40)
        for kind in Stream
        for counters in ((), (0,), (1,), (0, 1), (1, 0))
    }
    assert len(words) == 3 * len(Stream) * 5
    with pytest.raises(ValueError, match="seed must be >= 0, got -3"):
        generator(-3, Stream.SPLIT)


def test_a_split_is_disjoint_and_covering_and_redrawn() -> None:
    train, test = split(100, 30, seed=0)
    assert len(test) == 30
    assert sorted([*train, *test]) == list(range(100))
    assert (np.diff(train) > 0).all()
    assert (np.diff(test) > 0).all()
    assert set(test) != set(split(100, 30, seed=1)[1])
    for size in (0, 100):
        with pytest.raises(ValueError, match="test_size must lie between 1 and 99"):
            split(100, size, seed=0)


def test_iid_shards_partition_the_training_set() -> None:
    train = np.arange(0, 206, 2)
    shards = iid_shards(train, 4, seed=0)
    assert sorted(np.concatenate(shards)) == train.tolist()
    assert sorted(len(shard) for shard in shards) == [25, 26, 26, 26]
    assert set(shards[0]) != set(iid_shards(train, 4, seed=1)[0])
    # not the blocks that lie there: every shard reaches over the whole range
    assert all(shard.min() < 60 and shard.max() > 146 for shard in shards)
    with pytest.raises(ValueError, match="104 workers cannot share 103 training examples: use at most 103"):
        iid_shards(train, 104, seed=0)


def test_by_class_shards_hold_their_labels() -> None:
    labels = np.arange(1000) % 10
    train = np.arange(0, 1000, 3)
    shards = shards_of("by-class", train, labels, 4, seed=0)
    assert sorted(np.concatenate(shards)) == train.tolist()
    assert [sorted(set(labels[shard])) for shard in shards] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    with pytest.raises(ValueError, match="leave some of 11 workers without data: use world_size <= 10"):
        shards_of("by-class", train, labels, 11, seed=0)


def test_an_epoch_shows_every_example_once() -> None:
    many = sampler()
    for rank, size in enumerate((10, 7, 3)):
        seen = stream(many, rank, steps=70)
        epochs = seen[: size * (len(seen) // size)].reshape(-1, size)
        assert all(sorted(epoch) == many.shards[rank].tolist() for epoch in epochs)


def test_the_stream_does_not_depend_on_the_batch_size() -> None:
    for rank in range(3):
        assert stream(sampler(6), rank, 10).tolist() == stream(sampler(4), rank, 15).tolist()
