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
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
)
from yaml.reader import ReaderError

from reference_impls.core.errors import nearest

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
class Process:
    """One process: ``pid``, which is used again after its end, and ``started_ticks``, clock ticks since boot, which is not."""

    pid: int
    started_ticks: int

    @classmethod
    def of(cls, pid: int) -> Process:
        """The process that has ``pid`` now. Raises ProcessLookupError where there is none."""
        stat = _stat(pid)
        if stat is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, int(stat[19]))

    def alive(self) -> bool:
        """True while this very process runs; a zombie, which only waits to be reaped, counts as ended."""
        stat = _stat(self.pid)
        return stat is not None and int(stat[19]) == self.started_ticks and stat[0] not in "ZX"


def _stat(pid: int) -> list[str] | None:
    """Fields of ``/proc/<pid>/stat`` from the third (state) on; None where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()  # the name in brackets may itself hold blanks and brackets


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


# ---- YAML files, and models of what stands in them


LONGEST: Final = 60
"""Characters of a wrong value that are shown."""

_WORDS: Final = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+\Z")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
"""The keys and list positions that lead to a value from the top of its document."""

JSON: Final = ConfigDict(strict=True, extra="allow")
"""Of values that programs write: no type is guessed, and keys that a newer version added are kept and passed over."""


class YamlError(ValueError):
    """A YAML file is wrong; the message gives file, line and key."""


def _several(value: Any) -> Any:
    """One value alone counts as a list of one."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class _RepeatedError(ValueError):
    """A list has a value again."""

    def __init__(self, number: int) -> None:
        super().__init__("is given twice: name each value once")
        self.number = number


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for number, value in enumerate(values):
        if value in values[:number]:
            raise _RepeatedError(number)
    return values


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("has no value: give one, or leave the key out")
    return value


GIVEN: Final = BeforeValidator(_not_null)
"""For a key that may be left out, but not be given without a value."""
DISTINCT: Final = AfterValidator(_distinct)
"""For a list that may not have a value twice."""
Words = Annotated[tuple[str, ...], BeforeValidator(_several), Field(min_length=1), DISTINCT]
"""One word or several, each once."""
Integers = Annotated[tuple[int, ...], BeforeValidator(_several), Field(min_length=1), DISTINCT]
"""One whole number or several, each once."""
Numbers = Annotated[tuple[float, ...], BeforeValidator(_several), Field(min_length=1)]
"""One number or several."""
AS_TUPLE: Final = BeforeValidator(_listed)
"""For a tuple that a file gives as a list."""
ONE_OR_MORE: Final = BeforeValidator(_several)
"""The same, where one value alone counts as a list of one."""
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0)]


class Entry(BaseModel):
    """A mapping of a YAML file; it knows where it stands, which is no part of its value."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    _file: YamlFile | None = PrivateAttr(default=None)
    _path: KeyPath = PrivateAttr(default=())

    @property
    def key(self) -> str:
        """The key under which it stands."""
        return str(self._path[-1])

    @property
    def line(self) -> int:
        """Its line, from 1."""
        return self._source.line(self._path)

    def given(self, key: str) -> bool:
        """Whether the file gives this key, or leaves it to its default."""
        return (*self._path, key) in self._source.lines

    def error(self, key: str, what: str) -> YamlError:
        """The error that says `what` about one of its keys, with file and line."""
        return self._source.error((*self._path, *((key,) if key else ())), what)

    @property
    def _source(self) -> YamlFile:
        return self._file or YamlFile(Path("nowhere"), {}, {(): ("nowhere", 0)})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment] # they hold mappings


@dataclass(frozen=True)
class YamlFile:
    """A YAML file: plain data, and of every value the file (a base's, it may be) and the line from 1 on which it stands."""

    path: Path
    data: Any
    lines: Mapping[KeyPath, tuple[str, int]] = field(repr=False)

    @classmethod
    def load(cls, path: Path, label: str | None = None) -> YamlFile:
        """Read a file. Raises `YamlError`.

        Args:
            path: of the file.
            label: stands for the path in errors; the file's name without one.
        """
        return cls.loads(read_text(path, label), label or path.name, path)

    @classmethod
    def loads(cls, text: str, label: str, path: Path | None = None) -> YamlFile:
        """Read text; `label` names it in errors. Raises `YamlError`."""
        lines: dict[KeyPath, tuple[str, int]] = {}
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            lines[()] = (label, node.start_mark.line + 1 if node else 1)
            data = _plain(node, label, (), lines, set()) if node else {}
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            begun = (
                f" ({error.context} begun on line {error.context_mark.line + 1})"
                if error.context_mark
                else ""
            )
            line = mark.line + 1 if mark else 1
            raise YamlError(f"{label}:{line}: not YAML: {error.problem}{begun}") from None
        except ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            raise YamlError(
                f"{label}:{line}: not YAML: character {error.character:#x}, {error.reason}"
            ) from None
        except RecursionError:
            raise YamlError(f"{label}:1: values are nested too deeply") from None
        return cls(path or Path(label), data, lines)

    def over(self, base: YamlFile) -> YamlFile:
        """This file with another laid under it: its keys replace the base's, and all keep their lines."""
        own = self.data if isinstance(self.data, dict) else {}
        kept = {
            path: line
            for path, line in base.lines.items()
            if path and path[0] not in own and path[0] in base.data
        }
        return YamlFile(self.path, {**base.data, **own}, {**kept, **self.lines})

    def top(self, key: str, kind: type[T], default: T) -> T:
        """A key of the top level before the whole is read. Raises `YamlError`."""
        if not isinstance(self.data, dict):
            raise self.error((), f"must be a mapping, not {_show(self.data)}")
        if key not in self.data:
            return default
        try:
            found: T = _adapter(kind).validate_python(self.data[key], strict=True)
        except ValidationError as error:
            raise self._wrong(error, kind, (key,)) from None
        return found

    def read(self, kind: type[T], *at: str | int) -> T:
        """The file, or what stands at a path in it, as a model. Raises `YamlError`."""
        data = self.data
        for key in at:
            data = data[key]
        try:
            found: T = _adapter(kind).validate_python(data)
        except ValidationError as error:
            raise self._wrong(error, kind, at) from None
        self._placed(found, at)
        return found

    def line(self, path: KeyPath) -> int:
        """The line of a value; where it is not given, of what it would stand in."""
        return self._where(path)[1]

    def place(self, path: KeyPath) -> str:
        """``file:line`` of the same."""
        return "{}:{}".format(*self._where(path))

    def error(self, path: KeyPath, what: str) -> YamlError:
        """The error that says `what` about a key, with file and line."""
        colon = "" if what.startswith("is missing") else ":"
        return YamlError(f"{self.place(path)}: {self._named(path)}{colon} {what}")

    def _where(self, path: KeyPath) -> tuple[str, int]:
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]

    def _named(self, path: KeyPath) -> str:
        return f"key '{_dotted(self.data, path)}'" if path else "the top level"

    def _wrong(self, error: ValidationError, kind: Any, at: KeyPath) -> YamlError:
        path, clause = _first(error, kind, self.data, at)
        return YamlError(f"{self.place(path)}: {clause}")

    def _placed(self, found: Any, path: KeyPath) -> None:
        """Tell every entry where it stands."""
        if isinstance(found, Entry):
            found._file, found._path = self, path
            for name, about in type(found).model_fields.items():
                self._placed(getattr(found, name), (*path, about.alias or name))
        elif isinstance(found, dict):
            for key, value in found.items():
                self._placed(value, (*path, key))
        elif isinstance(found, tuple):
            for number, value in enumerate(found):
                self._placed(value, (*path, number))


def scalar(text: str) -> Any:
    """A plain scalar's value: null, true, false, a whole number, a number, or else the word itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text


def read_text(path: Path, label: str | None = None) -> str:
    """The text of a YAML file.

    Args:
        path: of the file.
        label: stands for the path in errors; the file's name without one.

    Returns:
        The text.

    Raises:
        YamlError: The file is none, cannot be read, or is not UTF-8.
    """
    name = label or path.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise YamlError(f"{name}:1: cannot be read: {error.strerror}") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise YamlError(
            f"{name}:{line}: byte {content[error.start]:#x} is not UTF-8: save the file as UTF-8"
        ) from None


def _plain(
    node: yaml.Node, label: str, path: KeyPath, lines: dict[KeyPath, tuple[str, int]], seen: set[int]
) -> Any:
    """The value of a node.

    Args:
        node: as composed.
        label: names the file in errors.
        path: leads to the node.
        lines: gets the place of all that is in it, of a key's value that of the key.
        seen: the ids of nodes; one that comes again is an alias.

    Returns:
        Plain data.

    Raises:
        YamlError: There is an alias, a merge key, a key twice, or a scalar that is no value.
    """
    where = ".".join(map(str, path)) or "the top level"
    if id(node) in seen:
        line = lines.get(path, lines.get(path[:-1], ("", 1)))[1]
        raise YamlError(f"{label}:{line}: '{where}' has an alias, which is not read: write the value out")
    seen.add(id(node))
    lines.setdefault(path, (label, node.start_mark.line + 1))
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, label)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, label, (*path, number), lines, seen) for number, item in enumerate(node.value)]
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise YamlError(f"{label}:{line}: a key under '{where}' must be one word")
        if key_node.value == "<<" and key_node.style is None:
            raise YamlError(
                f"{label}:{line}: a merge key under '{where}', which is not read: write its keys out"
            )
        _scalar(key_node, label)
        key = str(key_node.value)
        inside = (*path, key)
        if key in found:
            raise YamlError(
                f"{label}:{line}: key '{'.'.join(map(str, inside))}' is given twice, first on line {lines[inside][1]}"
            )
        lines[inside] = (label, line)
        found[key] = _plain(value_node, label, inside, lines, seen)
    return found


def _scalar(node: yaml.ScalarNode, label: str) -> Any:
    """The value of a scalar. Raises `YamlError` for characters that no file may hold, and numbers too long to read."""
    line = node.start_mark.line + 1
    if odd := _CONTROL.search(node.value):
        raise YamlError(
            f"{label}:{line}: character {ord(odd[0]):#x} in {_clip(repr(node.value))}: leave it out"
        )
    try:
        return scalar(node.value) if node.style is None else node.value
    except ValueError:
        raise YamlError(f"{label}:{line}: a number of {len(node.value)} digits: give fewer") from None


def checked(kind: Any, value: Any) -> Any:
    """A value of JSON as its model. Raises ValueError, whose message is one clause: the key, and what is wrong with it."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as error:
        raise ValueError(clause_of(error, kind, value)) from None


def problem(kind: Any, value: Any) -> str | None:
    """What keeps a value of JSON from being what is declared, in one clause; None where it fits."""
    try:
        checked(kind, value)
    except ValueError as error:
        return str(error)
    return None


def clause_of(error: ValidationError, kind: Any, value: Any = None) -> str:
    """The first thing that is wrong with a value, in one clause."""
    return _first(error, kind, value, ())[1]


_adapter: Final[Callable[[Any], TypeAdapter[Any]]] = cache(TypeAdapter)


_KINDS: Final = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a word",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "dataclass_type": "a mapping",
}
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "above"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "below"),
}


def _first(error: ValidationError, kind: Any, document: Any, at: KeyPath) -> tuple[KeyPath, str]:
    """Path and clause of the first thing that pydantic found wrong with what stands at a path of a document."""
    wrong = error.errors(include_url=False)[0]
    what, given, about = wrong["type"], wrong["input"], wrong.get("ctx", {})
    path: KeyPath = (*at, *(key for key in wrong["loc"] if key != "[key]"))
    name = f"key '{_dotted(document, path)}'" if path else "the top level"
    if what == "missing":
        meaning = _schema_at(kind, wrong["loc"]).get("description", "")
        return path, f"{name} is missing" + (f": {meaning.rstrip('.')}" if meaning else "")
    if what in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _schema_at(kind, wrong["loc"][:-1]).get("properties", {})
        return path, f"unknown {name}{nearest(str(path[-1]), known)}"
    if what in _KINDS:
        return path, f"{name} must be {_KINDS[what]}, not {_show(given)}"
    if what in _BOUNDS:
        bound, words = _BOUNDS[what]
        return path, f"{name}: must be {words} {about[bound]:g}, not {_show(given)}"
    if what == "literal_error":
        known = [str(one) for one in _schema_at(kind, wrong["loc"]).get("enum", ())] or [about["expected"]]
        return path, f"{name}: {_show(given)} is none of {', '.join(known)}{_close(given, known)}"
    if what == "string_pattern_mismatch":
        return path, f"{name}: {_show(given)} does not match {about['pattern']}"
    if what == "string_too_long":
        return path, f"{name}: has {len(given)} characters, more than {about['max_length']}"
    if what == "too_short":
        return path, f"{name}: the list is empty"
    if what == "value_error" and isinstance(about["error"], _RepeatedError):
        path = (*path, about["error"].number)
        return path, f"key '{_dotted(document, path)}': {_show(given[path[-1]])} {about['error']}"
    if what == "value_error":
        return path, f"{name}: {about['error']}"
    return path, f"{name}: {wrong['msg']}"


def _close(given: Any, known: list[str]) -> str:
    """A hint where one of the known words is close; the others stand in the sentence already."""
    hint = nearest(given, known) if isinstance(given, str) else ""
    return hint if "did you mean" in hint else ""


def _dotted(document: Any, path: KeyPath) -> str:
    """A path as people write it, ``arms.plain.lr`` or ``links[0].rate``; a value alone is no list of one."""
    text = ""
    for key in path:
        if isinstance(key, str):
            text += f".{_clip(key)}" if text else _clip(key)
            document = document.get(key) if isinstance(document, dict) else None
        elif isinstance(document, list):
            text += f"[{key}]"
            document = document[key] if key < len(document) else None
    return text


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else _clip(repr(value))


def _clip(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


@cache
def _schema(kind: Any) -> dict[str, Any]:
    return _adapter(kind).json_schema()


def _additional(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("additionalProperties")
    return found if isinstance(found, dict) else {}


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a schema says itself, past references and past being null."""
    if "$ref" in schema:
        return _resolved(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    for one in schema.get("anyOf", ()):
        if one.get("type") != "null":
            return _resolved(one, root)
    return schema


def _schema_at(kind: Any, path: KeyPath) -> dict[str, Any]:
    """What is declared at a path, empty where nothing is."""
    root = _schema(kind)
    found: Mapping[str, Any] = _resolved(root, root)
    for key in path:
        inside = (
            found.get("items", {})
            if isinstance(key, int)
            else found.get("properties", {}).get(key) or _additional(found)
        )
        found = {**_resolved(inside, root), **{k: v for k, v in inside.items() if k == "description"}}
    return dict(found)
