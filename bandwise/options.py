"""``--set key=value``: values as people type them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


class OptionError(ValueError):
    """An option on the command line cannot be read; the message shows the form."""


def parse_settings(settings: Sequence[str], flag: str = "--set") -> dict[str, Any]:
    """``["a=1", "b=never"]`` -> ``{"a": 1, "b": "never"}``. Raises `OptionError`."""
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise OptionError(f"{flag} {setting!r}: write {flag} key=value")
        if key in found:
            raise OptionError(f"{flag} {key} is given twice")
        found[key] = parse_value(text)
    return found


def parse_value(text: str) -> Any:
    """A number, true, false, null or a JSON list where the text is one; else the text itself."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text
    return text if isinstance(value, dict) else value


def _refuse(name: str) -> float:
    """NaN and Infinity are words here, not numbers."""
    raise ValueError(name)
