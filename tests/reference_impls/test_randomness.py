"""Streams are what their text says to the bit, do not care how they are cut, and do not know each other."""

from __future__ import annotations

import hashlib
import struct

import pytest
import torch

from reference_impls.core.compute import Key
from tests.reference_impls.exchanges import buckets

MASK = 0xFFFFFFFF


def oracle(seed, step, stage, rank, name, start, numel):
    """The documented stream with Python integers."""
    message = struct.pack("<qqq", seed, step, -1 if rank is None else rank)
    for text in (stage, name or ""):
        message += struct.pack("<I", len(text.encode())) + text.encode()
    k0, k1 = struct.unpack("<II", hashlib.blake2b(message, digest_size=8, person=b"bandwise-rng-v1").digest())

    def mix(x):
        x ^= x >> 16
        x = x * 0x7FEB352D & MASK
        x ^= x >> 15
        x = x * 0x846CA68B & MASK
        return x ^ (x >> 16)

    return [mix((mix(((start + i) & MASK) ^ k0) + k1) & MASK) for i in range(numel)]


def unsigned(x):
    return [v & MASK for v in x.tolist()]


CASES = [
    (0, 0, "a", None, None, 0),
    (1, 7, "dither", 3, None, 1000),
    (-5, 2**40, "größe", 0, "layer.weight", 2**31 - 2),
    (12345, 1, "", 1, "x", 2**32 - 3),
]


@pytest.mark.parametrize(("seed", "step", "stage", "rank", "name", "start"), CASES)
def test_the_documented_bits(seed, step, stage, rank, name, start):
    key = Key.of(seed=seed, step=step, stage=stage, rank=rank, name=name, start=start)
    expected = oracle(seed, step, stage, rank, name, start, 9)
    assert unsigned(key.bits(9)) == expected
    assert key.uniform(9).tolist() == [(word >> 8) / 2**24 for word in expected]


@pytest.mark.parametrize("start", [0, 1, 2**31 - 50, 2**32 - 50])
def test_any_cut_draws_what_the_whole_draws(start):
    key = Key.of(seed=3, step=4, stage="cut", rank=0, start=start)
    whole = key.bits(101)
    for cut in (0, 1, 37, 100, 101):
        assert torch.equal(torch.cat([key.bits(cut), key.at(cut).bits(101 - cut)]), whole)
        named = Key.of(seed=3, step=4, stage="cut", rank=0, start=start + cut)
        assert torch.equal(named.bits(101 - cut), whole[cut:])


def test_a_shard_draws_by_step_rank_and_place_in_the_model() -> None:
    """Where a model is cut into buckets changes nothing; another step, and another rank unless it is shared, changes all."""
    (whole, other) = buckets(2, [12], seed=3, step=5)
    (later, _) = buckets(2, [8], seed=3, step=5, start=4)
    (following, _) = buckets(2, [12], seed=3, step=6)
    drawn = whole.key("round").bits(12)
    assert torch.equal(later.key("round").bits(8), drawn[4:])
    assert not (following.key("round").bits(12) == drawn).any()
    assert not (other.key("round").bits(12) == drawn).any()
    assert torch.equal(other.key("coin", shared=True).bits(12), whole.key("coin", shared=True).bits(12))
