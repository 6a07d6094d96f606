"""What lies in the checkpoint of one rank."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def contents(state: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of what ``state_dict()`` of one rank answered, put together: what all ranks share and what is its own."""
    held = state["param_groups"][0] if "param_groups" in state else state
    shared, own = (leaf[0] for leaf in held.values() if isinstance(leaf, tuple))
    return {**shared, **own, "slots": {**shared["slots"], **own["slots"]}}


def through_a_file(state: Any) -> Any:
    """A state as it comes back from disk."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def equal(a: Any, b: Any) -> bool:
    """Whether two states are equal, to the bit."""
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)
