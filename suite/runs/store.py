"""Where runs are kept, one folder a run, and who works on one: every file is replaced whole, by one process at a time.

    <root>/runs/<aa>/<run_id>/   aa = the first two digits of the id
        spec.json      the canonical JSON, nothing else
        status.json    the state, see `Note`; the time of its last change is the run's last sign of life
        metrics.jsonl  one line an evaluation
        result.json    written last; its presence means that the run has ended, well or not
        checkpoint*    while the run is under way, see `suite.training.checkpoint`
        lease-<k>.json while somebody works on it

A file appears by rename after it has reached the disk, so a reader never sees half of one and a kill loses at most
what was trained since the last checkpoint. Nothing that is read is trusted (`files`, `result`): a run whose files are
refused is `invalid`, with the reason.

*Leases* let sweeps that share runs do each of them once. A lease holds the owner's name and its process. It is made
exclusively and is alive by the time of its last change, which its holder moves between steps. It may be taken over when it is
stale, when its owner's process has ended on this machine, or by an owner of the same name (a job that was requeued). Whoever
makes number k + 1 while number k is still there has it; numbers only grow while a folder holds a lease, so of two that try
one wins, and a kill at any moment leaves a lease that can be taken over. It needs nothing but exclusive creation, which
network file systems have.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from suite.links.process import Process
from suite.runs.documents import checked, problem
from suite.runs.files import (
    RefusedError,
    StoreError,
    cannot_write,
    dump,
    parsed,
    read,
    write_atomic,
)
from suite.runs.provenance import keep_changes, provenance
from suite.runs.result import (
    LONGEST_REASON,
    RESULT_VERSION,
    RUN_ID,
    Evaluation,
    Note,
    Status,
    result_problem,
)
from suite.runs.spec import RunSpec, SpecError

STALE_AFTER_S: Final = 180.0
"""How long a run, or who works on it, may show no life; network file systems see changes up to a minute late."""
AGAIN: Final = "move it away; the next sweep trains the run again"


class NewerResultError(RefusedError):
    """A result was written by a newer version of this project; it is never replaced."""


def default_root() -> Path:
    """``$BANDWISE_RESULTS``, else ``results`` of this checkout."""
    given = os.environ.get("BANDWISE_RESULTS")
    return Path(given) if given else Path(__file__).resolve().parents[2] / "results"


class Store:
    """The run folders under one results root."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, run_id: str) -> Path:
        """Folder of a run, whether it exists or not. Raises `StoreError` for what is no run id."""
        if not re.fullmatch(RUN_ID, run_id):
            raise StoreError(
                f"{run_id!r} is no run id: those have 16 hex digits, as `bandwise sweep SWEEP --dry-run --json` lists"
            )
        return self.root / "runs" / run_id[:2] / run_id

    def begin(
        self, spec: RunSpec, owner: str = "", step: int = 0, reason: str = "", together: int = 1
    ) -> Note:
        """Note that the run starts now, and remove what a failure left. The rest as in `Note`.

        A result that is refused is set aside as refused-result.json.
        """
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
        if self.refusal(spec.run_id) and os.path.lexists(folder / "result.json"):
            (folder / "result.json").replace(folder / "refused-result.json")
        for name in ("result.json", "metrics.jsonl"):
            (folder / name).unlink(missing_ok=True)
        self._write(spec.run_id, note)
        return note

    def put_spec(self, spec: RunSpec) -> None:
        """Write the spec alone, so that the run can be started by its id."""
        path = self.folder(spec.run_id) / "spec.json"
        try:
            there = read(path)
        except RefusedError:
            there = None
        if there != spec.to_json():
            write_atomic(path, spec.to_json())

    def heartbeat(self, run_id: str) -> None:
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
        """The spec of a run that was begun or put. Raises `StoreError` when there is none, or it is refused."""
        path = self.folder(run_id) / "spec.json"
        text = read(path)
        if text is None:
            raise StoreError(
                f"no run {run_id!r} under {self.root}: list planned runs with `bandwise sweep SWEEP --dry-run --json`, or name "
                "another results folder with --results"
            )
        return _spec(text, path, run_id)

    def result(self, run_id: str) -> dict[str, Any] | None:
        """The result; None while the run has not ended, and where its file is refused."""
        return self.state(run_id)[1]

    def refusal(self, run_id: str) -> RefusedError | None:
        """Why the result, or without one the status, is not read; None where all is well."""
        try:
            if self._result(run_id) is None:
                self._note(run_id)
        except RefusedError as error:
            return error
        return None

    def metrics(self, run_id: str) -> list[dict[str, Any]]:
        """The evaluations of a run in order; empty when there are none. Raises `RefusedError`."""
        path = self.folder(run_id) / "metrics.jsonl"
        lines = [parsed(line, path, AGAIN) for line in (read(path, fix=AGAIN) or "").splitlines()]
        if problem(list[Evaluation], lines):
            wrong = ((number, problem(Evaluation, line)) for number, line in enumerate(lines, start=1))
            raise RefusedError(
                path, "is refused (line {}: {})".format(*next(w for w in wrong if w[1])), AGAIN
            )
        if any(after["step"] <= before["step"] for before, after in itertools.pairwise(lines)):
            raise RefusedError(path, "is refused (its steps do not rise)", AGAIN)
        return lines

    def status(self, run_id: str) -> Status:
        """How the run stands; `stale` is a run that says it is running but has shown no life for three minutes.

        `invalid`, with the reason, is one whose files are refused.
        """
        return self.state(run_id)[0]

    def state(self, run_id: str) -> tuple[Status, dict[str, Any] | None]:
        """The state of the run, as `status`, and its result, None where there is none that can be used."""
        try:
            result = self._result(run_id)
            note = self._note(run_id) if result is None else None
        except RefusedError as error:
            return Status("invalid", error.reason), None
        if result is not None:
            return Status(result["status"], result["reason"]), result
        return self._live(run_id, note), None

    def note(self, run_id: str) -> Note | None:
        """What stands in status.json, whether the run has ended or not; None where there is none that can be used."""
        try:
            return self._note(run_id)
        except RefusedError:
            return None

    def run_ids(self) -> list[str]:
        """All runs that have a folder with a spec that can be read, sorted; `refused` lists the others."""
        return sorted(spec.run_id for spec in self._specs() if isinstance(spec, RunSpec))

    def refused(self) -> list[RefusedError]:
        """What lies among the runs and is not read: folders that are no run's, and specs that are refused."""
        return [found for found in self._specs() if isinstance(found, RefusedError)]

    def _specs(self) -> Iterator[RunSpec | RefusedError]:
        for folder in sorted(self.root.glob("runs/*/*")):
            run_id = folder.name
            try:
                if folder.is_symlink():
                    raise RefusedError(folder, "is a symbolic link", "put the folder itself in its place")
                if not re.fullmatch(RUN_ID, run_id) or folder.parent.name != run_id[:2]:
                    raise RefusedError(folder, "is no run's folder", "move it out of runs/")
                text = read(folder / "spec.json")
                if text is not None:
                    yield _spec(text, folder / "spec.json", run_id)
            except RefusedError as error:
                yield error

    def _result(self, run_id: str) -> dict[str, Any] | None:
        path = self.folder(run_id) / "result.json"
        return read_version(path, RESULT_VERSION, lambda found: result_problem(found, run_id), AGAIN)

    def _note(self, run_id: str) -> Note | None:
        path = self.folder(run_id) / "status.json"
        text = read(path, fix=AGAIN)
        if text is None:
            return None
        found = parsed(text, path, AGAIN)
        try:
            note: Note = checked(Note, found)
        except ValueError as error:
            raise RefusedError(path, f"is refused ({error})", AGAIN) from None
        return note

    def _live(self, run_id: str, note: Note | None) -> Status:
        """How a run stands that has no result."""
        if note is None or note.state not in {"running", "interrupted"}:
            return Status("missing")
        if note.state == "interrupted":
            return Status(note.state, note.reason)
        silent_s = time.time() - (self.folder(run_id) / "status.json").stat().st_mtime
        if silent_s > STALE_AFTER_S:
            return Status("stale", f"no sign of life for {silent_s:.0f} s; the next sweep goes on with it")
        return Status("running")

    def _silent_from(self, run_id: str, note: Note) -> float:
        """Seconds from the last change of a note to the last sign of life after it."""
        alive_s = (self.folder(run_id) / "status.json").stat().st_mtime
        return max(0.0, alive_s - note.updated_s)

    def _change(self, run_id: str, **changes: Any) -> None:
        before = self.note(run_id) or Note("missing", attempt=1)
        self._write(run_id, replace(before, **changes, updated_s=round(time.time(), 3)))

    def _write(self, run_id: str, note: Note) -> None:
        write_atomic(self.folder(run_id) / "status.json", dump(note.as_dict()) + "\n")


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its result and its curve as they go into the store."""

    run_id: str
    status: Status
    result: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]

    def save(self, store: Store) -> None:
        """Write it into the store, after how the code that ran differs from its commit."""
        keep_changes(store.root)
        store.finish(self.run_id, self.status, self.result, self.metrics)


def blank_result(spec: RunSpec, status: Status) -> dict[str, Any]:
    """The part of a result that every ended run has, also one that never got to train."""
    return {
        "schema_version": RESULT_VERSION,
        "run_id": spec.run_id,
        "spec": spec.as_dict(),
        "status": status.state,
        "reason": status.reason[:LONGEST_REASON],
        "provenance": provenance(),
    }


def failed(spec: RunSpec, status: Status) -> Outcome:
    """The outcome of a run that ended from outside: its process died, its time was up."""
    return Outcome(spec.run_id, status, blank_result(spec, status), ())


def read_version(
    path: Path, version: int, problem_of: Callable[[dict[str, Any]], str | None], fix: str
) -> dict[str, Any] | None:
    """A file of JSON as the document of a version that it must be.

    Args:
        path: The file.
        version: Its `schema_version`.
        problem_of: What else keeps a document from being one, in one clause; None where nothing does.
        fix: What to do about a file that is refused.

    Returns:
        The document; None where there is no file.

    Raises:
        RefusedError: It is damaged, or not what it must be.
        NewerResultError: A newer version of this project wrote it.
    """
    text = read(path, fix=fix)
    if text is None:
        return None
    found = _of_version(parsed(text, path, fix), version, path, fix)
    if wrong := problem_of(found):
        raise RefusedError(path, f"is refused ({wrong})", fix)
    return found


def _of_version(value: Any, version: int, path: Path, fix: str) -> dict[str, Any]:
    """A document of that version. Raises `RefusedError` for any other, `NewerResultError` for a newer one."""
    if not isinstance(value, dict):
        raise RefusedError(path, "is not a mapping", fix)
    said = value.get("schema_version")
    if type(said) is not int or said < 1:
        raise RefusedError(path, "says no schema_version that ever was", fix)
    if said > version:
        reason = f"has schema_version {said}, this code reads {version}"
        raise NewerResultError(path, reason, "update this checkout, or name other --results")
    if said < version:
        raise RefusedError(path, f"has schema_version {said}, this code reads {version}", fix)
    return value


def load_spec(text: str, store: Store) -> RunSpec:
    """A spec from a file's path or from a run id of the store. Raises `SpecError` or `StoreError`."""
    path = Path(text)
    if path.suffix == ".json":
        found = read(path.resolve())
        if found is None:
            raise SpecError(f"no file {path}: give the path of a spec.json or a run id")
        return RunSpec.from_json(found, source=str(path))
    return store.spec(text)


def _spec(text: str, path: Path, run_id: str) -> RunSpec:
    """The spec in a run's folder. Raises `RefusedError`."""
    found = parsed(text, path, AGAIN)
    try:
        spec = RunSpec.from_dict(found)
    except SpecError as error:
        raise RefusedError(path, f"is refused ({error})", AGAIN) from None
    if spec.run_id != run_id:
        raise RefusedError(path, f"is the spec of {spec.run_id}, not of {run_id}", AGAIN)
    return spec


ATTEMPTS: Final = 20
"""How often a lease is tried for that changes hands just then."""


@dataclass(frozen=True)
class Owner:
    """Who works on a run, by a name that no two have at the same time."""

    name: str

    @classmethod
    def here(cls, pid: int | None = None) -> Owner:
        """This process, or another one of this machine."""
        return cls(f"pid {pid or os.getpid()} on {socket.gethostname()}")


@dataclass(frozen=True)
class Lease:
    """A lease that this process has."""

    path: Path

    def heartbeat(self) -> bool:
        """Show life; False when somebody else has taken the run over."""
        try:
            os.utime(self.path)
        except FileNotFoundError:
            return False
        return True

    def held(self) -> bool:
        """Whether nobody has taken the run over."""
        return self.path.exists()

    def release(self) -> None:
        """Give it back."""
        self.path.unlink(missing_ok=True)


def take_lease(folder: Path, owner: Owner, stale_after_s: float = STALE_AFTER_S) -> Lease | None:
    """The lease of the run in `folder`; None while a live owner of another name has it. Raises `StoreError`."""
    for _ in range(ATTEMPTS):
        held = _leases(folder)
        newest = held[-1] if held else None
        if newest is not None and not _free(newest, owner, stale_after_s):
            return None
        mine = _lease_path(folder, 1 if newest is None else _lease_number(newest) + 1)
        if not _create(mine, owner):
            continue
        if (newest is None or newest.exists()) and _leases(folder)[-1:] == [mine]:
            for older in held:
                older.unlink(missing_ok=True)
            return Lease(mine)
        mine.unlink(missing_ok=True)  # it had changed hands in between
        time.sleep(0.01)
    return None


def lease_holder(folder: Path) -> str | None:
    """Name of the owner whose lease is the newest; None where there is none."""
    held = _leases(folder)
    return str(_lease_content(held[-1]).get("owner", "unknown")) if held else None


def release_lease(folder: Path, owner: Owner) -> bool:
    """Remove the lease of an owner that is known to be dead (by the scheduler, say); True where it held one."""
    if lease_holder(folder) != owner.name:
        return False
    for path in _leases(folder):
        path.unlink(missing_ok=True)
    return True


def _free(path: Path, owner: Owner, stale_after_s: float) -> bool:
    """Whether a lease may be taken over."""
    try:
        silent_s = time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return True
    content = _lease_content(path)
    if silent_s > stale_after_s or content.get("owner") == owner.name:
        return True
    pid, started_ticks = content.get("pid"), content.get("started_ticks")
    if content.get("machine") != _machine() or not isinstance(pid, int) or not isinstance(started_ticks, int):
        return False
    return not Process(pid, started_ticks).alive()


def _create(path: Path, owner: Owner) -> bool:
    """Make the file; False when another was quicker. Raises `StoreError`, and leaves no empty file where the disk is full."""
    me = Process.of(os.getpid())
    content = {
        "owner": owner.name,
        "machine": _machine(),
        "pid": me.pid,
        "started_ticks": me.started_ticks,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("x", encoding="utf-8")
    except FileExistsError:
        return False
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        with file:
            file.write(dump(content) + "\n")
    except OSError as error:
        path.unlink(missing_ok=True)
        raise cannot_write(path, error) from error
    return True


def _lease_content(path: Path) -> dict[str, Any]:
    """What a lease says; empty where it has gone, is damaged, or its owner died while writing it."""
    try:
        found = parsed(read(path) or "{}", path)
    except RefusedError:
        return {}
    return found if isinstance(found, dict) else {}


def _machine() -> str:
    """Where a pid means one process: this boot of this machine, and the namespace of pids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _leases(folder: Path) -> list[Path]:
    """All leases in the folder, the newest last."""
    return sorted(
        (p for p in folder.glob("lease-*.json") if re.fullmatch("[0-9]{1,18}", p.stem[6:])), key=_lease_number
    )


def _lease_path(folder: Path, number: int) -> Path:
    return folder / f"lease-{number}.json"


def _lease_number(path: Path) -> int:
    return int(path.stem.partition("-")[2])
