"""What is recorded of the environment, and of how code differs from its commit."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from suite.runs import spec as runs_spec
from suite.runs.spec import changes_of, code_known, environment_hash, installed, same_machine
from suite.runs.store import Store
from suite.training.execute import execute
from tests.suite.runs.project import one_spec
from tests.support import committed, git


def gathered_anew() -> dict[str, Any]:
    """What a process records that has not recorded anything yet."""
    return runs_spec._constant.__wrapped__()


def test_a_checkout_that_git_refuses_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_known(gathered_anew()), "the tests run in a checkout"
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    found = gathered_anew()
    assert (found["commit"], found["dirty"], found.get("changes")) == (None, None, None)
    assert not code_known(found)


@pytest.mark.parametrize("command", ["rev-parse", "status", "diff", "ls-files"])
def test_no_call_of_git_that_fails_means_no_changes(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    git = runs_spec.git

    def failing(checkout: Path, *arguments: str) -> bytes:
        if arguments[0] == command:
            raise subprocess.CalledProcessError(128, "git")
        return git(checkout, *arguments)

    monkeypatch.setattr(runs_spec, "git", failing)
    found = gathered_anew()
    assert found["dirty"] is None
    assert not code_known(found)


def test_code_inside_of_another_checkout_is_not_of_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: path.name != ".git" and exists(path))
    assert not code_known(gathered_anew())


def test_a_longer_search_path_is_not_another_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = environment_hash()
    folder = tmp_path / "vendored-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: vendored\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert environment_hash() == before
    assert not any(line.startswith("vendored==") for line in installed())


def test_seconds_of_two_generations_of_one_name_are_not_of_one_machine() -> None:
    untold = {"cpu": "AMD EPYC", "cores": 2, "torch": "2.13.0", "commit": "any"}
    turin, genoa = ({**untold, "cpu_signature": told, "commit": "other"} for told in ("26-2-1", "25-17-1"))
    assert same_machine(untold, turin)
    assert same_machine(turin, turin)
    assert not same_machine(turin, genoa)
    assert not same_machine(turin, untold, genoa), "one that does not tell joins no two that differ"
    for name, value in (("cpu", "Xeon"), ("cores", 4), ("torch", "2.14.0")):
        assert not same_machine(untold, {**untold, name: value})


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with code, results and notes."""
    files = {"suite/a.py": "one\n", "suite/gone.py": "gone\n", "results/table.csv": "3\n"}
    return committed(tmp_path / "checkout", files)


def test_all_of_the_code_and_nothing_else_is_in_the_hash_of_changes(checkout: Path) -> None:
    (checkout / "results/table.csv").write_text("4\n")
    (checkout / "diary.txt").write_text("private")
    assert changes_of(checkout) is None
    seen = set()
    for name, text in (("suite/a.py", "two\n"), ("suite/new.py", "new\n"), ("suite/new.py", "newer\n")):
        (checkout / name).write_text(text)
        seen.add(changes_of(checkout)["sha256"])
    (checkout / "suite/gone.py").unlink()
    assert len({*seen, changes_of(checkout)["sha256"]}) == 4
    git(checkout, "commit", "--all", "--quiet", "--message", "second")
    assert changes_of(checkout)["sha256"] not in seen, "the commit is part of it"


def test_a_run_has_the_hash_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"commit": "0" * 40, "dirty": True, "changes": {"sha256": "ab" * 32, "bytes": 9}}
    monkeypatch.setattr(runs_spec, "code_state", lambda: state)
    monkeypatch.setattr(runs_spec, "_constant", runs_spec._constant.__wrapped__)
    store, spec = Store(tmp_path), one_spec("allreduce-sgd", {}, steps=4)
    list(execute([spec], store))
    assert store.result(spec.run_id)["provenance"].items() >= state.items()
