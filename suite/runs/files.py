"""Values as text, files as they are found, files that are replaced whole, and what is worked out once and kept.

*Canonical JSON* is one text for one value, so that its hash can be an identity: sorted keys, no blanks, the shortest form of
every float (Python's own), UTF-8. What has no unambiguous text is refused: nan and infinity, keys that are not strings,
objects.

*Reading.* A results folder may come from another machine, another hand, or a disk that failed. So a file is read only if it
is a regular one and no link, of a size that can be meant, in UTF-8; and its JSON only if it has one meaning: no NaN or
infinity, no key twice, no nesting that nothing of ours writes. Nothing that is read is ever executed.

*Writing.* What is written is written beside its place, flushed to disk and renamed: a reader never sees half of a file, and a
kill or a full disk leaves the old one or the new one.

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
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

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
MAX_DEPTH: Final = 24
"""How deep JSON may be nested; ours is nested eight deep."""
LARGEST: Final = 1 << 63
"""The largest whole number that can be meant; larger ones are no floats any more."""
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
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        _plausible(value, "\\u" in text)
    except json.JSONDecodeError as error:
        raise RefusedError(path, f"is damaged ({error})", fix) from None
    except RecursionError:
        raise RefusedError(path, f"is nested more than {MAX_DEPTH} deep", fix) from None
    except ValueError as error:
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


def _no_constant(name: str) -> float:
    raise ValueError(f"it holds {name}, which is no number of JSON")


def _plausible(value: Any, escapes: bool) -> None:
    """Raise ValueError for numbers that are infinite, nesting that is too deep, and halves of characters."""
    level = [value]
    for _ in range(MAX_DEPTH):
        deeper: list[Any] = []
        for one in level:
            inside = one.values() if type(one) is dict else one if type(one) is list else (one,)
            if escapes and any(map(_halved, (*inside, *(one if type(one) is dict else ())))):
                raise ValueError("a text in it holds half of a character")
            for found in inside:
                kind = type(found)
                if kind is dict or kind is list:
                    deeper.append(found)
                elif (kind is float and not math.isfinite(found)) or (kind is int and abs(found) > LARGEST):
                    raise ValueError("it holds a number that is too large")
        if not deeper:
            return
        level = deeper
    raise ValueError(f"it is nested more than {MAX_DEPTH} deep")


def _halved(value: Any) -> bool:
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


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
