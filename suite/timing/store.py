"""Where records of sessions are kept: ``<root>/sessions/<name>/<session_id>/session.json``, each replaced whole."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from suite.runs.store import dump, parsed, read, write_atomic

SCHEMA: Final = 1
FILE: Final = "session.json"


def new_id(now: datetime | None = None) -> str:
    """``20261120T183000Z-ab12cd34``: when it was begun, and eight random hex digits. Sorts by time."""
    return f"{(now or datetime.now(UTC)):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def path_of(root: Path | str, name: str, session_id: str) -> Path:
    """The file of a record, whether it exists or not."""
    return Path(root) / "sessions" / name / session_id / FILE


def put(root: Path | str, record: Mapping[str, Any]) -> Path:
    """Write a record as it is now; returns the file. Raises `StoreError`."""
    path = path_of(root, record["name"], record["session_id"])
    write_atomic(path, dump(record, indent=1) + "\n")
    return path


def records(root: Path | str, name: str) -> list[dict[str, Any]]:
    """All records of a session of that name, oldest first. Raises `StoreError` for a damaged one."""
    folder = Path(root) / "sessions" / name
    found = [(path, read(path)) for path in sorted(folder.glob(f"*/{FILE}"))]
    return [dict(parsed(text, path)) for path, text in found if text is not None]


def latest(root: Path | str, name: str) -> dict[str, Any] | None:
    """The newest record of a session of that name, or None."""
    found = records(root, name)
    return found[-1] if found else None
