"""Publications: whole, never written over, and every change to one is found."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from report.study.snapshot import SnapshotError, freeze_tables, sha256

from bandwise.cli import main
from report.study.publication import PAGE, SUMS, Publication, examine, publish_tables
from suite.runs.store import StoreError
from tests.report.conftest import Built


@pytest.fixture
def root(built: Built, tmp_path: Path) -> Path:
    """The made-up tables alone."""
    shutil.copytree(built.root / "tables", tmp_path / "tables")
    return tmp_path


@pytest.fixture
def published(root: Path) -> Publication:
    """What was published of them."""
    return publish_tables(root, "made-up")


def test_a_publication_is_whole_and_coreutils_agree(root: Path, published: Publication, built: Built) -> None:
    folder = published.folder
    assert folder == root / "published" / "2027-01-15-made-up"
    assert (folder / PAGE).read_text() == built.html
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {PAGE, SUMS, "manifest.json", "study.json", "tables/runs.csv", "figures/tradeoff.svg"} <= files
    listed = {line.split("  ")[1] for line in (folder / SUMS).read_text().splitlines()}
    assert listed == files - {SUMS}
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", SUMS], cwd=folder, check=True)
    assert examine(folder) == published
    assert published.fingerprint == sha256((folder / SUMS).read_text())


def test_it_is_never_written_over(root: Path, published: Publication) -> None:
    before = {path: path.read_bytes() for path in published.folder.rglob("*") if path.is_file()}
    with pytest.raises(SnapshotError, match="what is published stays"):
        publish_tables(root, "made-up")
    assert {path: path.read_bytes() for path in published.folder.rglob("*") if path.is_file()} == before
    other = publish_tables(root, "made-up", name="again")
    assert other.folder.name == "2027-01-15-again"
    assert other.fingerprint == published.fingerprint
    assert sorted(path.name for path in other.folder.parent.iterdir()) == [
        "2027-01-15-again",
        "2027-01-15-made-up",
    ]


def test_what_cannot_be_finished_is_not_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="no space left"):
        publish_tables(root, "made-up")
    assert list((root / "published").iterdir()) == []


def test_every_change_is_found(published: Publication) -> None:
    folder = published.folder
    (folder / PAGE).write_text("better numbers")
    (folder / "study.json").unlink()
    (folder / "more.txt").write_text("more")
    wrong = ["study.json is missing", "more.txt is not in the manifest", f"{PAGE} has changed"]
    assert list(examine(folder).wrong) == [*wrong, f"more.txt is not in {SUMS}"]


def test_a_manifest_that_was_made_to_fit_is_found(published: Publication) -> None:
    path = published.folder / "manifest.json"
    manifest = json.loads(path.read_text())
    (published.folder / PAGE).write_text("better numbers")
    manifest["files"][PAGE] = sha256("better numbers")
    path.write_text(json.dumps(manifest))
    assert examine(published.folder).wrong == ("manifest.json has changed", f"{PAGE} has changed")


def test_the_verb(root: Path, published: Publication, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["publish", "--verify", str(published.folder)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"fingerprint: {published.fingerprint}"
    (published.folder / PAGE).write_text("")
    assert main(["publish", "--verify", str(published.folder), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["wrong"] == [f"{PAGE} has changed"]
    assert main(["publish", "--verify", str(freeze_tables(root, "made-up"))]) == 0
    assert "as published" in capsys.readouterr().out
    assert main(["publish"]) == 2
    assert main(["publish", "--verify", str(root)]) == 3
    assert "it is not a snapshot" in capsys.readouterr().err
