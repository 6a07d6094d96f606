"""The code of a submission: the packages as they are, kept once and whole, with their commit and changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slurm import submit as code
from slurm.submit import SnapshotError, code_folder
from suite.runs.files import StoreError
from suite.runs.spec import changes_of
from tests.support import Patch, committed, git

PROVENANCE = """
import json
from suite.runs.spec import code_state
print(json.dumps(code_state()))
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with code, results and something ignored."""
    files = {
        "suite/runs/a.py": "1\n",
        "suite/b.py": "2\n",
        "results/table.csv": "3\n",
        ".gitignore": "*.log\n",
    }
    folder = committed(tmp_path / "checkout", files)
    (folder / "suite/x.log").write_text("ignored")
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_clean_checkout_is_kept_once_as_its_commit(checkout: Path, tmp_path: Path) -> None:
    planned = code_folder(tmp_path / "r", checkout, dry_run=True)
    assert not (tmp_path / "r").exists()
    kept = code_folder(tmp_path / "r", checkout)
    commit = git(checkout, "rev-parse", "HEAD")
    assert kept == planned == tmp_path / "r" / "code" / commit
    assert files(kept) == {"suite/runs/a.py", "suite/b.py", "snapshot.json"}
    assert json.loads((kept / "snapshot.json").read_text()) == {"commit": commit, "dirty": False}
    (kept / "marker").touch()
    assert code_folder(tmp_path / "r", checkout) == kept
    assert (kept / "marker").exists()


def test_changes_are_part_of_what_is_kept(checkout: Path, tmp_path: Path) -> None:
    clean = code_folder(tmp_path / "r", checkout)
    (checkout / "suite/b.py").write_text("two\n")
    (checkout / "suite/new.py").write_text("new\n")
    (checkout / "suite/runs/a.py").unlink()
    (checkout / "results/table.csv").write_text("results do not count\n")
    kept = code_folder(tmp_path / "r", checkout)
    assert kept.name.startswith(f"{clean.name}-")
    assert files(kept) == {"suite/b.py", "suite/new.py", "snapshot.json"}
    assert (kept / "suite/b.py").read_text() == "two\n"
    noted = json.loads((kept / "snapshot.json").read_text())
    assert (noted["dirty"], noted["changes"]) == (True, changes_of(checkout))
    (checkout / "suite/new.py").write_text("newer\n")
    assert code_folder(tmp_path / "r", checkout) != kept


def test_what_is_no_git_clone_is_refused_inside_of_one_too(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="submit from a git clone"):
        code_folder(tmp_path / "r", tmp_path)
    with pytest.raises(SnapshotError, match=r"submit from a git clone, .*suite is none"):
        code_folder(tmp_path / "r", checkout / "suite")


def test_a_copy_that_fails_leaves_nothing(checkout: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(code.shutil, "copy2", full)
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        code_folder(tmp_path / "r", checkout)
    assert not list((tmp_path / "r" / "code").iterdir())


def test_provenance_in_a_copy_is_that_of_the_submission(tmp_path: Path) -> None:
    kept = code_folder(tmp_path / "r")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROVENANCE],
        env={"PYTHONPATH": str(kept), "PATH": "/bin:/usr/bin"},
        cwd=code.CHECKOUT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    changes, commit = changes_of(code.CHECKOUT), git(code.CHECKOUT, "rev-parse", "HEAD")
    assert json.loads(done.stdout) == {"commit": commit, "dirty": bool(changes)} | (
        {"changes": changes} if changes else {}
    )
