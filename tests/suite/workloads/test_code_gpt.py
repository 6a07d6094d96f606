"""The code workload: the pinned bytes, no leak from test to training, exact scores, and causality."""

from __future__ import annotations

import math
import time
from importlib.metadata import Distribution
from pathlib import Path

import numpy as np
import pytest
import torch

from suite.workloads import DataError, get
from suite.workloads import code_corpus as corpus_module
from suite.workloads.code_corpus import load_corpus
from suite.workloads.code_gpt import CANDIDATES, CodeTask, held_out_packages


def task(seed: int = 0, world_size: int = 4) -> CodeTask:
    made = get("code-gpt").task(seed, world_size)
    assert isinstance(made, CodeTask)
    return made


def test_the_corpus_is_quickly_there() -> None:
    start = time.perf_counter()
    corpus = load_corpus.__wrapped__()
    assert time.perf_counter() - start < 2.0
    assert corpus.text.shape == (26_168_818,)
    assert not corpus.text.flags.writeable
    ends = [0, *(end for _, end in corpus.spans.values())]
    assert [start for start, _ in corpus.spans.values()] == ends[:-1]
    assert ends[-1] == len(corpus.text)


def test_spans_are_the_packages_files() -> None:
    import sympy

    root = Path(sympy.__file__).parent
    corpus = load_corpus()
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


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("1.13.3", r"the code corpus is sympy 1.14.0, found 1.13.3: pip install .*sympy==1.14.0"),
        ("1.14.0", r"source of sympy 1.14.0 has SHA-256 .*, expected f5bddb.*: pip install .*sympy==1.14.0"),
    ],
)
def test_other_bytes_are_refused(
    version: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(tmp_path, version)
    monkeypatch.setattr(corpus_module, "find_distribution", lambda name, why: fake)
    with pytest.raises(DataError, match=message):
        load_corpus.__wrapped__()


def test_lost_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(tmp_path, "1.14.0")
    (tmp_path / "sympy/abc.py").unlink()
    monkeypatch.setattr(corpus_module, "find_distribution", lambda name, why: fake)
    with pytest.raises(DataError, match=r"cannot read the code corpus .*abc\.py.*pip install"):
        load_corpus.__wrapped__()


def test_nothing_of_the_test_part_is_trained_on() -> None:
    made, corpus = task(), load_corpus()
    held_out = np.zeros(len(corpus.text), dtype=bool)
    for package in held_out_packages(0):
        held_out[slice(*corpus.spans[package])] = True
    inside = np.arange(129)
    train = np.concatenate(made.sampler.shards)
    assert not held_out[train[:, None] + inside].any()
    assert held_out[made.test[:, None] + inside].all()
    assert len(set(made.test)) == made.test_size == 256
    assert len(set(train)) == len(train) == made.train_size
    # every held-out package is read, and training leaves no more than the ends of packages unread
    assert all(
        ((made.test >= a) & (made.test < b)).any() for a, b in (corpus.spans[p] for p in held_out_packages(0))
    )
    assert len(train) * 128 > 0.999 * (~held_out).sum() - 128 * len(corpus.spans)


def test_held_out_packages_are_redrawn() -> None:
    drawn = [held_out_packages(seed) for seed in range(40)]
    assert all(len(set(packages)) == 4 for packages in drawn)
    assert len(set(drawn)) > 30
    assert (
        {package for packages in drawn for package in packages} == set(CANDIDATES) <= set(load_corpus().spans)
    )
    share = sum(b - a for a, b in (load_corpus().spans[package] for package in CANDIDATES)) / 26_168_818
    assert 0.15 < share < 0.25


def test_a_batch_is_text_and_what_follows() -> None:
    made = task()
    text, following = made.batch(5)
    assert torch.equal(text[..., 1:], following[..., :-1])
    window = bytes([*text[2, 3].tolist(), int(following[2, 3, -1])])
    assert window in load_corpus().text.tobytes()
    assert text.max() < 256


def test_by_class_is_refused() -> None:
    with pytest.raises(ValueError, match='workload code-gpt has no sharding "by-class": use "iid"'):
        get("code-gpt").task(0, 4, "by-class")


@pytest.mark.parametrize(("size", "millions"), [("0.14m", 0.14), ("0.9m", 0.9), ("3.3m", 3.3), ("20m", 20.1)])
def test_sizes_are_what_they_say(size: str, millions: float) -> None:
    parameters = sum(parameter.numel() for parameter in get("code-gpt", size=size).build().parameters())
    assert parameters / 1e6 == pytest.approx(millions, rel=0.03)


def test_a_model_that_knows_nothing_scores_eight_bits() -> None:
    made = task()
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
