"""Records of sessions: what was written before is read, and what is not read says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from suite.timing import store

FROZEN = Path(__file__).parent / "frozen" / "done.json"


def frozen() -> dict[str, Any]:
    return dict(json.loads(FROZEN.read_text(encoding="utf-8")))


def test_what_was_written_before_is_read(tmp_path: Path) -> None:
    record = frozen()
    store.put(tmp_path, record)
    assert store.records(tmp_path, record["name"]) == [record]


def test_a_newer_record_is_not_touched_and_says_what_to_do(tmp_path: Path) -> None:
    newer = {**frozen(), "schema_version": store.SESSION_VERSION + 1}
    path = store.put(tmp_path, newer)
    (error,) = store.refused(tmp_path)
    assert store.records(tmp_path, newer["name"]) == []
    assert error.reason == (
        f"session.json has schema_version {store.SESSION_VERSION + 1}, this code reads {store.SESSION_VERSION}"
    )
    assert error.fix == "update this checkout, or name other --results"
    assert json.loads(path.read_text()) == newer
