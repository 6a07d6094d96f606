"""Canonical JSON: one text for one value, so that its hash can be an identity.

Sorted keys, no blanks, the shortest form of every float (Python's own), UTF-8. What has no unambiguous text is
refused: nan and infinity, keys that are not strings, objects.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

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
