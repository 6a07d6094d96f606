"""What follows from the code is worked out once, and anew where the code, the question or the file is another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from suite.runs import disk_cache as answers
from suite.runs.disk_cache import KEPT_CODES, answered, folder
from suite.runs.grouping import elements
from suite.runs.resolve import resolve_algorithm
from suite.workloads import get
from tests.suite.runs.project import one_spec


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BANDWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_question_is_worked_out_once() -> None:
    said = iter(["first", "second", "third"])
    assert answered(["q", 1], lambda: next(said)) == "first"
    assert answered(["q", 1], lambda: next(said)) == "first"
    assert answered(["q", 1.0], lambda: next(said)) == "second", "an option of 1.0 is another than 1"
    (path,) = [p for p in folder().iterdir() if "first" in p.read_text()]
    path.write_text('"fir')
    assert answered(["q", 1], lambda: next(said)) == "third"


def test_other_code_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(["q"], lambda: 1) == 1
    monkeypatch.setattr(answers, "_code", lambda: "other")
    assert answered(["q"], lambda: 2) == 2


def test_only_the_latest_states_of_the_code_are_kept(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(KEPT_CODES + 2):
        monkeypatch.setattr(answers, "_code", lambda n=number: f"code-{n:02d}")
        assert answered(["q"], lambda n=number: n) == number
        os.utime(folder(), (number, number))
    assert sorted(path.name for path in own_folder.iterdir()) == [
        f"code-{number:02d}" for number in range(2, KEPT_CODES + 2)
    ]


def test_a_folder_that_cannot_be_written_is_no_error(own_folder: Path) -> None:
    own_folder.write_text("a file is in the way")
    assert answered(["q"], lambda: 1) == 1
    assert answered(["q"], lambda: 2) == 2


def test_a_kept_answer_is_the_one_that_was_worked_out() -> None:
    first, second = (resolve_algorithm("allreduce-sgd", {"momentum": 0.5}, 4, 10, 2) for _ in range(2))
    assert any(folder().iterdir())
    assert first == second
    assert {type(v) for v in first.options.values()} == {type(v) for v in second.options.values()}
    spec = one_spec()
    model = get(spec.workload.name, **spec.workload.options).build()
    assert elements(spec) == elements(spec) == sum(p.numel() for p in model.parameters())
