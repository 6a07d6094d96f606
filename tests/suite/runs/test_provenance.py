"""What is recorded of the environment, and how code differs from its commit: kept once, and makes the same code again."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from suite.runs import provenance
from suite.runs.files import RefusedError
from suite.runs.provenance import (
    CHANGES_LIMIT_BYTES,
    apply_changes,
    changes_in_result,
    changes_of,
    changes_path,
    code_known,
    cpu_model,
    cpu_signature,
    environment_hash,
    installed,
    keep_changes,
    kept_changes,
    same_machine,
    worktree,
)
from suite.runs.store import Store
from suite.training.execute import execute
from tests.suite.runs.project import one_spec
from tests.support import git


def gathered_anew() -> dict[str, Any]:
    """What a process records that has not recorded anything yet."""
    provenance.current_changes.cache_clear()
    found = provenance._constant.__wrapped__()
    provenance.current_changes.cache_clear()
    return found


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
    git = provenance._git

    def failing(checkout: Path, *arguments: str) -> bytes:
        if arguments[0] == command:
            raise subprocess.CalledProcessError(128, "git")
        return git(checkout, *arguments)

    monkeypatch.setattr(provenance, "_git", failing)
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


@pytest.mark.parametrize(
    ("text", "name", "signature"),
    [
        (
            "cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nstepping\t: 1\n\nprocessor\t: 1\nmodel\t: 3\n",
            "AMD EPYC",
            "26-2-1",
        ),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", "aarch64", ""),
        (None, "aarch64", ""),
    ],
)
def test_a_processor_tells_its_generation_besides_its_name(
    text: str | None, name: str, signature: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suite.runs.provenance.CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert (cpu_model(), cpu_signature()) == (name, signature)


def test_seconds_of_two_generations_of_one_name_are_not_of_one_machine() -> None:
    untold = {"cpu": "AMD EPYC", "cores": 2, "torch": "2.13.0", "commit": "any"}
    turin, genoa = ({**untold, "cpu_signature": told, "commit": "other"} for told in ("26-2-1", "25-17-1"))
    assert same_machine(untold, turin)
    assert same_machine(turin, turin)
    assert not same_machine(turin, genoa)
    assert not same_machine(turin, untold, genoa), "one that does not tell joins no two that differ"
    for name, value in (("cpu", "Xeon"), ("cores", 4), ("torch", "2.14.0")):
        assert not same_machine(untold, {**untold, name: value})


# ---- how code differs from its commit, kept once by its hash ------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with code, a picture, results and notes."""
    folder = tmp_path / "checkout"
    for name, content in {
        "suite/a.py": b"one\n",
        "suite/gone.py": b"gone\n",
        "suite/picture.bin": bytes(range(256)),
        "results/table.csv": b"3\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def change(checkout: Path) -> None:
    """Everything that a checkout can differ in."""
    (checkout / "suite/a.py").write_text("two <b>\n")
    (checkout / "suite/picture.bin").write_bytes(bytes(reversed(range(256))))
    (checkout / "suite/gone.py").unlink()
    (checkout / "suite/new one.py").write_text("new\n")
    (checkout / "results/table.csv").write_text("4\n")
    (checkout / "diary.txt").write_text("private")


def test_a_clean_checkout_has_no_changes(checkout: Path, tmp_path: Path) -> None:
    (checkout / "results/table.csv").write_text("4\n")
    (checkout / "diary.txt").write_text("private")
    assert changes_of(checkout) == b""
    assert changes_in_result(b"") is None
    assert keep_changes(tmp_path / "r", b"") is None
    assert not (tmp_path / "r").exists()


def test_only_code_and_no_path_of_the_machine_is_recorded(checkout: Path, tmp_path: Path) -> None:
    change(checkout)
    text = changes_of(checkout).decode()
    assert str(tmp_path) not in text
    assert "diary" not in text
    assert "table.csv" not in text
    hashed = hashlib.sha256(b"new\n").hexdigest()
    assert text.splitlines()[:2] == [
        f"changes to {git(checkout, 'rev-parse', 'HEAD')}",
        f"new file {hashed} suite/new one.py",
    ]


def test_the_changes_make_the_same_code_again(checkout: Path, tmp_path: Path) -> None:
    change(checkout)
    found = changes_of(checkout)
    path = keep_changes(tmp_path / "r", found)
    about = changes_in_result(found)
    assert path is not None
    assert about == {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": len(found)}
    text = kept_changes(tmp_path / "r", about["sha256"])
    with worktree("HEAD", checkout) as folder:
        said = apply_changes(text, folder, checkout)
        assert (folder / "suite/a.py").read_text() == "two <b>\n"
        assert not (folder / "suite/gone.py").exists()
        assert changes_of(folder) == found, "so its runs have the same hash on record"
    assert said == [
        "the changes on record were made in the code: 3 files",
        "suite/new one.py, a new file, was taken from this checkout",
    ]


def test_a_new_file_that_is_no_longer_there_is_named(checkout: Path) -> None:
    (checkout / "suite/new.py").write_text("new\n")
    text = changes_of(checkout).decode()
    (checkout / "suite/new.py").write_text("newer\n")
    with worktree("HEAD", checkout) as folder:
        assert apply_changes(text, folder, checkout) == [
            "suite/new.py was a new file, and is another one here"
        ]
        (checkout / "suite/new.py").unlink()
        assert apply_changes(text, folder, checkout) == ["suite/new.py was a new file, and is not here"]


@pytest.mark.parametrize(
    "name", ["../outside.py", "suite/../../outside.py", "elsewhere/x.py", "/etc/hostname"]
)
def test_a_path_that_leads_out_is_not_followed(name: str, checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.py").write_text("secret\n")
    text = f"changes to 0\nnew file {hashlib.sha256(b'secret' + bytes([10])).hexdigest()} {name}\n"
    target = tmp_path / "target" / "inside"
    target.mkdir(parents=True)
    assert apply_changes(text, target, checkout) == [f"{name} was a new file, and is not here"]
    assert not list((tmp_path / "target").rglob("*.py"))


def test_a_patch_that_leads_out_is_refused(checkout: Path, tmp_path: Path) -> None:
    text = "changes to 0\ndiff --git a/../x.py b/../x.py\nnew file mode 100644\n--- /dev/null\n+++ b/../x.py\n@@ -0,0 +1 @@\n+1\n"
    with worktree("HEAD", checkout) as folder, pytest.raises(ValueError, match="invalid path"):
        apply_changes(text, folder, checkout)


def test_what_is_large_or_no_text_is_on_record_by_its_hash_alone(checkout: Path, tmp_path: Path) -> None:
    (checkout / "suite/a.py").write_text("x\n" * CHANGES_LIMIT_BYTES)
    large = changes_of(checkout)
    assert changes_in_result(large)["bytes"] > CHANGES_LIMIT_BYTES
    assert keep_changes(tmp_path / "r", large) is None
    (checkout / "suite/a.py").write_bytes(b"caf\xe9\n")
    assert keep_changes(tmp_path / "r", changes_of(checkout)) is None
    assert kept_changes(tmp_path / "r", changes_in_result(large)["sha256"]) is None


def test_changes_that_were_changed_are_refused(checkout: Path, tmp_path: Path) -> None:
    change(checkout)
    path = keep_changes(tmp_path, changes_of(checkout))
    path.write_text(path.read_text() + "+import os\n")
    with pytest.raises(RefusedError, match="not what its name says"):
        kept_changes(tmp_path, path.stem)


def test_a_run_refers_to_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    found = b"changes to 0\nnew file " + b"0" * 64 + b" suite/x.py\n"
    monkeypatch.setattr(provenance, "current_changes", lambda: found)
    monkeypatch.setattr(
        "suite.runs.store.provenance", lambda: {**PROVENANCE, "changes": changes_in_result(found)}
    )
    store, spec = Store(tmp_path / "there"), one_spec("allreduce-sgd", {}, steps=4)
    list(execute([spec], store))
    about = store.result(spec.run_id)["provenance"]["changes"]
    assert kept_changes(store.root, about["sha256"]).encode() == found
    assert (
        json.loads((store.folder(spec.run_id) / "result.json").read_text())["provenance"]["changes"] == about
    )
    assert changes_path(store.root, about["sha256"]).name == f"{about['sha256']}.diff"


PROVENANCE = {
    "commit": None, "dirty": True, "environment_hash": "0" * 16, "python": "3", "torch": "2", "system": "Linux",
    "cpu": "c", "cores": 1, "threads": 1,
}  # fmt: skip
