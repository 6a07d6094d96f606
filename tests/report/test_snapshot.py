"""Snapshots: complete, checkable, and never overwritten by something else."""

from __future__ import annotations

import json
import shutil

import pytest
from report.study.snapshot import SnapshotError, freeze_tables, verify

from suite.analysis.columns import SUMMARY
from suite.analysis.tables import read_table, table_path


@pytest.fixture
def root(built, tmp_path):
    shutil.copytree(built.root / "tables", tmp_path / "tables")
    return tmp_path


def test_a_snapshot_holds_tables_figures_and_a_manifest(root):
    folder = freeze_tables(root, "made-up")
    assert folder == root / "snapshots" / "2027-01-15-made-up"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert sorted(manifest["files"]) == [
        "figures/seeds-digits-mlp-by-class-n4.svg",
        "figures/seeds-digits-mlp-iid-n4.svg",
        "figures/tradeoff.svg",
        "study.json",
        *(
            f"tables/{name}.csv"
            for name in (
                "curves",
                "micro",
                "profiles",
                "runs",
                "sensitivity",
                "summary",
                "to-target",
                "tuning",
            )
        ),
    ]
    assert manifest["command"] == "bandwise sweep made-up"
    assert manifest["commit"] == ["0123456789abcdef0123456789abcdef01234567"]
    assert manifest["environment_hash"] == ["feedfacecafebeef"]
    assert manifest["statuses"] == {"diverged": 7, "done": 208, "error": 1}
    assert verify(folder) == []
    frozen = read_table(folder / "tables" / "summary.csv", SUMMARY)
    assert frozen == read_table(table_path(root, SUMMARY, "made-up"), SUMMARY)


def test_again_is_fine_and_other_results_are_refused(root, tmp_path):
    folder = freeze_tables(root, "made-up", tmp_path / "elsewhere")
    assert folder == tmp_path / "elsewhere" / "2027-01-15-made-up"
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert freeze_tables(root, "made-up", tmp_path / "elsewhere") == folder
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    path = table_path(root, SUMMARY, "made-up")
    path.write_text(path.read_text().replace("undecided", "yes", 1))
    with pytest.raises(SnapshotError, match="snapshots are frozen"):
        freeze_tables(root, "made-up", tmp_path / "elsewhere")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_changes_are_noticed(root):
    folder = freeze_tables(root, "made-up")
    (folder / "tables" / "runs.csv").write_text("nothing")
    (folder / "figures" / "tradeoff.svg").unlink()
    (folder / "more.txt").write_text("more")
    assert verify(folder) == [
        "figures/tradeoff.svg is missing",
        "more.txt is not in the manifest",
        "tables/runs.csv has changed",
    ]
    (folder / "manifest.json").unlink()
    with pytest.raises(SnapshotError, match="not a snapshot"):
        verify(folder)


def test_nothing_finished_is_nothing_to_freeze(root):
    facts = root / "tables" / "made-up-study.json"
    facts.write_text(
        facts.read_text().replace('"last_finished": "2027-01-15 08:00 UTC"', '"last_finished": null')
    )
    with pytest.raises(SnapshotError, match="no finished run"):
        freeze_tables(root, "made-up")
