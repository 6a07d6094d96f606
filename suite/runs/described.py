"""Files described once: what each key holds, means and when it is there; checks and JSON Schemas come of that.

A shape says what a value may be. `problems` names where a value differs from it, and `json_schema` says the same in the
words of JSON Schema (2020-12), so that others can check our files without our code. Keys that are not described are
kept and passed over: a newer version may have added them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_NAMES: Final = {"text": "a text", "int": "a whole number", "number": "a number", "flag": "true or false"}
_TYPES: Final = {"text": "string", "int": "integer", "number": "number", "flag": "boolean"}


@dataclass(frozen=True)
class Scalar:
    """A text, a whole number, a number or a flag.

    minimum: of numbers. choices: the only values. pattern: that a whole text matches. longest: characters of a text.
    """

    kind: Literal["text", "int", "number", "flag"]
    minimum: float | None = None
    choices: tuple[Any, ...] = ()
    pattern: str = ""
    longest: int | None = None


@dataclass(frozen=True)
class Each:
    """A mapping from names to values of one shape."""

    of: Shape


@dataclass(frozen=True)
class Listed:
    """A list of values of one shape."""

    of: Shape


@dataclass(frozen=True)
class Anything:
    """Any value of JSON."""


@dataclass(frozen=True)
class Record:
    """A mapping with described keys."""

    keys: tuple[Key, ...]


Shape = Scalar | Each | Listed | Anything | Record


@dataclass(frozen=True)
class Key:
    """A key of a record.

    meaning: with its unit, if it has one. null: what null means in it; empty where null is not allowed. when: "always",
    "sometimes" (with the condition in its meaning), or the name of a group, whose keys are there all or none. since: the
    version of the file that has it first.
    """

    name: str
    shape: Shape
    meaning: str
    null: str = ""
    when: str = "always"
    since: int = 1


def problems(value: Any, shape: Shape, where: str = "") -> Iterator[str]:
    """Where a value differs from its shape, a clause each; none where it fits."""
    if isinstance(shape, Scalar):
        yield from _scalar_problems(value, shape, where)
    elif isinstance(shape, Listed):
        if not isinstance(value, list):
            yield f"{where or 'it'} is {_short(value)}, not a list"
            return
        for number, one in enumerate(value):
            yield from problems(one, shape.of, f"{where}[{number}]")
    elif isinstance(shape, Each):
        if not isinstance(value, dict):
            yield f"{where or 'it'} is {_short(value)}, not a mapping"
            return
        for name, one in value.items():
            yield from problems(one, shape.of, f"{where}.{_clip(name)}")
    elif isinstance(shape, Record):
        yield from _record_problems(value, shape, where)


def json_schema(record: Record, title: str, about: str, identity: str, version: int) -> dict[str, Any]:
    """The JSON Schema of that version of a file."""
    return {
        "$schema": DRAFT,
        "$id": identity,
        "title": title,
        "description": about,
        **_schema(record, version),
    }


def groups(record: Record) -> dict[str, tuple[str, ...]]:
    """Keys that are there all or none, by the name of their group."""
    found: dict[str, tuple[str, ...]] = {}
    for key in record.keys:
        if key.when not in {"always", "sometimes"}:
            found[key.when] = (*found.get(key.when, ()), key.name)
    return found


def _plainly_fits(value: Any, shape: Shape) -> bool:
    """Whether a value is beyond doubt what its shape asks for: a short way past most of what thousands of files hold."""
    if not isinstance(shape, Scalar):
        return False
    if shape.choices or shape.pattern or shape.longest is not None:
        return False
    kind = type(value)
    if kind is int or kind is float:
        known = shape.kind == "number" or (shape.kind == "int" and kind is int)
        return known and (shape.minimum is None or value >= shape.minimum)
    return (shape.kind == "text" and kind is str) or (shape.kind == "flag" and kind is bool)


def _scalar_problems(value: Any, shape: Scalar, where: str) -> Iterator[str]:
    if shape.kind == "text":
        fits = isinstance(value, str)
    elif shape.kind == "flag":
        fits = isinstance(value, bool)
    else:
        number = int if shape.kind == "int" else (int, float)
        fits = isinstance(value, number) and not isinstance(value, bool)
    if not fits:
        yield f"{where or 'it'} is {_short(value)}, not {_NAMES[shape.kind]}"
    elif shape.choices and value not in shape.choices:
        yield f"{where} is {_short(value)}, not one of {', '.join(map(str, shape.choices))}"
    elif shape.minimum is not None and value < shape.minimum:
        yield f"{where} is {_short(value)}, less than {shape.minimum:g}"
    elif shape.longest is not None and len(value) > shape.longest:
        yield f"{where} has {len(value)} characters, more than {shape.longest}"
    elif shape.pattern and not re.fullmatch(shape.pattern, value):
        yield f"{where} is {_short(value)}, which does not match {shape.pattern}"


def _record_problems(value: Any, shape: Record, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where or 'it'} is {_short(value)}, not a mapping"
        return
    inside = f"{where}." if where else ""
    for key in shape.keys:
        if key.name in value:
            found = value[key.name]
            if (found is not None or not key.null) and not _plainly_fits(found, key.shape):
                yield from problems(found, key.shape, f"{inside}{key.name}")
        elif key.when == "always":
            yield f"{inside}{key.name} is missing"
    for members in groups(shape).values():
        missing = [name for name in members if name not in value]
        if missing and len(missing) < len(members):
            yield f"{inside}{missing[0]} is missing"


def _schema(shape: Shape, version: int) -> dict[str, Any]:
    if isinstance(shape, Scalar):
        given = {
            "type": _TYPES[shape.kind],
            "enum": list(shape.choices) or None,
            "minimum": shape.minimum,
            "pattern": f"^(?:{shape.pattern})$" if shape.pattern else None,
            "maxLength": shape.longest,
        }
        return {name: one for name, one in given.items() if one is not None}
    if isinstance(shape, Listed):
        return {"type": "array", "items": _schema(shape.of, version)}
    if isinstance(shape, Each):
        return {"type": "object", "additionalProperties": _schema(shape.of, version)}
    if isinstance(shape, Record):
        return _record_schema(Record(tuple(key for key in shape.keys if key.since <= version)), version)
    return {}


def _record_schema(shape: Record, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "object",
        "required": [key.name for key in shape.keys if key.when == "always"],
        "properties": {key.name: _key_schema(key, version) for key in shape.keys},
    }
    together = [
        {
            "anyOf": [
                {"required": list(members)},
                {"not": {"anyOf": [{"required": [name]} for name in members]}},
            ]
        }
        for members in groups(shape).values()
    ]
    return {**found, "allOf": together} if together else found


def _key_schema(key: Key, version: int) -> dict[str, Any]:
    about = key.meaning + (f" Null: {key.null}." if key.null else "")
    schema = _schema(key.shape, version)
    if key.null:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return {"description": about, **schema}


def _short(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return "a mapping" if isinstance(value, Mapping) else "a list"
    return _clip(repr(value))


def _clip(text: str, longest: int = 60) -> str:
    return text if len(text) <= longest else text[:longest] + "..."
