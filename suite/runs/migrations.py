"""Older files as today's: how versions are stepped through, and the pure functions from one of `result.json` to the next.

Records of sessions have their own steps (`suite.timing.migrations`). Readers never see an older version: `upgraded` is
applied to whatever is read. What an older file did not record stays unknown (null), it is not made up. Files on disk are
rewritten only by `bandwise migrate`. A file of each version ever written is frozen beside the tests.
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


Steps = Mapping[int, Callable[[Mapping[str, Any]], dict[str, Any]]]
"""Version n -> the function that makes version n + 1 of it."""


def version_of(content: Any, newest: int = RESULT_VERSION) -> int:
    """The version of a file's content, `newest` at most. Raises `VersionError`."""
    if not isinstance(content, dict):
        raise VersionError("is not a mapping")
    version = content.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise VersionError("says no schema_version that ever was")
    if version > newest:
        raise NewerError(f"has schema_version {version}, this code reads up to {newest}")
    return version


def stepped(content: Any, newest: int, steps: Steps) -> dict[str, Any]:
    """The content as version `newest`; what is damaged stays so. Raises `VersionError`."""
    for version in range(version_of(content, newest), newest):
        content = steps[version](content)
    return dict(content)


def upgraded(result: Any) -> dict[str, Any]:
    """A result as the newest version. Raises `VersionError`."""
    return stepped(result, RESULT_VERSION, STEPS)


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


STEPS: Final[Steps] = MappingProxyType({1: _second})
