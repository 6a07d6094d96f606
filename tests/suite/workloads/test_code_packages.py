"""Windows of source by sub-package: what seeds share, classes in balance, features of the right bytes, exact scores."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sympy
import torch
import torch.nn.functional as F

from suite.workloads import get
from suite.workloads.code_corpus import load_corpus
from suite.workloads.code_packages import BUCKETS, CLASSES, PackagesTask, trigram_counts, windows_by_class
from suite.workloads.sampling import UNSCORED_SEED


def task(seed: int = 0, world_size: int = 4, sharding: str = "iid") -> PackagesTask:
    made = get("code-packages").task(seed, world_size, sharding)
    assert isinstance(made, PackagesTask)
    return made


def files_of(first: np.ndarray) -> set[int]:
    """First bytes of the files that windows lie in; each lies in one, whole."""
    starts = np.array(
        sorted(start for own in load_corpus().files.values() for start, end in own if end > start)
    )
    inside = np.searchsorted(starts, first, side="right") - 1
    assert (inside == np.searchsorted(starts, first + 127, side="right") - 1).all()
    return set(starts[inside].tolist())


def test_the_files_of_the_corpus_are_its_packages() -> None:
    corpus, root = load_corpus(), Path(sympy.__file__).parent
    for name, files in corpus.files.items():
        assert all(end == start for (_, end), (start, _) in pairwise(files))
        assert (files[0][0], files[-1][1]) == corpus.spans[name]
    on_disk = sorted(
        (root / "combinatorics").rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()
    )
    found = [corpus.text[start:end].tobytes() for start, end in corpus.files["combinatorics"]]
    assert found == [path.read_bytes() for path in on_disk]


def test_no_file_is_trained_on_and_judged() -> None:
    train, judged = windows_by_class()
    read = [set().union(*map(files_of, part)) for part in (train, judged)]
    assert not read[0] & read[1]
    for seed in (0, 11, UNSCORED_SEED):
        made = task(seed)
        assert files_of(made.train) <= read[0]
        assert files_of(made.test) <= read[1]
    corpus = load_corpus()
    for name, learnt, scored in zip(CLASSES, train, judged, strict=True):
        start, end = corpus.spans[name]
        for windows in (learnt, scored):
            assert start <= windows.min()
            assert windows.max() + 128 <= end
        assert 0.2 < len(scored) / (len(learnt) + len(scored)) < 0.28


def test_classes_are_the_largest_sub_packages() -> None:
    sizes = {name: end - start for name, (start, end) in load_corpus().spans.items()}
    assert tuple(sorted(sizes, key=sizes.__getitem__, reverse=True)[:16]) == CLASSES


@pytest.mark.parametrize("sharding", ["iid", "by-class"])
def test_twelve_scored_seeds_and_four_of_tuning_share_no_window(sharding: str) -> None:
    seeds = [*range(12), *range(UNSCORED_SEED, UNSCORED_SEED + 4)]
    read = Counter(window for seed in seeds for window in set(task(seed, sharding=sharding).train.tolist()))
    assert set(read.values()) == {1}


def test_seeds_are_judged_on_draws_of_their_own() -> None:
    zero, one = set(task(0).test.tolist()), set(task(1).test.tolist())
    assert len(zero) == len(one) == task(0).test_size == 10_240
    assert 2_000 < len(zero & one) < 6_000


@pytest.mark.parametrize("world_size", [4, 8, 16])
def test_classes_are_equally_many(world_size: int) -> None:
    made, spans = task(world_size=world_size, sharding="by-class"), load_corpus().spans
    assert made.train_size == 16 * 512
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


def test_a_batch_is_the_trigrams_of_its_windows() -> None:
    made, text = task(), load_corpus().text.tobytes()
    counts, labels = made.batch(7)
    chosen = made.sampler.indices(7)
    assert (labels.numpy() == made.labels[chosen]).all()
    assert (counts.sum(dim=-1, dtype=torch.int64) == 126).all()
    bucket: dict[bytes, int] = {}  # each trigram has one bucket, the same in every window
    for rank, place in ((0, 0), (2, 3), (3, 7)):
        start = int(made.train[chosen[rank, place]])
        trigrams = [text[i : i + 3] for i in range(start, start + 126)]
        for trigram in set(trigrams) - set(bucket):
            bucket[trigram] = hashed(trigram)
        expected = np.bincount([bucket[trigram] for trigram in trigrams], minlength=BUCKETS)
        assert (counts[rank, place].numpy() == expected).all()


def hashed(trigram: bytes) -> int:
    """Knuth's multiplicative hash with the golden ratio, the upper ten of 64 bits."""
    return (int.from_bytes(trigram, "little") + 1) * 0x9E3779B97F4A7C15 % 2**64 >> 54


def test_scores_are_those_of_all_judged_windows() -> None:
    made = task()
    params = made.initial()
    scored = made.evaluate(params)
    module = get("code-packages").module(0)
    with torch.no_grad():
        logits = module(torch.from_numpy(trigram_counts(made.test)))
    labels = torch.arange(16).repeat_interleave(640)
    assert scored["accuracy"] == pytest.approx(
        100 * float((logits.argmax(-1) == labels).double().mean()), abs=0.02
    )
    assert scored["nll"] == pytest.approx(float(F.cross_entropy(logits.double(), labels)), rel=1e-6)
    nothing = made.evaluate({name: torch.zeros_like(value) for name, value in params.items()})
    assert nothing["accuracy"] == 100 / 16
    assert nothing["nll"] == pytest.approx(math.log(16), rel=1e-6)


def test_the_curve_is_of_a_part_of_what_the_end_is_judged_on() -> None:
    made = task()
    params = made.initial()
    watched, ended = made.watch(params), made.evaluate(params)
    assert watched != ended
    assert watched["nll"] == pytest.approx(ended["nll"], rel=0.02)
