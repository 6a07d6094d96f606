"""All that is on record of one run, for its page: its folder, or where that is gone its row in the tables.

The folder's files are read as everywhere, refused ones by name; they are hashed as they lie there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from report.study.data import Panel
from suite.analysis.tables import Row
from suite.runs.files import RefusedError
from suite.runs.result import Note
from suite.runs.store import Store

FILES: Final = ("spec.json", "result.json", "metrics.jsonl", "status.json")


@dataclass(frozen=True)
class RunRecord:
    """A run with its row and panel. In a folder: spec, result (else the note of how it stands) and curve as far as they can be
    read, and name, bytes, SHA-256 of its files. `refused`: what is there and is not read, with the reason.
    """

    row: Row
    panel: Panel
    folder: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, Any]] = ()
    note: Note | None = None
    files: Sequence[tuple[str, int, str]] = ()
    refused: Sequence[str] = ()

    @property
    def run_id(self) -> str:
        """Its id."""
        return str(self.row["run_id"])

    @property
    def state(self) -> str:
        """How it stands: by its result, else by its row, which says nothing that changes from minute to minute."""
        return str(self.result.get("status") or self.row["status"])

    @property
    def reason(self) -> str:
        """Why, where it is not done."""
        return str((self.result.get("reason") if self.result else self.row["reason"]) or "")


def run_record(store: Store, row: Row, panel: Panel) -> RunRecord:
    """What is on record of the run of a row."""
    run_id = str(row["run_id"])
    folder = store.folder(run_id)
    if not folder.is_dir() or folder.is_symlink():
        return RunRecord(row, panel)
    refused: list[str] = []
    _, result = store.state(run_id)
    if result is None and (error := store.refusal(run_id)):
        refused.append(f"{error.reason}: {error.fix}")
    spec = dict(result["spec"]) if result else _spec(store, run_id, refused)
    return RunRecord(
        row,
        panel,
        folder.relative_to(store.root).as_posix(),
        spec,
        result or {},
        _metrics(store, run_id, refused),
        store.note(run_id) if result is None else None,
        [found for name in FILES if (found := _hashed(str(folder), name))],
        refused,
    )


def _spec(store: Store, run_id: str, refused: list[str]) -> dict[str, Any]:
    try:
        return store.spec(run_id).as_dict()
    except RefusedError as error:
        refused.append(f"{error.reason}: {error.fix}")
        return {}


def _metrics(store: Store, run_id: str, refused: list[str]) -> list[dict[str, Any]]:
    try:
        return store.metrics(run_id)
    except RefusedError as error:
        refused.append(f"{error.reason}: {error.fix}")
        return []


def _hashed(folder: str, name: str) -> tuple[str, int, str] | None:
    """Name, size and hash of a regular file of a folder; a link is not followed."""
    path = os.path.join(folder, name)
    if os.path.islink(path) or not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        content = file.read()
    return name, len(content), hashlib.sha256(content).hexdigest()
