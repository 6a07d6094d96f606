"""The code workload: the pinned bytes, no leak from test to training, exact scores, and causality."""

from __future__ import annotations

import math
from importlib.metadata import Distribution
from pathlib import Path

import numpy as np
import pytest
import torch

from suite.runs.sweep import TUNING_SEED
from suite.workloads import DataError, get
from suite.workloads import code_corpus as corpus_module
from suite.workloads.code_corpus import load_corpus
from suite.workloads.code_gpt import HELD_OUT, CodeTask, windows
from suite.workloads.sampling import UNSCORED_SEED


def task(seed: int = 0, world_size: int = 4, sharding: str = "iid") -> CodeTask:
    made = get("code-gpt").task(seed, world_size, sharding)
    assert isinstance(made, CodeTask)
    return made


def test_spans_are_the_packages_files() -> None:
    import sympy

    root = Path(sympy.__file__).parent
    corpus = load_corpus()
    assert not corpus.text.flags.writeable
    ends = [0, *(end for _, end in corpus.spans.values())]
    assert [start for start, _ in corpus.spans.values()] == ends[:-1]
    assert ends[-1] == len(corpus.text) == 26_168_818
    for package in ("calculus", "vector"):
        files = sorted((root / package).rglob("*.py"), key=lambda path: path.relative_to(root).as_posix())
        first, end = corpus.spans[package]
        assert corpus.text[first:end].tobytes() == b"".join(path.read_bytes() for path in files)


def install(root: Path, version: str, source: bytes = b"x = 1\n") -> Distribution:
    """A made-up sympy of one file."""
    (root / "sympy").mkdir()
    (root / "sympy/abc.py").write_bytes(source)
    info = root / "sympy.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sympy\nVersion: {version}\n")
    (info / "RECORD").write_text("sympy/abc.py,,\n")
    return Distribution.at(info)


def test_other_bytes_and_lost_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = "pip install .*sympy==1.14.0"
    for version, lost, message in (
        ("1.13.3", False, "the code corpus is sympy 1.14.0, found 1.13.3: "),
        ("1.14.0", False, "source of sympy 1.14.0 has SHA-256 .*, expected f5bddb.*: "),
        ("1.14.0", True, r"cannot read the code corpus .*abc\.py.*"),
    ):
        root = tmp_path / f"{version}-{lost}"
        root.mkdir()
        fake = install(root, version)
        if lost:
            (root / "sympy/abc.py").unlink()
        monkeypatch.setattr(corpus_module, "find_distribution", lambda name, why, fake=fake: fake)
        with pytest.raises(DataError, match=message + remedy):
            load_corpus.__wrapped__()


def test_nothing_of_the_test_part_is_trained_on() -> None:
    made, corpus = task(), load_corpus()
    held_out = np.zeros(len(corpus.text), dtype=bool)
    for package in HELD_OUT:
        held_out[slice(*corpus.spans[package])] = True
    inside = np.arange(129)
    train = np.concatenate(made.sampler.shards)
    assert not held_out[train[:, None] + inside].any()
    assert held_out[made.test[:, None] + inside].all()
    assert len(set(made.test)) == made.test_size == 2048
    assert len(set(train)) == len(train) == made.train_size
    # every package of some size is read; neighbouring packages share at most the byte that a window ends with
    assert all(((made.test >= a) & (made.test < b)).any() for a, b in (corpus.spans[p] for p in HELD_OUT))
    assert 0.15 < held_out.mean() < 0.25


@pytest.mark.parametrize("sharding", ["iid", "by-package"])
def test_twelve_scored_seeds_and_four_of_tuning_share_no_window(sharding: str) -> None:
    seeds = [*range(12), *range(UNSCORED_SEED, UNSCORED_SEED + 4)]
    tasks = [task(seed, sharding=sharding) for seed in seeds]
    for parts in ([np.concatenate(made.sampler.shards) for made in tasks], [made.test for made in tasks]):
        together = np.concatenate(parts)
        assert len(set(together.tolist())) == len(together)
        assert max(map(len, parts)) < 1.1 * min(map(len, parts))
    # together they train on all of it
    whole = sum(len(windows(span)) for name, span in load_corpus().spans.items() if name not in HELD_OUT)
    assert sum(made.train_size for made in tasks) == whole
    assert UNSCORED_SEED == TUNING_SEED


@pytest.mark.parametrize("world_size", [4, 8])
def test_by_package_no_two_ranks_read_the_same_package(world_size: int) -> None:
    corpus, readers = load_corpus(), []
    for seed in (0, 1):
        shards = task(seed, world_size, "by-package").sampler.shards
        readers.append(
            {
                name: {rank for rank, own in enumerate(shards) if ((own >= a) & (own < b)).any()}
                for name, (a, b) in corpus.spans.items()
            }
        )
        assert all(len(ranks) <= 1 for ranks in readers[-1].values())
        assert set().union(*readers[-1].values()) == set(range(world_size))
    assert readers[0] != readers[1]


@pytest.mark.full
def test_the_curve_is_of_a_part_of_what_the_end_is_judged_on() -> None:
    made = get("code-gpt", size="0.14m").task(0, 4, "iid")
    params = made.initial()
    watched, ended = made.watch(params), made.evaluate(params)
    assert watched != ended
    assert watched["nll"] == pytest.approx(ended["nll"], rel=0.05)


def test_a_batch_is_text_and_what_follows() -> None:
    made = task()
    text, following = made.batch(5)
    assert torch.equal(text[..., 1:], following[..., :-1])
    window = bytes([*text[2, 3].tolist(), int(following[2, 3, -1])])
    assert window in load_corpus().text.tobytes()
    assert text.max() < 256


@pytest.mark.parametrize(("size", "millions"), [("0.14m", 0.14), ("0.9m", 0.9), ("3.3m", 3.3), ("20m", 20.1)])
def test_sizes_are_what_they_say(size: str, millions: float) -> None:
    parameters = sum(parameter.numel() for parameter in get("code-gpt", size=size).build().parameters())
    assert parameters / 1e6 == pytest.approx(millions, rel=0.03)


def test_a_model_that_knows_nothing_scores_eight_bits() -> None:
    made = get("code-gpt", size="0.14m").task(0, 4, "iid")
    scored = made.evaluate({name: torch.zeros_like(value) for name, value in made.initial().items()})
    assert scored["bits_per_byte"] == pytest.approx(8.0, rel=1e-6)
    assert scored["nll"] == pytest.approx(8 * math.log(2), rel=1e-6)


def test_no_byte_sees_a_later_one() -> None:
    module = get("code-gpt").module(0)
    text = task().batch(0)[0][0, :2]
    other = text.clone()
    other[:, 100:] = (other[:, 100:] + 1) % 256
    with torch.no_grad():
        before, after = module(text), module(other)
    assert torch.equal(before[:, :100], after[:, :100])
    assert not torch.equal(before[:, 100:], after[:, 100:])
