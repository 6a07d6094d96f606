"""Rewriting the results of older versions as the newest, on disk: `bandwise migrate`.

Readers need it for nothing, since they read older versions as the newest; it is for programs that read the files
themselves. Each file is replaced whole, under its run's lease, and its content is what readers have seen all along.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from suite.runs.formats import RESULT_VERSION
from suite.runs.lease import Owner, take
from suite.runs.migrations import VersionError, version_of
from suite.runs.reading import RefusedError, parsed, read
from suite.runs.store import Store
from suite.runs.writing import dump, write_atomic


@dataclass
class Rewritten:
    """What a migration did: run ids that were (or would be) rewritten, how many were new, refusals in words, the busy."""

    changed: list[str] = field(default_factory=list)
    current: int = 0
    refused: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)


def rewrite(root: Path, *, dry_run: bool = False) -> Rewritten:
    """Bring every result under a results folder to the newest version. Raises `StoreError`."""
    store, done = Store(root), Rewritten()
    done.refused += [str(error) for error in store.refused()]
    for run_id in store.run_ids():
        try:
            version = _version(store, run_id)
        except (RefusedError, VersionError):
            version = 0
        if refusal := store.refusal(run_id):
            done.refused.append(str(refusal))
        elif version == RESULT_VERSION:
            done.current += 1
        elif version and (dry_run or _rewrite(store, run_id, done)):
            done.changed.append(run_id)
    return done


def _version(store: Store, run_id: str) -> int:
    """The version on disk; 0 while the run has not ended."""
    path = store.folder(run_id) / "result.json"
    text = read(path)
    return 0 if text is None else version_of(parsed(text, path))


def _rewrite(store: Store, run_id: str, done: Rewritten) -> bool:
    lease = take(store.folder(run_id), Owner.here())
    if lease is None:
        done.busy.append(run_id)
        return False
    try:
        result = store.result(run_id)
        if result is None:
            return False  # begun anew in between
        write_atomic(store.folder(run_id) / "result.json", dump(result, indent=1) + "\n")
        return True
    finally:
        lease.release()
