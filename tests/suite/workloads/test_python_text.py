"""`python-gpt`: its text, who reads what of it, and the tables that a model has to beat."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from suite import DATA
from suite.runs.plan import COPIES, elements, groups
from suite.workloads import base, get, python_text
from suite.workloads.base import BatchedGradients, DataError
from suite.workloads.python_text import (
    GENERATED,
    HELD_OUT,
    PACKAGES,
    PACKED,
    load_text,
    main,
    ngram_bits,
)
from tests.suite.runs.project import one_spec


def test_packages_are_those_that_are_pinned() -> None:
    pinned = Path(__file__).parents[3].joinpath("requirements.txt").read_text().split()
    assert {f"{name}=={version}" for name, version in PACKAGES.items()} <= set(pinned)


def installed(root: Path, files: dict[str, bytes]) -> Distribution:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    info = root / "made_up-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    return Distribution.at(info)


FILES = {
    "made/b/two.py": b"2 = 2\n", "made/b/deep/er.py": b"3\n", "made/a/one.py": b"1\n", "made/top.py": b"0\n",
    "made/a/data.txt": b"no Python", "made/a/version.py": b"written by a build",
}  # fmt: skip
TEXT = b"1\n3\n2 = 2\n0\n"
SIZES = [["made/a", 2], ["made/b", 8], ["made", 2]]


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Distribution:
    """A package in the place of the seven."""
    own = installed(tmp_path / "site", FILES)
    monkeypatch.setattr(python_text, "PACKAGES", {"made-up": "1.0"})
    monkeypatch.setattr(base, "find_distribution", lambda name, why: own)
    digest = hashlib.sha256(json.dumps(SIZES).encode() + TEXT).hexdigest()
    monkeypatch.setattr(python_text, "_SHA256", digest)
    return own


def test_the_text_is_the_same_from_packages_and_packed(
    made_up: Distribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = load_text.__wrapped__()
    assert bytes(found.text) == TEXT
    assert found.spans == {"made/a": (0, 2), "made/b": (2, 10), "made": (10, 12)}
    main([str(tmp_path / PACKED)])
    monkeypatch.setenv(DATA, str(tmp_path))
    monkeypatch.setattr(python_text, "PACKAGES", {"made-up": "2.0"})  # what is installed is not looked at
    packed = load_text.__wrapped__()
    assert (bytes(packed.text), packed.spans) == (TEXT, found.spans)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("version", "trains on the source of made-up 2.0, found 1.0"),
        ("lost", r"cannot read the source of made-up .*one\.py"),
        ("bytes", "has SHA-256 .*, expected"),
        ("packed", f"{PACKED} cannot be read"),
    ],
)
def test_other_bytes_are_refused_with_what_helps(
    what: str, message: str, made_up: Distribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "version":
        monkeypatch.setattr(python_text, "PACKAGES", {"made-up": "2.0"})
    elif what == "lost":
        (tmp_path / "site/made/a/one.py").unlink()
    elif what == "bytes":
        (tmp_path / "site/made/a/one.py").write_bytes(b"x\n")
    else:
        monkeypatch.setenv(DATA, str(tmp_path))
        (tmp_path / PACKED).write_bytes(b"no xz")
    with pytest.raises(DataError, match=f"{message}.*pip install -r requirements.txt"):
        load_text.__wrapped__()


def made(seed: int = 0, **options: Any) -> Any:
    return get("python-gpt", **options).task(seed, 4)


def test_nothing_that_judges_is_trained_on() -> None:
    text, task = load_text(), made()
    held_out = np.zeros(len(text.text), dtype=bool)
    for name in HELD_OUT:
        held_out[slice(*text.spans[name])] = True
    trained = np.concatenate(task.sampler.shards)
    assert not held_out[trained].any()
    assert not held_out[trained + 256].any()
    assert held_out[task.test].all()
    assert held_out[task.test + 256].all()
    assert len(set(trained.tolist())) == len(trained) == task.train_size
    assert len(set(task.test.tolist())) == task.test_size
    assert 0.05 < held_out.mean() < 0.1
    assert not any(name.endswith(GENERATED) for name in text.spans)


def test_two_seeds_share_what_their_bytes_a_parameter_let_expect() -> None:
    steps, tasks = math.ceil(20 * 492_160 / 8192), [made(seed) for seed in (0, 1)]
    read = [np.concatenate([task.sampler.indices(step).ravel() for step in range(steps)]) for task in tasks]
    assert len(np.unique(read[0])) == len(read[0]) == steps * 4 * 8, "no window comes twice"
    share = len(np.intersect1d(*read)) / len(read[0])
    assert share == pytest.approx(len(read[0]) / tasks[0].train_size, rel=0.1)


@pytest.mark.parametrize("name", ["python-gpt", "code-gpt"])
def test_no_byte_sees_a_later_one_in_rows_as_alone(name: str) -> None:
    module = get(name).build()
    values = get(name).draw(module, 0)
    text = get(name).task(0, 4).batch(0)[0][:, :2]
    changed = text.clone()
    changed[..., 100] = (changed[..., 100] + 1) % 256
    rows = {name: torch.stack([value] * 4) for name, value in values.items()}
    for params, before, after in ((values, text[0], changed[0]), (rows, text, changed)):
        found, other = (torch.func.functional_call(module, params, (given,)) for given in (before, after))
        assert torch.equal(found[..., :100, :], other[..., :100, :])
        assert not torch.equal(found[..., 100, :], other[..., 100, :])


def test_products_are_in_float32_where_the_name_says_so() -> None:
    """Against the gradient of the model itself, a row alone, from which bfloat16 is farther."""
    off = {}
    for name in ("python-gpt", "python-gpt-fp32"):
        task = get(name, size="0.15m").task(0, 1, batch_size=1)
        batch, module = task.batch(0), task.workload.module(0)
        module(*(part[0] for part in batch)).backward()
        params = {key: value.unsqueeze(0) for key, value in task.initial().items()}
        found, _ = BatchedGradients(task)(params, batch)
        wanted = {key: parameter.grad for key, parameter in module.named_parameters()}
        off[name] = max(float((found[key][0] - grad).norm() / grad.norm()) for key, grad in wanted.items())
    assert off["python-gpt-fp32"] < 1e-5
    assert off["python-gpt"] > 1e-3


def test_a_simulated_run_is_a_group_of_its_own_but_on_gpus() -> None:
    specs = [one_spec(workload="python-gpt", seed=seed) for seed in range(6)]
    assert [len(group) for group in groups(specs)] == [1] * 6
    assert [len(group) for group in groups(specs, on_gpus=True)] == [6]


def test_groups_on_gpus_are_of_one_size_and_all_slots_have_as_many() -> None:
    specs = [one_spec(workload="python-gpt", seed=seed) for seed in range(60)]
    of_a_run = elements(specs[0].workload) * 4 * COPIES * specs[0].world_size
    for slots, most, sizes in (
        (1, 100, [60]),
        (2, 100, [30, 30]),
        (2, 18, [15] * 4),
        (8, 100, [8] * 7 + [4]),
    ):
        found = groups(specs, slots, most * of_a_run, on_gpus=True)
        assert [len(group) for group in found] == sizes


def test_a_table_of_more_text_knows_more() -> None:
    task = get("python-gpt", size="0.5m").task(0, 4, batch_size=8)
    little, much = task.table_loss(4), task.table_loss(64)
    assert little is not None
    assert much is not None
    assert 2.5 < much < little < 8


def by_the_formula(texts: list[bytes], judged: bytes) -> float:
    """Witten-Bell by dictionaries, byte by byte."""
    counts = [Counter(text[i : i + n + 1] for text in texts for i in range(len(text) - n)) for n in range(3)]

    def share(history: bytes, byte: int) -> float:
        lower = share(history[1:], byte) if history else 1 / 256
        seen = [count for gram, count in counts[len(history)].items() if gram[:-1] == history]
        if not seen:
            return lower
        own = counts[len(history)][history + bytes([byte])]
        return (own + len(seen) * lower) / (sum(seen) + len(seen))

    bits = [-math.log2(share(judged[max(0, i - 2) : i], judged[i])) for i in range(len(judged))]
    return sum(bits) / len(bits)


def test_a_table_of_trigrams_is_that_of_the_formula() -> None:
    """No n-gram reaches from one text into the next."""
    texts, judged = [b"def f(x): return f(x) + x", b"(y)"], b"def g(y): return x(y)g(x)"
    found = ngram_bits(
        [np.frombuffer(text, np.uint8) for text in texts], [np.frombuffer(judged, np.uint8)], 3
    )
    assert found == pytest.approx(by_the_formula(texts, judged), rel=1e-12)
