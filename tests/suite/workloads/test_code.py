"""Workloads on the code corpus: the pinned bytes, what seeds share, no leak from what judges to training, exact scores."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from suite.runs.sweep import TUNING_SEED
from suite.workloads import DataError, code, get
from suite.workloads.base import UNSCORED_SEED, predict
from suite.workloads.code import (
    CLASSES,
    HELD_OUT,
    MASK,
    MASKED,
    load_corpus,
    trigram_counts,
    windows,
    windows_by_class,
)

SIXTEEN = (*range(12), *range(UNSCORED_SEED, UNSCORED_SEED + 4))
"""Scored seeds and seeds of tuning that share no window."""


def task(name: str, seed: int = 0, world_size: int = 4, sharding: str = "iid") -> Any:
    return get(name).task(seed, world_size, sharding)


# ---- the corpus ------------------------------------------------------------------------------------------------------------


def test_other_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_SHA256", "0" * 64)
    with pytest.raises(DataError, match=r"source of sympy .* expected 000.*: pip install .*sympy==1.14.0"):
        load_corpus.__wrapped__()


# ---- bytes of held-out packages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "read"), [("code-gpt", 129), ("byte-mlm", 64)])
def test_nothing_of_the_test_part_is_trained_on(name: str, read: int) -> None:
    made, corpus = task(name), load_corpus()
    held_out = np.zeros(len(corpus.text), dtype=bool)
    for package in HELD_OUT:
        held_out[slice(*corpus.spans[package])] = True
    inside, train = np.arange(read), np.concatenate(made.sampler.shards)
    assert not held_out[train[:, None] + inside].any()
    assert held_out[made.test[:, None] + inside].all()
    assert len(set(made.test)) == made.test_size == 2048
    assert len(set(train)) == len(train) == made.train_size
    # every package of some size is read; neighbouring packages share at most the byte that a window ends with
    assert all(((made.test >= a) & (made.test < b)).any() for a, b in (corpus.spans[p] for p in HELD_OUT))


@pytest.mark.parametrize(
    ("name", "sharding"), [("code-gpt", "iid"), ("code-gpt", "by-package"), ("byte-mlm", "iid")]
)
def test_twelve_scored_seeds_and_four_of_tuning_share_no_window(name: str, sharding: str) -> None:
    tasks = [task(name, seed, sharding=sharding) for seed in SIXTEEN]
    for parts in ([np.concatenate(made.sampler.shards) for made in tasks], [made.test for made in tasks]):
        together = np.concatenate(parts)
        assert len(set(together.tolist())) == len(together)
        assert max(map(len, parts)) < 1.1 * min(map(len, parts))
    # together they train on all of it
    spans = [span for package, span in load_corpus().spans.items() if package not in HELD_OUT]
    whole = sum(len(windows(span, get(name).context)) for span in spans)  # type: ignore[attr-defined]
    assert sum(made.train_size for made in tasks) == whole
    assert UNSCORED_SEED == TUNING_SEED


@pytest.mark.parametrize("world_size", [4, 8])
def test_by_package_no_two_ranks_read_the_same_package(world_size: int) -> None:
    corpus, readers = load_corpus(), []
    for seed in (0, 1):
        shards = task("code-gpt", seed, world_size, "by-package").sampler.shards
        readers.append(
            {
                name: {rank for rank, own in enumerate(shards) if ((own >= a) & (own < b)).any()}
                for name, (a, b) in corpus.spans.items()
            }
        )
        assert all(len(ranks) <= 1 for ranks in readers[-1].values())
        assert set().union(*readers[-1].values()) == set(range(world_size))
    assert readers[0] != readers[1]


def test_logits_stay_where_the_parameters_are() -> None:
    made = task("code-gpt")
    params = {name: value.to("meta") for name, value in made.initial().items()}
    text, _ = made.judging(np.arange(2))
    assert predict(made, params, text).device.type == "meta"


def test_masks_hide_the_bytes_that_are_asked_for() -> None:
    made = task("byte-mlm")
    text, where, missing = made.batch(5)
    assert ((text == MASK).sum(dim=-1) == MASKED).all()
    assert (text.gather(-1, where) == MASK).all()
    restored = text.scatter(-1, where, missing)
    assert restored.max() < 256
    assert bytes(restored[2, 3].tolist()) in load_corpus().text.tobytes()
    # every step and every rank has masks of its own
    assert not torch.equal(where, made.batch(6)[1])
    assert not torch.equal(where[0], where[1])


# ---- which package a window comes from -------------------------------------------------------------------------------------


def files_of(first: np.ndarray) -> set[int]:
    """First bytes of the files that windows lie in; each lies in one, whole."""
    starts = np.array(
        sorted(start for own in load_corpus().files.values() for start, end in own if end > start)
    )
    inside = np.searchsorted(starts, first, side="right") - 1
    assert (inside == np.searchsorted(starts, first + 127, side="right") - 1).all()
    return set(starts[inside].tolist())


def test_no_file_is_trained_on_and_judged() -> None:
    train, judged = windows_by_class()
    read = [set().union(*map(files_of, part)) for part in (train, judged)]
    assert not read[0] & read[1]
    for seed in (0, 11, UNSCORED_SEED):
        made = task("code-packages", seed)
        assert files_of(made.train) <= read[0]
        assert files_of(made.test) <= read[1]
    spans = load_corpus().spans
    sizes = {name: end - start for name, (start, end) in spans.items()}
    assert tuple(sorted(sizes, key=sizes.__getitem__, reverse=True)[:16]) == CLASSES
    for name, learnt, scored in zip(CLASSES, train, judged, strict=True):
        for own in (learnt, scored):
            assert spans[name][0] <= own.min()
            assert own.max() + 128 <= spans[name][1]
        assert 0.2 < len(scored) / (len(learnt) + len(scored)) < 0.28


@pytest.mark.parametrize("world_size", [4, 16])
def test_classes_are_equally_many(world_size: int) -> None:
    made, spans = task("code-packages", world_size=world_size, sharding="by-class"), load_corpus().spans
    assert np.bincount(made.labels).tolist() == [512] * 16
    for rank, shard in enumerate(made.sampler.shards):
        assert set(made.labels[shard] % world_size) == {rank}
        assert len(shard) == made.train_size // world_size
    for label, name in enumerate(CLASSES):
        start, end = spans[name]
        own, judged = made.train[made.labels == label], made.test[640 * label : 640 * (label + 1)]
        assert ((own >= start) & (own < end)).all()
        assert ((judged >= start) & (judged < end)).all()
        # what a small class repeats it repeats evenly
        times = set(Counter(own.tolist()).values())
        assert max(times) - min(times) <= 1


def test_scores_are_those_of_all_judged_windows() -> None:
    made = task("code-packages")
    params = made.initial()
    scored = made.evaluate(params)
    with torch.no_grad():
        logits = get("code-packages").module(0)(torch.from_numpy(trigram_counts(made.test)))
    labels = torch.arange(16).repeat_interleave(640)
    accuracy = 100 * float((logits.argmax(-1) == labels).double().mean())
    assert scored["accuracy"] == pytest.approx(accuracy, abs=0.02)
    assert scored["nll"] == pytest.approx(float(F.cross_entropy(logits.double(), labels)), rel=1e-6)
    watched = made.watch(params)
    assert watched != scored
    assert watched["nll"] == pytest.approx(scored["nll"], rel=0.02), "of a part of the same windows"
