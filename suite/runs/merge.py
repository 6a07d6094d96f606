"""Two results folders into one: what the other has and this one lacks is copied; nothing good is ever replaced.

A run that has settled here stays as it is. One that has not, and has there, is taken over under its lease, result last,
so that a kill leaves it as it was or whole. Both settled and different in what they computed is a conflict: it is named,
and both stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from suite.runs.files import RefusedError, StoreError, read, write_atomic
from suite.runs.provenance import keep_changes, kept_changes
from suite.runs.store import NewerResultError, Owner, Store, take_lease

FILES: Final = ("spec.json", "metrics.jsonl", "status.json", "result.json")
"""In the order in which they are copied."""
MOVING: Final = frozenset({"schema_version", "attempt", "lost_s", "provenance", "train_s", "sources"})
"""What of a result says when and where it was computed, and nothing of what."""


@dataclass
class Merged:
    """What a merge did: run ids and sessions taken over, those that were here already, conflicts and refusals in words."""

    taken: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "taken": self.taken,
            "kept": self.kept,
            "conflicts": self.conflicts,
            "refused": self.refused,
        }


def merge(into: Path, other: Path) -> Merged:
    """Take over the runs and sessions of another results folder. Raises `StoreError` where it is none, or is this one."""
    if into.resolve() == other.resolve():
        raise StoreError(f"{other} is this results folder itself: name another one")
    if not (other / "runs").is_dir() and not (other / "sessions").is_dir():
        raise StoreError(f"{other} is no results folder: it has neither runs/ nor sessions/")
    here, there, merged = Store(into), Store(other), Merged()
    merged.refused += [str(error) for error in there.refused()]
    for run_id in there.run_ids():
        _merge_run(here, there, run_id, merged)
    for name in _sessions(other):
        _merge_session(into, other, name, merged)
    for path in sorted((other / "patches").glob("*.diff")):
        _merge_changes(into, other, path.stem, merged)
    return merged


def _merge_changes(into: Path, other: Path, sha256: str, merged: Merged) -> None:
    """Take over how the code of runs differed from its commit; named by its hash, it is the same wherever it is."""
    try:
        changes = kept_changes(other, sha256)
    except RefusedError as error:
        merged.refused.append(str(error))
        return
    if changes is not None:
        keep_changes(into, changes.encode())


def _merge_run(here: Store, there: Store, run_id: str, merged: Merged) -> None:
    status, result = there.state(run_id)
    if refusal := there.refusal(run_id):
        merged.refused.append(str(refusal))
        return
    if result is None:
        return  # under way there, or not begun
    mine, own = here.state(run_id)
    if isinstance(newer := here.refusal(run_id), NewerResultError):
        merged.refused.append(str(newer))
        return
    if own is not None and (mine.settled or not status.settled):
        merged.kept.append(run_id)
        if mine.settled and status.settled and (changed := _differs(own, result)):
            merged.conflicts.append(
                f"run {run_id} differs in {changed} here and in {there.root}: "
                f"`bandwise run {run_id} --again` shows which is right here"
            )
        return
    _copy(here, there, run_id, merged)


def _copy(here: Store, there: Store, run_id: str, merged: Merged) -> None:
    lease = take_lease(here.folder(run_id), Owner.here())
    if lease is None:
        merged.conflicts.append(f"run {run_id} is being worked on here: merge again when it has ended")
        return
    try:
        here.begin(there.spec(run_id), "merge")
        for name in FILES:
            text = read(there.folder(run_id) / name)
            if text is not None:
                write_atomic(here.folder(run_id) / name, text)
        merged.taken.append(run_id)
    except RefusedError as error:
        here.abandon(run_id)
        merged.refused.append(str(error))
    finally:
        lease.release()


def _differs(own: dict[str, Any], other: dict[str, Any]) -> str:
    """The first key in which two results of a run say that something else was computed; "" where there is none."""
    keys = sorted((own.keys() | other.keys()) - MOVING)
    return next((key for key in keys if own.get(key) != other.get(key)), "")


def _sessions(root: Path) -> Iterator[Path]:
    """Records of sessions, relative to the root."""
    for path in sorted((root / "sessions").glob("*/*/session.json")):
        yield path.relative_to(root)


def _merge_session(into: Path, other: Path, name: Path, merged: Merged) -> None:
    label = "/".join(name.parts[1:3])
    try:
        theirs, mine = read(other / name), read(into / name)
    except RefusedError as error:
        merged.refused.append(str(error))
        return
    if mine is None and theirs is not None:
        write_atomic(into / name, theirs)
        merged.taken.append(label)
    elif mine == theirs:
        merged.kept.append(label)
    else:
        merged.conflicts.append(
            f"session {label} differs here and in {other}: one of the two was changed by hand"
        )
