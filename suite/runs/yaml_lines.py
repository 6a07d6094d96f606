"""YAML for people: every value knows its line, keys may not repeat, and numbers are what they look like.

A `Section` is a mapping that is read key by key; `finish` refuses what nobody asked for. Every error names file,
line and key. Plain scalars are read as in YAML 1.2 (``1e-6`` is a number, ``no`` is a word), not as in 1.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from reference_impls.errors import nearest

_WORDS: Final = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER: Final = re.compile(r"[-+]?[0-9]+\Z")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_KINDS: Final = {
    int: "a whole number",
    float: "a number",
    str: "a word",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
}

T = TypeVar("T")


class YamlError(ValueError):
    """A YAML file is wrong; the message gives file, line and key."""


@dataclass(frozen=True)
class Value:
    """A value and the line (from 1) it stands on. Mappings hold str -> Value, lists hold Values."""

    content: Any
    line: int
    file: str

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.line}"

    def plain(self) -> Any:
        """The value without lines."""
        if isinstance(self.content, dict):
            return {key: item.plain() for key, item in self.content.items()}
        if isinstance(self.content, list):
            return [item.plain() for item in self.content]
        return self.content


class Section:
    """A mapping under `path` (dotted keys from the top of the file) that is read key by key."""

    def __init__(self, value: Value, path: str = "") -> None:
        if not isinstance(value.content, dict):
            where = f"key '{path}'" if path else "the top level"
            raise YamlError(f"{value.place}: {where} must be a mapping, not {_show(value)}")
        self.value = value
        self.path = path
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self.value.content

    def keys(self) -> list[str]:
        """The keys in the order of the file."""
        return list(self.value.content)

    def raw(self, key: str) -> Value | None:
        """The value with its line, or None; counts as asked for."""
        self._asked.add(key)
        found: Value | None = self.value.content.get(key)
        return found

    def need(self, key: str, kind: type[T]) -> T:
        """The value of `key`, which must be there and of that kind."""
        found = self.raw(key)
        if found is None:
            raise YamlError(f"{self.value.place}: key '{self._full(key)}' is missing: give {_KINDS[kind]}")
        return self._typed(key, found, kind)

    def get(self, key: str, kind: type[T], default: T) -> T:
        """The value of `key`, or `default` when it is not given."""
        found = self.raw(key)
        return default if found is None else self._typed(key, found, kind)

    def section(self, key: str) -> Section:
        """The mapping under `key`; empty when it is not given."""
        found = self.raw(key)
        return Section(found or Value({}, self.value.line, self.value.file), self._full(key))

    def words(self, key: str, default: list[str] | None = None) -> list[str]:
        """A list of words; one word alone counts as a list of one."""
        return [str(item) for item in self._items(key, str, default)]

    def integers(self, key: str, default: list[int] | None = None) -> list[int]:
        """A list of whole numbers; one alone counts as a list of one."""
        return [int(item) for item in self._items(key, int, default)]

    def numbers(self, key: str) -> list[float]:
        """A list of numbers; one alone counts as a list of one."""
        return [float(item) for item in self._items(key, float, None)]

    def error(self, key: str, what: str) -> YamlError:
        """The error that says `what` about `key`, with file and line."""
        found = self.value.content.get(key)
        return YamlError(f"{(found or self.value).place}: key '{self._full(key)}': {what}")

    def finish(self) -> None:
        """Refuse keys that were never asked for, with the nearest one that was."""
        for key, item in self.value.content.items():
            if key not in self._asked:
                raise YamlError(f"{item.place}: unknown key '{self._full(key)}'{nearest(key, self._asked)}")

    def _full(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _items(self, key: str, kind: type, default: list[Any] | None) -> list[Any]:
        found = self.raw(key)
        if found is None:
            if default is None:
                raise YamlError(f"{self.value.place}: key '{self._full(key)}' is missing: give a list")
            return default
        items = found.content if isinstance(found.content, list) else [found]
        if not items:
            raise self.error(key, "the list is empty")
        return [self._typed(key, item, kind) for item in items]

    def _typed(self, key: str, found: Value, kind: type[T]) -> T:
        content = found.plain()
        if kind is float and type(content) is int:
            content = float(content)
        if type(content) is not kind:
            raise YamlError(
                f"{found.place}: key '{self._full(key)}' must be {_KINDS[kind]}, not {_show(found)}"
            )
        result: T = content
        return result


def load(path: Path, label: str | None = None) -> Value:
    """Read a YAML file; `label` stands for the path in errors. Raises `YamlError`."""
    return loads(path.read_text(encoding="utf-8"), label or str(path))


def loads(text: str, label: str) -> Value:
    """Read YAML text; `label` names it in errors. Raises `YamlError`."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        begun = (
            f" ({error.context} begun on line {error.context_mark.line + 1})" if error.context_mark else ""
        )
        line = mark.line + 1 if mark else 1
        raise YamlError(f"{label}:{line}: not YAML: {error.problem}{begun}") from None
    except yaml.YAMLError as error:
        raise YamlError(f"{label}: not YAML: {error}") from None
    return Value({}, 1, label) if node is None else _read(node, label, "")


def scalar(text: str) -> Any:
    """A plain scalar's value: null, true, false, a whole number, a number, or else the word itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INTEGER.match(text):
        return int(text)
    return float(text) if _FLOAT.match(text) else text


def _read(node: yaml.Node, label: str, path: str) -> Value:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.ScalarNode):
        return Value(scalar(node.value) if node.style is None else node.value, line, label)
    if isinstance(node, yaml.SequenceNode):
        return Value([_read(item, label, f"{path}[{i}]") for i, item in enumerate(node.value)], line, label)
    found: dict[str, Value] = {}
    for key_node, value_node in node.value:
        key_line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise YamlError(f"{label}:{key_line}: a key under '{path or 'the top level'}' must be one word")
        key = str(key_node.value)
        full = f"{path}.{key}" if path else key
        if key in found:
            raise YamlError(
                f"{label}:{key_line}: key '{full}' is given twice, first on line {found[key].line}"
            )
        item = _read(value_node, label, full)
        found[key] = Value(item.content, key_line, label)
    return Value(found, line, label)


def _show(value: Value) -> str:
    if isinstance(value.content, dict | list):
        return _KINDS[type(value.content)]
    return "nothing" if value.content is None else repr(value.content)
