"""Records of sessions of every version ever written are read as the newest; what is not read says why."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from suite.analysis.schemas import schemas
from suite.timing import store
from suite.timing.formats import SESSION_VERSION
from suite.timing.migrations import STEPS, upgraded

FROZEN = Path(__file__).parent / "frozen"
HASHES = {"v1-done.json": "8ee88b16714f"}
"""A record of every version that was ever written. None is ever changed; a new version adds its own."""


def frozen(name: str) -> dict[str, Any]:
    return dict(json.loads((FROZEN / name).read_text(encoding="utf-8")))


def test_old_records_are_frozen() -> None:
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in FROZEN.iterdir()}
    assert found == HASHES
    assert {frozen(name)["schema_version"] for name in HASHES} == set(range(1, SESSION_VERSION + 1))
    assert set(STEPS) == set(range(1, SESSION_VERSION))


@pytest.mark.parametrize("name", HASHES)
def test_every_version_is_read_as_the_newest(name: str, tmp_path: Path) -> None:
    old = frozen(name)
    before = copy.deepcopy(old)
    jsonschema.validate(old, schemas()[f"session-v{old['schema_version']}.json"])
    new = upgraded(old)
    assert old == before, "migrations are pure"
    jsonschema.validate(new, schemas()[f"session-v{SESSION_VERSION}.json"])
    assert upgraded(new) == new
    store.put(tmp_path, old)
    assert store.records(tmp_path, old["name"]) == [new]


def test_a_newer_record_is_not_touched_and_says_what_to_do(tmp_path: Path) -> None:
    newer = {**frozen("v1-done.json"), "schema_version": SESSION_VERSION + 1}
    path = store.put(tmp_path, newer)
    (error,) = store.refused(tmp_path)
    assert store.records(tmp_path, newer["name"]) == []
    assert error.reason == (
        f"session.json has schema_version {SESSION_VERSION + 1}, this code reads up to {SESSION_VERSION}"
    )
    assert error.fix == "update this checkout, or name other --results"
    assert json.loads(path.read_text()) == newer
