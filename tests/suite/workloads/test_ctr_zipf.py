"""Clicks: Zipf's law, the hash, the machine against all pairs, exact scores, gradients of zeros."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch.func import grad

from suite.workloads import get
from suite.workloads.ctr_zipf import (
    BUCKETS,
    CATEGORIES,
    EXPONENT,
    TEST_SIZE,
    TRAIN_SIZE,
    CtrTask,
    hashed,
    impressions,
)


def task(sharding: str = "iid", seed: int = 0) -> CtrTask:
    made = get("ctr-zipf").task(seed, 4, sharding)
    assert isinstance(made, CtrTask)
    return made


def test_categories_follow_zipfs_law() -> None:
    categories = impressions(0)[0]
    for field, size in enumerate(CATEGORIES):
        law = np.arange(1, size + 1) ** -EXPONENT
        law /= law.sum()
        for rank in (0, 1, 9):
            count = int((categories[:, field] == rank).sum())
            expected = len(categories) * law[rank]
            assert abs(count - expected) < 4 * math.sqrt(expected)
        assert categories[:, field].min() >= 0
        assert categories[:, field].max() < size


def test_clicks_have_their_probability() -> None:
    _, probabilities, clicks = impressions(1)
    assert set(np.unique(clicks)) == {0.0, 1.0}
    edges = np.quantile(probabilities, np.linspace(0, 1, 11))
    for low, high in itertools.pairwise(edges):
        inside = (probabilities >= low) & (probabilities <= high)
        spread = math.sqrt(float((probabilities * (1 - probabilities))[inside].sum()))
        assert abs(float((clicks - probabilities)[inside].sum())) < 4 * spread
    assert 0.2 < probabilities.mean() < 0.5


def test_the_hash_spreads_and_tells_fields_apart() -> None:
    every = np.arange(20_000)[:, None].repeat(len(CATEGORIES), axis=1)
    buckets = hashed(every)
    assert buckets.min() >= 0
    assert buckets.max() < BUCKETS
    loads = np.bincount(buckets.flatten(), minlength=BUCKETS)
    assert loads.max() < 4 * loads.mean()
    assert (loads > 0).mean() > 0.99
    assert len(set(hashed(np.zeros((1, len(CATEGORIES)), dtype=np.int64))[0])) == len(CATEGORIES)


def test_the_machine_is_the_sum_over_all_pairs() -> None:
    made, module = task(), get("ctr-zipf").module(3)
    buckets = made.batch(0)[0][1]
    table = dict(module.named_parameters())["table"].detach().double()
    with torch.no_grad():
        logits = module(buckets)
    for row, logit in zip(buckets[:5], logits[:5], strict=True):
        picked = table[row]
        pairs = sum(float(a @ b) for a, b in itertools.combinations(picked[:, 1:], 2))
        expected = module.get_parameter("intercept").item() + float(picked[:, 0].sum()) + pairs
        assert float(logit) == pytest.approx(expected, abs=1e-5)


def test_hardly_any_gradient_is_not_zero() -> None:
    made = task()
    gradient = grad(made.loss)(made.initial(), *(part[2] for part in made.batch(0)))["table"]
    touched = made.batch(0)[0][2].unique()
    rows = gradient.abs().sum(dim=1)
    assert sorted(rows.nonzero().flatten().tolist()) == sorted(touched.tolist())
    assert len(touched) <= 256
    assert float((gradient == 0).double().mean()) > 0.95


def test_scores_are_exact() -> None:
    made = task(seed=2)
    silent = {name: torch.zeros_like(value) for name, value in made.initial().items()}
    assert made.evaluate(silent) == {
        "log_loss": pytest.approx(math.log(2), rel=1e-9),
        "nll": pytest.approx(math.log(2), rel=1e-9),
    }
    module = get("ctr-zipf").module(2)
    with torch.no_grad():
        q = torch.sigmoid(module(made.buckets[TRAIN_SIZE:]).double())
    for name, p in (("log_loss", made.probabilities), ("nll", made.clicks.double())):
        own = p[TRAIN_SIZE:]
        expected = float(-(own * q.log() + (1 - own) * (1 - q).log()).mean())
        assert made.evaluate(dict(module.named_parameters()))[name] == pytest.approx(expected, rel=1e-6)
    assert made.test_size == TEST_SIZE == len(q)


def test_by_class_goes_by_the_first_field() -> None:
    made = task("by-class")
    sites = impressions(0)[0][:, 0]
    for rank, shard in enumerate(made.sampler.shards):
        assert (sites[shard] % 4 == rank).all()
    assert sorted(np.concatenate(made.sampler.shards)) == list(range(TRAIN_SIZE))
