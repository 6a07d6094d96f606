"""What follows from the code is worked out once, and anew where the code, the question or the file is another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from suite.runs import files
from suite.runs.files import KEPT_CODES, cache_folder, disk_cached
from suite.runs.plan import elements
from suite.runs.spec import resolve_algorithm
from suite.workloads import get
from tests.suite.runs.project import one_spec


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BANDWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_question_is_worked_out_once() -> None:
    said = iter(["first", "second", "third"])
    assert disk_cached(["q", 1], lambda: next(said)) == "first"
    assert disk_cached(["q", 1], lambda: next(said)) == "first"
    assert disk_cached(["q", 1.0], lambda: next(said)) == "second", "an option of 1.0 is another than 1"
    (path,) = [p for p in cache_folder().iterdir() if "first" in p.read_text()]
    path.write_text('"fir')
    assert disk_cached(["q", 1], lambda: next(said)) == "third"


def test_other_code_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert disk_cached(["q"], lambda: 1) == 1
    monkeypatch.setattr(files, "_code_hash", lambda: "other")
    assert disk_cached(["q"], lambda: 2) == 2


def test_only_the_latest_states_of_the_code_are_kept(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(KEPT_CODES + 2):
        monkeypatch.setattr(files, "_code_hash", lambda n=number: f"code-{n:02d}")
        assert disk_cached(["q"], lambda n=number: n) == number
        os.utime(cache_folder(), (number, number))
    assert sorted(path.name for path in own_folder.iterdir()) == [
        f"code-{number:02d}" for number in range(2, KEPT_CODES + 2)
    ]


def test_a_folder_that_cannot_be_written_is_no_error(own_folder: Path) -> None:
    own_folder.write_text("a file is in the way")
    assert disk_cached(["q"], lambda: 1) == 1
    assert disk_cached(["q"], lambda: 2) == 2


def test_a_kept_answer_is_the_one_that_was_worked_out() -> None:
    first, second = (resolve_algorithm("allreduce-sgd", {"momentum": 0.5}, 4, 10, 2) for _ in range(2))
    assert any(cache_folder().iterdir())
    assert first == second
    assert {type(v) for v in first.options.values()} == {type(v) for v in second.options.values()}
    spec = one_spec()
    model = get(spec.workload.name, **spec.workload.options).build()
    assert elements(spec) == elements(spec) == sum(p.numel() for p in model.parameters())
