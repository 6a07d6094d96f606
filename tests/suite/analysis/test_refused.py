"""What lies in a results folder and is not read is a table, and stands on the pages beside what it belongs to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bandwise.cli import main
from suite.analysis.columns import REFUSED
from suite.analysis.published import load_refused, refused_rows, write_refused
from suite.analysis.tables import table_path
from suite.runs.store import Store
from tests.suite.runs.project import one_spec

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A good run, a damaged spec, a folder that is no run's, a damaged and a foreign record of a session."""
    store = Store(tmp_path)
    store.put_spec(one_spec("allreduce-sgd", {}, steps=4))
    damaged = tmp_path / "runs" / "aa" / "aa00000000000000"
    damaged.mkdir(parents=True)
    (damaged / "spec.json").write_text("{")
    (tmp_path / "runs" / "zz" / "notes").mkdir(parents=True)
    for number, text in enumerate(["{", json.dumps({"schema_version": HOSTILE})]):
        record = tmp_path / "sessions" / "quick" / f"20270101T00000{number}Z-00000000"
        record.mkdir(parents=True)
        (record / "session.json").write_text(text)
    return tmp_path


def test_each_is_named_with_its_reason_and_no_path_of_the_machine(root: Path) -> None:
    write_refused(root)
    rows = load_refused(root)
    assert [(r["kind"], r["name"], r["record"]) for r in rows] == [
        ("run", "runs/aa/aa00000000000000", None),
        ("run", "runs/zz/notes", None),
        ("session", "quick", "20270101T000000Z-00000000"),
        ("session", "quick", "20270101T000001Z-00000000"),
    ]
    assert "is damaged" in str(rows[0]["reason"])
    assert "says no schema_version that ever was" in str(rows[3]["reason"])
    assert str(root) not in table_path(root, REFUSED).read_text()


def test_there_is_no_table_where_nothing_was_refused_and_it_empties_with_the_cause(
    root: Path, tmp_path: Path
) -> None:
    write_refused(root)
    (root / "runs" / "aa" / "aa00000000000000" / "spec.json").unlink()
    assert len(refused_rows(root)) == 3
    write_refused(root)
    assert len(load_refused(root)) == 3
    clean = tmp_path / "clean"
    write_refused(clean)
    assert not table_path(clean, REFUSED).exists()
    assert load_refused(clean) == []


def test_a_folder_whose_name_is_no_text_is_named_all_the_same(root: Path) -> None:
    os.makedirs(os.fsencode(root) + b"/runs/zz/caf\xe9")
    write_refused(root)
    assert "runs/zz/caf?" in {row["name"] for row in load_refused(root)}


def test_status_names_what_it_cannot_read(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--results", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"] == 1
    assert [line.partition(" ")[0].removeprefix(f"{root}/") for line in found["refused"]] == [
        "runs/aa/aa00000000000000/spec.json",
        "runs/zz/notes",
    ]
    assert main(["status", "--results", str(root)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("not read: ") == 2
