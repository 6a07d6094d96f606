"""What lies in the checkpoint of one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def contents(state: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of what ``state_dict()`` of one rank answered, put together: what all ranks share and what is its own."""
    held = state["param_groups"][0] if "param_groups" in state else state
    shared, own = (leaf[0] for leaf in held.values() if isinstance(leaf, tuple))
    return {**shared, **own, "slots": {**shared["slots"], **own["slots"]}}
