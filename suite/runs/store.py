"""Where runs are kept: one folder a run, written by one process, every file replaced whole.

    <root>/runs/<aa>/<run_id>/   aa = the first two digits of the id
        spec.json      the canonical JSON, nothing else
        status.json    how it stands, see `Note`; the time of its last change is the run's last sign of life
        metrics.jsonl  one line an evaluation
        result.json    written last; its presence means that the run has ended, well or not
        checkpoint*    while the run is under way, see `checkpoint`
        lease-<k>.json while somebody works on it, see `lease`

A file appears by rename after it has reached the disk, so a reader never sees half of one and a kill loses at most
what was trained since the last checkpoint. Two trees merge by copying one over the other.
"""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from suite.runs.spec import RunSpec, SpecError
from suite.runs.status import Note, Status

RESULT_SCHEMA: Final = 1
STALE_AFTER_S: Final = 180.0
"""How long a run, or who has it in hand, may show no life; network file systems see changes up to a minute late."""
TEMPORARY: Final = ".tmp"
"""How the names of half-written files end."""


class StoreError(RuntimeError):
    """The store cannot be read or written; the message says what to do."""


class StoreFullError(StoreError):
    """No space is left for a file. What was finished before is kept."""


def default_root() -> Path:
    """``$BANDWISE_RESULTS``, else ``results`` of this checkout."""
    given = os.environ.get("BANDWISE_RESULTS")
    return Path(given) if given else Path(__file__).resolve().parents[2] / "results"


class Store:
    """The run folders under one results root."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, run_id: str) -> Path:
        """Folder of a run, whether it exists or not."""
        return self.root / "runs" / run_id[:2] / run_id

    def begin(
        self, spec: RunSpec, owner: str = "", step: int = 0, reason: str = "", together: int = 1
    ) -> Note:
        """Note that the run starts now, and remove what a failure left. The rest as in `Note`."""
        folder = self.folder(spec.run_id)
        before = self.note(spec.run_id) or Note("missing")
        died = before.state == "running" and not (folder / "result.json").exists()
        lost_s = before.lost_s if died or step else 0.0
        if died:
            lost_s += self._silent_from(spec.run_id, before) / before.together
        note = Note(
            "running",
            reason,
            attempt=before.attempt + 1,
            updated_s=round(time.time(), 3),
            step=step,
            owner=owner,
            tries=before.tries + 1 if died and before.step == step else 1,
            lost_s=round(lost_s, 3),
            together=together,
        )
        self.put_spec(spec)
        for name in ("result.json", "metrics.jsonl"):
            (folder / name).unlink(missing_ok=True)
        self._write(spec.run_id, note)
        return note

    def put_spec(self, spec: RunSpec) -> None:
        """Write the spec alone, so that the run can be started by its id."""
        path = self.folder(spec.run_id) / "spec.json"
        if not path.exists():
            write_atomic(path, spec.to_json())

    def beat(self, run_id: str) -> None:
        """Show that the run is alive: moves the time of its status file."""
        os.utime(self.folder(run_id) / "status.json")

    def saved(self, run_id: str, step: int, reason: str = "") -> None:
        """Note how far the checkpoint is that was just written; reason: why it could not be."""
        self._change(run_id, step=step, reason=reason)

    def interrupt(self, run_id: str, reason: str) -> None:
        """Note that a run was stopped in good order and has a checkpoint to go on from."""
        self._change(run_id, state="interrupted", reason=reason)

    def abandon(self, run_id: str) -> None:
        """Note that a run was stopped half-way: it counts as missing again. Needs no space."""
        (self.folder(run_id) / "status.json").unlink(missing_ok=True)

    def finish(
        self, run_id: str, status: Status, result: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
    ) -> None:
        """Write metrics, then status, then result: the order that makes the result's presence mean the end."""
        folder = self.folder(run_id)
        if metrics:
            write_atomic(folder / "metrics.jsonl", "".join(dump(line) + "\n" for line in metrics))
        self._change(run_id, state=status.state, reason=status.reason)
        write_atomic(folder / "result.json", dump(result, indent=1) + "\n")

    def spec(self, run_id: str) -> RunSpec:
        """The spec of a run that was begun or put. Raises `StoreError` when there is none."""
        path = self.folder(run_id) / "spec.json"
        text = read(path)
        if text is None:
            raise StoreError(
                f"no run {run_id!r} under {self.root}: list planned runs with `bandwise plan SWEEP --json`, or name "
                "another results folder with --results"
            )
        return RunSpec.from_json(text, source=str(path))

    def result(self, run_id: str) -> dict[str, Any] | None:
        """The result, or None while the run has not ended. Raises `StoreError` for one that cannot be read."""
        path = self.folder(run_id) / "result.json"
        text = read(path)
        return None if text is None else dict(parsed(text, path))

    def metrics(self, run_id: str) -> list[dict[str, Any]]:
        """The evaluations of a run in order; empty when there are none."""
        path = self.folder(run_id) / "metrics.jsonl"
        return [parsed(line, path) for line in (read(path) or "").splitlines()]

    def status(self, run_id: str) -> Status:
        """How the run stands; `stale` is a run that says it is running but has shown no life for three minutes."""
        result = self.result(run_id)
        if result is not None:
            return Status(result["status"], result["reason"])
        note = self.note(run_id)
        if note is None or note.state not in {"running", "interrupted"}:
            return Status("missing")
        if note.state == "interrupted":
            return Status(note.state, note.reason)
        silent_s = time.time() - (self.folder(run_id) / "status.json").stat().st_mtime
        if silent_s > STALE_AFTER_S:
            return Status("stale", f"no sign of life for {silent_s:.0f} s; the next sweep goes on with it")
        return Status("running")

    def note(self, run_id: str) -> Note | None:
        """What stands in status.json, whether the run has ended or not; None where there is none."""
        path = self.folder(run_id) / "status.json"
        text = read(path)
        return None if text is None else Note.from_dict(parsed(text, path))

    def run_ids(self) -> list[str]:
        """All runs that have a folder, sorted."""
        return sorted(path.parent.name for path in self.root.glob("runs/??/*/spec.json"))

    def _silent_from(self, run_id: str, note: Note) -> float:
        """Seconds from the last change of a note to the last sign of life after it."""
        alive_s = (self.folder(run_id) / "status.json").stat().st_mtime
        return max(0.0, alive_s - note.updated_s)

    def _change(self, run_id: str, **changes: Any) -> None:
        before = self.note(run_id) or Note("missing", attempt=1)
        self._write(run_id, replace(before, **changes, updated_s=round(time.time(), 3)))

    def _write(self, run_id: str, note: Note) -> None:
        write_atomic(self.folder(run_id) / "status.json", dump(note.as_dict()) + "\n")


def load_spec(text: str, store: Store) -> RunSpec:
    """A spec from a file's path or from a run id of the store. Raises `SpecError` or `StoreError`."""
    path = Path(text)
    if path.suffix == ".json":
        found = read(path)
        if found is None:
            raise SpecError(f"no file {path}: give the path of a spec.json or a run id")
        return RunSpec.from_json(found, source=str(path))
    return store.spec(text)


def read(path: Path) -> str | None:
    """The text of a file, or None where there is none. Raises `StoreError` when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror}; check its rights, or use --results"
        ) from error


def parsed(text: str, path: Path) -> Any:
    """The JSON value in `text`, read from `path`. Raises `StoreError` for a damaged file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise StoreError(f"{path} is damaged ({error}): delete its folder and run the sweep again") from None


def dump(value: Any, indent: int | None = None) -> str:
    """JSON with sorted keys. Raises ValueError for nan and infinity: say null and give a reason instead."""
    return json.dumps(value, sort_keys=True, indent=indent, ensure_ascii=False, allow_nan=False)


def finite(value: float) -> float | None:
    """The number, or None where it is nan or infinite, as it goes into files."""
    return float(value) if math.isfinite(value) else None


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` in one go. Raises as `replacing` does."""
    with replacing(path) as file:
        file.write(text.encode())


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` in one go: temporary file beside it, fsync, rename.

    Raises `StoreFullError`, `StoreError`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError) -> StoreError:
    """The error for a file that could not be written, with what to do."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFullError(
            f"no space left for {path}: free some, or name another place with --results; finished results are "
            "kept, and the same command goes on from here"
        )
    return StoreError(f"cannot write {path}: {error.strerror}; check its rights, or use --results")
