"""What comes from outside, read as what it is declared to be, or refused in one line.

A kind of data is declared once, as a pydantic model: types, bounds, meaning, defaults. This module is all that stands between
those declarations and files. `YamlFile` is a file for people: every value knows its line, keys may not repeat, plain scalars
are read as in YAML 1.2 (``1e-6`` is a number, ``no`` a word), a base may be laid under it; aliases and merge keys are refused,
since a value would have two lines, or none (and a few lines could stand for a million). `YamlFile.read` makes a model of
it, whose `Entry` objects know where they stand, so that whoever finds a contradiction later can still name file, line and
key. `checked` does the same for values of JSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

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
