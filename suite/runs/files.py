"""Values as text, files as they are found, files that are replaced whole, YAML that people write, and what is worked out once and
kept.

*Canonical JSON* is one text for one value, so that its hash can be an identity: sorted keys, no blanks, the shortest form of
every float (Python's own), UTF-8. What has no unambiguous text is refused: nan and infinity, keys that are not strings,
objects.

*Reading.* A results folder may come from another machine, another hand, or a disk that failed. So a file is read only if it is
a regular one and no link, of a size that can be meant, in UTF-8; and its JSON only if it has one meaning: no NaN or infinity,
no key twice. Nothing that is read is ever executed.

*Writing.* What is written is written beside its place, flushed to disk and renamed: a reader never sees half of a file, and a
kill or a full disk leaves the old one or the new one.

*YAML* is for people. A kind of data is declared once, as a pydantic model: types, bounds, meaning, defaults. A `YamlFile` knows
the line of every value; keys may not repeat, plain scalars are read as in YAML 1.2 (``1e-6`` is a number, ``no`` a word), a base
may be laid under it; aliases and merge keys are refused, since a value would have two lines, or none (and a few lines could stand
for a million). `YamlFile.read` makes a model of it, whose `Entry` objects know where they stand, so that whoever finds a
contradiction later can still name file, line and key. `checked` does the same for values of JSON.

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
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
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
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):  # a pipe would block
        raise RefusedError(path, "is no regular file", fix)
    if found.st_size > limit_bytes:
        raise RefusedError(path, f"has {found.st_size} bytes, more than the {limit_bytes} that are read", fix)
    return path.read_bytes()


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
    """A file to write that takes the place of `path` in one go: temporary file beside it, fsync, rename. What is no file, such as
    /dev/null or a pipe, is written to, since a rename as root would put a file in its place.

    flushed: before the rename it has reached the disk; without, for thousands of files that are made again from others,
    a power cut may empty it. Raises `StoreError`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            with path.open("wb") as file:
                yield file
            return
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
        return StoreError(
            f"no space left for {path}: free some, or name another place with --results; finished results are "
            "kept, and the same command goes on from here"
        )
    return StoreError(f"cannot write {path}: {error.strerror}; check its rights, or use --results")


# ---- the disk cache ----

TOP: Final = Path(__file__).resolve().parents[2]
DEPENDS_ON: Final = ("reference_impls", "suite/workloads", "suite/runs")
KEPT_CODES: Final = 8
"""Of so many states of the code the answers are kept; those of the oldest go."""


def disk_cached(question: list[Any], work_out: Callable[[], Any], *, ours: bool = True) -> Any:
    """The answer to a question as plain JSON: kept from before, or worked out and kept. Its errors pass through.

    ours: whether it follows from the project's own code alone; else it is worked out each time.
    """
    if not ours:
        return work_out()
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


class _RepeatedError(ValueError):
    """A list has a value again, at this place."""

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
AS_TUPLE: Final = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""For a tuple that a file gives as a list."""
ONE_OR_MORE: Final = BeforeValidator(
    lambda value: tuple(value) if isinstance(value, list | tuple) else (value,)
)
"""The same, where one value alone counts as a list of one."""
Words = Annotated[tuple[str, ...], ONE_OR_MORE, Field(min_length=1), DISTINCT]
Numbers = Annotated[tuple[float, ...], ONE_OR_MORE, Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Positives = Annotated[tuple[Positive, ...], ONE_OR_MORE, Field(min_length=1), DISTINCT]
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
        return self._source.where(self._path)[1]

    def given(self, key: str) -> bool:
        """Whether the file gives this key, or leaves it to its default."""
        return (*self._path, key) in self._source.lines

    def error(self, key: str, what: str) -> YamlError:
        """The error that says `what` about one of its keys, with file and line."""
        return self._source.error((*self._path, *((key,) if key else ())), what)

    def known(self, key: str, given: Iterable[str], names: Collection[str], what: str = "arm") -> None:
        """Raise the error of a key that names what there is not, with the nearest match."""
        for one in given:
            if one not in names:
                raise self.error(key, f"no {what} '{one}'{nearest(one, names)}")

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
    def load(cls, path: Path) -> YamlFile:
        """Read a file. Raises `YamlError`."""
        return cls.loads(read_text(path), path.name, path)

    @classmethod
    def loads(cls, text: str, label: str, path: Path | None = None) -> YamlFile:
        """Read text; `label` names it in errors. Raises `YamlError`."""
        lines: dict[KeyPath, tuple[str, int]] = {}
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            lines[()] = (label, node.start_mark.line + 1 if node else 1)
            return cls(path or Path(label), _plain(node, label, (), lines, set()) if node else {}, lines)
        except yaml.MarkedYAMLError as error:
            begun, mark = error.context_mark, error.problem_mark or error.context_mark
            since = f" ({error.context} begun on line {begun.line + 1})" if begun else ""
            line, what = mark.line + 1 if mark else 1, f"not YAML: {error.problem}{since}"
        except ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            what = f"not YAML: character {error.character:#x}, {error.reason}"
        except RecursionError:
            line, what = 1, "values are nested too deeply"
        raise YamlError(f"{label}:{line}: {what}")

    def over(self, base: YamlFile) -> YamlFile:
        """This file with another laid under it, both mappings: its keys replace the base's, and all keep their lines."""
        kept = {path: line for path, line in base.lines.items() if path and path[0] not in self.data}
        return YamlFile(self.path, {**base.data, **self.data}, {**kept, **self.lines})

    def top(self, key: str, kind: type[T], default: T) -> T:
        """A key of the top level before the whole is read. Raises `YamlError`."""
        if not isinstance(self.data, dict):
            raise self.error((), f"must be a mapping, not {_show(self.data)}")
        return self.read(kind, key) if key in self.data else default

    def read(self, kind: type[T], *at: str | int) -> T:
        """The file, or what stands at a path in it, as a model. Raises `YamlError`."""
        data = self.data
        for key in at:
            data = data[key]
        try:
            found: T = _adapter(kind).validate_python(data)
        except ValidationError as error:
            path, clause = _first(error, kind, self.data, at)
            raise YamlError("{}:{}: {}".format(*self.where(path), clause)) from None
        self._placed(found, at)
        return found

    def where(self, path: KeyPath) -> tuple[str, int]:
        """File and line of a value; where it is not given, of what it would stand in."""
        while path not in self.lines:
            path = path[:-1]
        return self.lines[path]

    def error(self, path: KeyPath, what: str) -> YamlError:
        """The error that says `what` about a key, with file and line."""
        colon = "" if what.startswith("is missing") else ":"
        return YamlError("{}:{}: {}{} {}".format(*self.where(path), _named(self.data, path), colon, what))

    def _placed(self, found: Any, path: KeyPath) -> None:
        """Tell every entry where it stands."""
        if isinstance(found, Entry):
            found._file, found._path = self, path
            for name, about in type(found).model_fields.items():
                self._placed(getattr(found, name), (*path, about.alias or name))
        elif isinstance(found, dict | tuple):
            for key, value in found.items() if isinstance(found, dict) else enumerate(found):
                self._placed(value, (*path, key))


def load_on_bases(
    path: Path, what: str, implied: Callable[[str], dict[str, Any]] = lambda base: {}, *above: Path
) -> YamlFile:
    """Read a file of that sort with its bases laid under it: what its key `base` names lies beside it. Raises `YamlError`.

    implied: keys that follow from the name of a base, where neither the base nor the file gives them.
    """
    file = YamlFile.load(path)
    base = file.top("base", str, "")
    if not base:
        return file
    if (here := path.resolve()) in above:
        raise file.error(("base",), f"the {what}s are based on each other in a circle")
    beside = path.parent / f"{base}.yaml"
    if not os.path.exists(beside):
        known = sorted(one.stem for one in path.parent.glob("*.yaml") if not one.stem.endswith("-lr"))
        raise file.error(("base",), f"no {what} '{base}'{nearest(base, known)}")
    below = load_on_bases(beside, what, implied, *above, here)
    return file.over(replace(below, data={**implied(base), **below.data}))


def read_text(path: Path) -> str:
    """The text of a YAML file. Raises `YamlError`."""
    try:
        content = path.read_bytes()
        return content.decode("utf-8")
    except OSError as error:
        raise YamlError(f"{path.name}:1: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise YamlError(
            f"{path.name}:{line}: byte {content[error.start]:#x} is not UTF-8: save the file as UTF-8"
        ) from None


def _plain(
    node: yaml.Node, label: str, path: KeyPath, lines: dict[KeyPath, tuple[str, int]], seen: set[int]
) -> Any:
    """The plain data of a node, and into `lines` the place of all that is in it, of a key's value that of the key; the id of a
    node that comes again is in `seen`: an alias. Raises `YamlError`.
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
    for key, value in node.value:
        at = f"{label}:{key.start_mark.line + 1}"
        if not isinstance(key, yaml.ScalarNode):
            raise YamlError(f"{at}: a key under '{where}' must be one word")
        if key.value == "<<" and key.style is None:
            raise YamlError(f"{at}: a merge key under '{where}', which is not read: write its keys out")
        _scalar(key, label)
        name, inside = str(key.value), (*path, str(key.value))
        if name in found:
            dotted, first = ".".join(map(str, inside)), lines[inside][1]
            raise YamlError(f"{at}: key '{dotted}' is given twice, first on line {first}")
        lines[inside] = (label, key.start_mark.line + 1)
        found[name] = _plain(value, label, inside, lines, seen)
    return found


def _scalar(node: yaml.ScalarNode, label: str) -> Any:
    """The value of a scalar: where it is plain null, true, false, a whole number, a number, or else the word itself. Raises
    `YamlError` for characters that no file may hold, and numbers too long to read.
    """
    text, line = node.value, node.start_mark.line + 1
    if odd := _CONTROL.search(text):
        raise YamlError(f"{label}:{line}: character {ord(odd[0]):#x} in {_clip(repr(text))}: leave it out")
    if node.style is not None:
        return text
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return int(text) if _INTEGER.match(text) else float(text) if _FLOAT.match(text) else text
    except ValueError:
        raise YamlError(f"{label}:{line}: a number of {len(text)} digits: give fewer") from None


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


_adapter: Final[Callable[[Any], TypeAdapter[Any]]] = functools.cache(TypeAdapter)
_WHOLE, _LIST, _MAPPING = (f" must be {what}, not {{}}" for what in ("a whole number", "a list", "a mapping"))
_CLAUSES: Final = {
    "int_type": _WHOLE,
    "int_from_float": _WHOLE,
    "float_type": " must be a number, not {}",
    "finite_number": " must be a finite number, not {}",
    "string_type": " must be a word, not {}",
    "bool_type": " must be true or false, not {}",
    "list_type": _LIST,
    "tuple_type": _LIST,
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "dataclass_type": _MAPPING,
    "greater_than_equal": ": must be at least {ge:g}, not {}",
    "greater_than": ": must be above {gt:g}, not {}",
    "less_than_equal": ": must be at most {le:g}, not {}",
    "less_than": ": must be below {lt:g}, not {}",
    "string_pattern_mismatch": ": {} does not match {pattern}",
    "string_too_long": ": has {length} characters, more than {max_length}",
    "too_short": ": the list is empty",
    "value_error": ": {error}",
}
"""What pydantic calls wrong -> what is said behind the key, of the value that is shown and of what pydantic knows."""


def _first(error: ValidationError, kind: Any, document: Any, at: KeyPath) -> tuple[KeyPath, str]:
    """Path and clause of the first thing that pydantic found wrong with what stands at a path of a document."""
    wrong = error.errors(include_url=False)[0]
    what, given, about = wrong["type"], wrong["input"], wrong.get("ctx", {})
    path: KeyPath = (*at, *(key for key in wrong["loc"] if key != "[key]"))
    name = _named(document, path)
    if what == "missing":
        meaning = _schema_at(kind, wrong["loc"]).get("description", "").rstrip(".")
        return path, f"{name} is missing" + (f": {meaning}" if meaning else "")
    if what in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _schema_at(kind, wrong["loc"][:-1]).get("properties", {})
        return path, f"unknown {name}{nearest(str(path[-1]), known)}"
    if what == "literal_error":
        known = [str(one) for one in _schema_at(kind, wrong["loc"]).get("enum", ())] or [about["expected"]]
        hint = nearest(given, known) if isinstance(given, str) else ""
        close = hint if "did you mean" in hint else ""  # the others stand in the sentence already
        return path, f"{name}: {_show(given)} is none of {', '.join(known)}{close}"
    if what == "value_error" and isinstance(twice := about["error"], _RepeatedError):
        path = (*path, twice.number)
        return path, f"{_named(document, path)}: {_show(given[twice.number])} {twice}"
    length = len(given) if isinstance(given, str) else 0
    clause = _CLAUSES.get(what, ": {msg}").format(_show(given), msg=wrong["msg"], length=length, **about)
    return path, f"{name}{clause}"


def _named(document: Any, path: KeyPath) -> str:
    """A key as people write it, ``arms.plain.lr`` or ``links[0].rate``; a value alone is no list of one."""
    text = ""
    for key in path:
        if isinstance(key, str):
            text += f".{_clip(key)}" if text else _clip(key)
            document = document.get(key) if isinstance(document, dict) else None
        elif isinstance(document, list):
            text += f"[{key}]"
            document = document[key] if key < len(document) else None
    return f"key '{text}'" if path else "the top level"


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else _clip(repr(value))


def _clip(text: str) -> str:
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


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
    root = _adapter(kind).json_schema()
    found: Mapping[str, Any] = _resolved(root, root)
    for key in path:
        further = found.get("items" if isinstance(key, int) else "additionalProperties", {})
        inside = found.get("properties", {}).get(key) or (further if isinstance(further, dict) else {})
        found = {**_resolved(inside, root), **{k: v for k, v in inside.items() if k == "description"}}
    return dict(found)
