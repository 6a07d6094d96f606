"""Where records of sessions are kept: ``<root>/sessions/<name>/<session_id>/session.json``, each replaced whole."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from suite.runs.changes import keep as keep_changes
from suite.runs.described import problems
from suite.runs.migrations import NewerError, VersionError
from suite.runs.reading import RefusedError, parsed, read
from suite.runs.writing import dump, write_atomic
from suite.timing.formats import SESSION
from suite.timing.migrations import upgraded

FILE: Final = "session.json"
AGAIN: Final = "move its folder away, and run the session again"


def new_id(now: datetime | None = None) -> str:
    """``20261120T183000Z-ab12cd34``: when it was begun, and eight random hex digits. Sorts by time."""
    return f"{(now or datetime.now(UTC)):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def path_of(root: Path | str, name: str, session_id: str) -> Path:
    """The file of a record, whether it exists or not."""
    return Path(root) / "sessions" / name / session_id / FILE


def put(root: Path | str, record: Mapping[str, Any]) -> Path:
    """Write a record as it is now; returns the file. Raises `StoreError`."""
    path = path_of(root, record["name"], record["session_id"])
    keep_changes(Path(root))
    write_atomic(path, dump(record, indent=1) + "\n")
    return path


def records(root: Path | str, name: str) -> list[dict[str, Any]]:
    """All records of a session of that name that can be read, oldest first; `refused` lists the others."""
    return [found for found in _found(root, name) if isinstance(found, dict)]


def refused(root: Path | str, name: str | None = None) -> list[RefusedError]:
    """The records of a session, or of all, that are damaged, or of a version that this code does not read."""
    return [found for found in _found(root, name) if isinstance(found, RefusedError)]


def _found(root: Path | str, name: str | None) -> Iterator[dict[str, Any] | RefusedError]:
    folder = Path(root) / "sessions"
    paths = folder.glob(f"*/*/{FILE}") if name is None else (folder / name).glob(f"*/{FILE}")
    for path in sorted(paths):
        try:
            text = read(path, fix=AGAIN)
            if text is not None:
                yield _checked(parsed(text, path, AGAIN), path)
        except RefusedError as error:
            yield error


def _checked(record: Any, path: Path) -> dict[str, Any]:
    try:
        record = upgraded(record)
    except NewerError as error:
        raise RefusedError(path, str(error), "update this checkout, or name other --results") from None
    except VersionError as error:
        raise RefusedError(path, str(error), AGAIN) from None
    if problem := next(problems(record, SESSION), None):
        raise RefusedError(path, f"is refused ({problem})", AGAIN)
    return dict(record)


def latest(root: Path | str, name: str) -> dict[str, Any] | None:
    """The newest record of a session of that name, or None."""
    known = records(root, name)
    return known[-1] if known else None
