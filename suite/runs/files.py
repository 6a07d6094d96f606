"""Values as text, files as they are found, files that are replaced whole, who owns a folder, and what is worked out once and
kept.

*Canonical JSON* is one text for one value, so that its hash can be an identity: sorted keys, no blanks, the shortest form of
every float (Python's own), UTF-8. What has no unambiguous text is refused: nan and infinity, keys that are not strings,
objects.

*Reading.* A results folder may come from another machine, another hand, or a disk that failed. So a file is read only if it is
a regular one and no link, of a size that can be meant, in UTF-8; and its JSON only if it has one meaning: no NaN or infinity,
no key twice. Nothing that is read is ever executed.

*Writing.* What is written is written beside its place, flushed to disk and renamed: a reader never sees half of a file, and a
kill or a full disk leaves the old one or the new one.

*Leases* let sweeps that share runs do each of them once. A lease lies in the run's folder as ``lease-<k>.json`` and holds the
owner's name and its process. It is made exclusively and is alive by the time of its last change, which its holder moves between
steps. It may be taken over when it is stale, when its owner's process has ended on this machine, or by an owner of the same
name (a job that was requeued). Whoever makes number k + 1 while number k is still there has it; numbers only grow while a
folder holds a lease, so of two that try one wins, and a kill at any moment leaves a lease that can be taken over. It needs
nothing but exclusive creation, which network file systems have.

*The disk cache* keeps what follows from the code alone: options of a method filled in, sizes of a model, hashes of sources.
Finding it out takes torch, whose import takes seconds; verbs that only look at runs (plan, status, watch) have it in
milliseconds. It lies in ``$BANDWISE_CACHE/<hash>/`` (else ``~/.cache/bandwise``), a file a question; the hash stands for all
source files that an answer may depend on and the versions of Python and torch, so a change of any of them starts anew. Only
what ships with the project is kept: the source of plug-ins is not known here. Where nothing can be written, every question is
worked out again.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from suite.links.process import Process

ID_DIGITS = 16


class CanonicalError(ValueError):
    """A value has no canonical form; the message says where in the value."""


def plain(value: Any, where: str = "value") -> Any:
    """`value` as plain dicts, lists, strings, numbers, bools and None. Raises `CanonicalError` otherwise."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise CanonicalError(f"{where} is {value}: only finite numbers are allowed; use null")
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise CanonicalError(f"{where} has the key {key!r}: keys must be strings")
        return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise CanonicalError(f"{where} is a {type(value).__name__}: use numbers, strings, lists and mappings")


def canonical_json(value: Any) -> str:
    """The one JSON text of `value`. Raises `CanonicalError` for what has none."""
    return json.dumps(
        plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def identity(value: Any) -> str:
    """First 16 hex digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:ID_DIGITS]


LIMIT_BYTES: Final = 64 << 20
"""The largest file that is read; the largest that the suite writes has a hundredth of it."""
MOVE_AWAY: Final = "move it away, and what made it makes it again"


class StoreError(RuntimeError):
    """The store cannot be read or written; the message says what to do."""


class RefusedError(StoreError):
    """A file is there and is not read. `reason`: why, naming the file and no folder; `fix`: what to do."""

    def __init__(self, path: Path, reason: str, fix: str = MOVE_AWAY) -> None:
        super().__init__(f"{path} {reason}: {fix}")
        self.path, self.reason, self.fix = path, f"{path.name} {reason}", fix


def read(path: Path, limit_bytes: int = LIMIT_BYTES, fix: str = MOVE_AWAY) -> str | None:
    """The text of a file, or None where there is none. Raises `RefusedError`; `StoreError` when it cannot be read.

    fix: what to do about one that is refused.
    """
    try:
        content = _content(path, limit_bytes, fix)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror}; check its rights, or use --results"
        ) from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RefusedError(path, f"is damaged (byte {error.start} is not UTF-8)", fix) from None


def parsed(text: str, path: Path, fix: str = MOVE_AWAY) -> Any:
    """The JSON value in `text`, read from `path`. Raises `RefusedError` for one that is damaged or ambiguous."""
    try:
        value = json.loads(
            text, object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite, parse_int=_plausible
        )
        if "\\u" in text:
            dump(value).encode()  # for halves of characters
    except json.JSONDecodeError as error:
        raise RefusedError(path, f"is damaged ({error})", fix) from None
    except RecursionError:
        raise RefusedError(path, "is nested too deeply", fix) from None
    except (ValueError, OverflowError) as error:
        raise RefusedError(path, f"is refused ({error})", fix) from None
    return value


def _content(path: Path, limit_bytes: int, fix: str) -> bytes:
    if path.is_symlink():
        raise RefusedError(path, "is a symbolic link", "put the file itself in its place")
    descriptor = os.open(
        path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    )  # a pipe would block
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RefusedError(path, "is no regular file", fix)
        if found.st_size > limit_bytes:
            raise RefusedError(
                path, f"has {found.st_size} bytes, more than the {limit_bytes} that are read", fix
            )
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(limit_bytes)
    finally:
        os.close(descriptor)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands in it twice")
    return found


def _refuse(number: str) -> float:
    raise ValueError(f"it holds {number}, which is no number of JSON")


def _finite(number: str) -> float:
    return float(number) if math.isfinite(float(number)) else _refuse(number)


def _plausible(number: str) -> int:
    """A whole number that is one as a float too."""
    float(int(number))
    return int(number)


TEMPORARY: Final = ".tmp"
"""How the names of half-written files end."""


class StoreFullError(StoreError):
    """No space is left for a file. What was finished before is kept."""


def dump(value: Any, indent: int | None = None) -> str:
    """JSON with sorted keys. Raises ValueError for nan and infinity: say null and give a reason instead."""
    return json.dumps(value, sort_keys=True, indent=indent, ensure_ascii=False, allow_nan=False)


def finite(value: float) -> float | None:
    """The number, or None where it is nan or infinite, as it goes into files."""
    return float(value) if math.isfinite(value) else None


def write_atomic(path: Path, text: str, flushed: bool = True) -> None:
    """Replace `path` by `text` in one go. `flushed` and what it raises as of `replacing`."""
    with replacing(path, flushed) as file:
        file.write(text.encode())


@contextmanager
def replacing(path: Path, flushed: bool = True) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` in one go: temporary file beside it, fsync, rename.

    flushed: before the rename it has reached the disk; without, for thousands of files that are made again from others,
    a power cut may empty it. Raises `StoreFullError`, `StoreError`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            if flushed:
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


# ---- leases ----

STALE_AFTER_S: Final = 180.0
"""How long a run, or who works on it, may show no life; network file systems see changes up to a minute late."""
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
        mine = folder / f"lease-{1 if newest is None else _lease_number(newest) + 1}.json"
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
    content = {"owner": owner.name, "machine": _machine(), "pid": me.pid, "started_ticks": me.started_ticks}
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


def _lease_number(path: Path) -> int:
    return int(path.stem.partition("-")[2])


# ---- the disk cache ----

TOP: Final = Path(__file__).resolve().parents[2]
DEPENDS_ON: Final = ("reference_impls", "suite/workloads", "suite/runs")
KEPT_CODES: Final = 8
"""Of so many states of the code the answers are kept; those of the oldest go."""


def disk_cached(question: list[Any], work_out: Callable[[], Any]) -> Any:
    """The answer to a question as plain JSON: kept from before, or worked out and kept. Its errors pass through."""
    try:
        path = cache_folder() / f"{identity(question)}.json"
    except CanonicalError:  # whoever works it out says what is wrong
        return work_out()
    with suppress(OSError, ValueError):  # none yet, or a damaged file
        return json.loads(path.read_text(encoding="utf-8"))
    answer = work_out()
    with suppress(OSError, StoreError):  # then it is found out again the next time
        if not path.parent.exists():
            _remove_oldest(path.parent.parent)
        write_atomic(path, dump(answer))
    return answer


def cache_folder() -> Path:
    """Where the answers of this code lie."""
    given = os.environ.get("BANDWISE_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "bandwise")
    return Path(given or base) / _code_hash()


@functools.cache
def _code_hash() -> str:
    """Hash of all that an answer may depend on."""
    versions = [platform.python_version(), importlib.metadata.version("torch")]
    digest = hashlib.sha256(repr(versions).encode())
    for name in DEPENDS_ON:
        for path in sorted((TOP / name).rglob("*.py")):
            digest.update(str(path.relative_to(TOP)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:ID_DIGITS]


def _remove_oldest(base: Path) -> None:
    """Make room for one more state of the code."""
    known = sorted(base.glob("*/"), key=lambda path: path.stat().st_mtime) if base.exists() else []
    for old in known[: max(0, len(known) - KEPT_CODES + 1)]:
        shutil.rmtree(old, ignore_errors=True)
