"""The code of a submission: the commit, or the files as they are, kept once and whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slurm import snapshot
from slurm.snapshot import keep_environment, planned, take
from suite.runs.files import StoreError
from tests.support import git

PROVENANCE = "import json; from suite.runs.provenance import git_state; print(json.dumps(git_state()))"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with code, results and something ignored."""
    folder = tmp_path / "checkout"
    for name, text in {
        "suite/runs/a.py": "1\n",
        "suite/b.py": "2\n",
        "results/table.csv": "3\n",
        ".gitignore": "*.log\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    (folder / "suite/x.log").write_text("ignored")
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_clean_checkout_is_kept_as_its_commit(checkout: Path, tmp_path: Path) -> None:
    kept = take(tmp_path / "r", checkout)
    assert kept == planned(tmp_path / "r", checkout)
    assert kept.path == tmp_path / "r" / "code" / git(checkout, "rev-parse", "HEAD")
    assert files(kept.path) == {"suite/runs/a.py", "suite/b.py", ".gitignore", "snapshot.json"}
    assert json.loads((kept.path / "snapshot.json").read_text()) == {"commit": kept.commit, "dirty": False}
    marker = kept.path / "marker"
    marker.touch()
    assert take(tmp_path / "r", checkout) == kept
    assert marker.exists(), "it is made once"


def test_changes_are_part_of_what_is_kept(checkout: Path, tmp_path: Path) -> None:
    clean = take(tmp_path / "r", checkout)
    (checkout / "suite/b.py").write_text("two\n")
    (checkout / "suite/new.py").write_text("new\n")
    (checkout / "suite/runs/a.py").unlink()
    (checkout / "results/table.csv").write_text("results do not count\n")
    kept = take(tmp_path / "r", checkout)
    assert kept.path.name == f"{clean.commit}-{kept.changes}"
    assert files(kept.path) == {"suite/b.py", "suite/new.py", ".gitignore", "snapshot.json", "changes.patch"}
    assert (kept.path / "suite/b.py").read_text() == "two\n"
    assert "+two" in (kept.path / "changes.patch").read_text()
    assert json.loads((kept.path / "snapshot.json").read_text())["dirty"] is True
    (checkout / "suite/new.py").write_text("newer\n")
    assert take(tmp_path / "r", checkout).changes != kept.changes
    assert not [path for path in kept.path.parent.iterdir() if path.name.startswith(".")]


def test_links_are_kept_as_links_wherever_they_lead(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/data.txt").write_text("data\n")
    (checkout / "suite/known").symlink_to("runs")
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "a link to a folder")
    clean = take(tmp_path / "r", checkout)
    assert clean.changes == ""
    assert (clean.path / "suite/known").readlink() == Path("runs")
    (checkout / "suite/outside").symlink_to("../../elsewhere")
    (checkout / "suite/nowhere").symlink_to("gone.py")
    (checkout / "suite/other").mkdir()
    git(checkout / "suite/other", "init", "--quiet")
    (checkout / "suite/other/file.py").write_text("of another repository\n")
    kept = take(tmp_path / "r", checkout)
    assert kept.changes
    assert (kept.path / "suite/outside/data.txt").read_text() == "data\n", "it leads where it led"
    assert (kept.path / "suite/nowhere").readlink() == Path("gone.py")
    assert not (kept.path / "suite/other").exists()
    assert "new file" in (kept.path / "changes.patch").read_text()
    (checkout / "suite/outside").unlink()
    (checkout / "suite/outside").symlink_to("../../another")
    assert take(tmp_path / "r", checkout).changes != kept.changes, "where a link leads counts"


def test_a_link_to_a_folder_is_kept_without_git(tmp_path: Path) -> None:
    (tmp_path / "c/suite/runs").mkdir(parents=True)
    (tmp_path / "c/suite/runs/a.py").write_text("1\n")
    (tmp_path / "c/suite/link").symlink_to("runs")
    kept = take(tmp_path / "r", tmp_path / "c")
    assert (kept.path / "suite/link").readlink() == Path("runs")


def test_results_inside_of_the_checkout_are_no_code(checkout: Path) -> None:
    clean = take(checkout / "out", checkout)
    (checkout / "out/runs").mkdir()
    (checkout / "out/runs/result.json").write_text("{}")
    assert take(checkout / "out", checkout) == clean
    assert clean.changes == ""


def test_without_git_the_packages_are_copied(tmp_path: Path) -> None:
    (tmp_path / "c/suite").mkdir(parents=True)
    (tmp_path / "c/suite/a.py").write_text("1\n")
    kept = take(tmp_path / "r", tmp_path / "c")
    assert kept.commit is None
    assert files(kept.path) == {"suite/a.py", "snapshot.json"}


def test_a_copy_that_cannot_be_made_leaves_nothing(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot.shutil, "copy2", full)
    monkeypatch.setattr(snapshot, "plugins", lambda folder: {})  # others may have registered some
    with pytest.raises(StoreError, match="No space left on device; free some space"):
        take(tmp_path / "r", checkout)
    assert not list((tmp_path / "r" / "code").iterdir())


def test_provenance_in_a_snapshot_is_that_of_the_submission(tmp_path: Path) -> None:
    kept = take(tmp_path / "r")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROVENANCE],
        env={"PYTHONPATH": str(kept.path), "PATH": "/bin:/usr/bin"},
        cwd=snapshot.CHECKOUT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [kept.commit, bool(kept.changes)]


def test_the_environment_is_listed_once(tmp_path: Path) -> None:
    path = keep_environment(tmp_path)
    lines = path.read_text().splitlines()
    assert any(line.startswith("torch==") for line in lines)
    assert lines == sorted(lines)
    assert keep_environment(tmp_path) == path
