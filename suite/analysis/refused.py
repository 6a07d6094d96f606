"""What lies in a results folder and is not read, as a table: a page from tables alone can show it beside what it belongs to."""

from __future__ import annotations

from pathlib import Path

from suite.analysis.columns import REFUSED
from suite.analysis.tables import Row, read_table, table_path, write_table
from suite.runs.files import RefusedError
from suite.runs.store import Store
from suite.timing import store as sessions


def refused_rows(root: Path) -> list[Row]:
    """Records of sessions, and folders among the runs, that are refused; paths are relative to the results folder."""
    found = [
        _row("session", e.path.parent.parent.name, e.path.parent.name, e) for e in sessions.refused(root)
    ]
    for error in Store(root).refused():
        folder = error.path.parent if error.path.name == "spec.json" else error.path
        found.append(_row("run", folder.relative_to(root).as_posix(), "", error))
    return found


def _row(kind: str, name: str, record: str, error: RefusedError) -> Row:
    """A row of valid UTF-8, whatever a folder is called."""
    name, record, reason, fix = (
        text.encode("utf-8", "replace").decode() for text in (name, record, error.reason, error.fix)
    )
    return {"kind": kind, "name": name, "record": record or None, "reason": reason, "fix": fix}


def write_refused(root: Path) -> None:
    """Bring the table up to date; there is none where nothing was ever refused."""
    rows, path = refused_rows(root), table_path(root, REFUSED)
    if rows or path.exists():
        write_table(path, REFUSED, rows)


def load_refused(root: Path) -> list[Row]:
    """The rows on record. Raises `TableError` for a damaged table."""
    path = table_path(root, REFUSED)
    return read_table(path, REFUSED) if path.is_file() else []
