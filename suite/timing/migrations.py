"""Older records of sessions as today's, by pure functions from one version of `session.json` to the next.

There is one version so far, so there is no step; readers go through here all the same, and a record of each version is
frozen beside the tests.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from suite.runs.migrations import Steps, stepped
from suite.timing.formats import SESSION_VERSION

STEPS: Final[Steps] = MappingProxyType({})


def upgraded(record: Any) -> dict[str, Any]:
    """A record as the newest version; what is damaged stays so. Raises `VersionError`."""
    return stepped(record, SESSION_VERSION, STEPS)
