"""Older results as today's: pure functions from one version of `result.json` to the next.

Readers never see an older version: `upgraded` is applied to whatever is read. What an older file did not record stays
unknown (null), it is not made up. Files on disk are rewritten only by `bandwise migrate`. A file of each version ever
written is frozen beside the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from suite.runs.formats import RESULT_VERSION

HIGHER: Final = frozenset({"accuracy"})
"""Scores of version 1, of which higher is better; it said so of the metric alone."""


class VersionError(ValueError):
    """A file is of a version that this code does not know, or of none."""


class NewerError(VersionError):
    """A file was written by a newer version of this project."""


def version_of(result: Any) -> int:
    """The version of a file's content. Raises `VersionError`."""
    if not isinstance(result, dict):
        raise VersionError("is not a mapping")
    version = result.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise VersionError("says no schema_version that ever was")
    if version > RESULT_VERSION:
        raise NewerError(f"has schema_version {version}, this code reads up to {RESULT_VERSION}")
    return version


def upgraded(result: Any) -> dict[str, Any]:
    """The content as the newest version; what is damaged stays so. Raises `VersionError`."""
    for version in range(version_of(result), RESULT_VERSION):
        result = STEPS[version](result)
    return dict(result)


def _second(first: Mapping[str, Any]) -> dict[str, Any]:
    """Version 2: the direction of every score, and lost seconds that are always there."""
    found = {**first, "schema_version": 2}
    if "metric" in first:
        found.setdefault("lost_s", None)
        final = first.get("final")
        names = list(final) if isinstance(final, dict) else []
        known = {name: "higher" if name in HIGHER else "lower" for name in names}
        found["directions"] = known | {
            name: first.get("direction") for name in names if name == first["metric"]
        }
    return found


STEPS: Final[Mapping[int, Callable[[Mapping[str, Any]], dict[str, Any]]]] = MappingProxyType({1: _second})
"""Version n -> the function that makes version n + 1 of it."""
