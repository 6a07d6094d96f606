"""What lies in a results folder and is not read is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from suite.analysis.published import refused_rows
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
    os.makedirs(os.fsencode(root) + b"/runs/zz/caf\xe9")  # no text: named all the same
    rows = sorted(refused_rows(root), key=lambda row: (row["kind"], row["name"], row["record"]))
    assert [(r["kind"], r["name"], r["record"]) for r in rows] == [
        ("run", "runs/aa/aa00000000000000", ""),
        ("run", "runs/zz/caf?", ""),
        ("run", "runs/zz/notes", ""),
        ("session", "quick", "20270101T000000Z-00000000"),
        ("session", "quick", "20270101T000001Z-00000000"),
    ]
    assert "is damaged" in rows[0]["reason"]
    assert "says no schema_version that ever was" in rows[4]["reason"]
    assert str(root) not in str(rows)
