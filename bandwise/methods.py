"""What a method is written with, in one place: ``from bandwise.methods import Algorithm, option, per_rank, Entry, registry``.

A method is a frozen dataclass that derives from `Algorithm`; its options are fields made by `option`, its state is declared by
`replicated`, `per_rank`, `owned` and `per_tensor`, and ``registry.add(NAME, Entry(...))`` makes its name known. Codes for
gradients derive from `CompressedGradient`, local steps under an outer optimizer from `LocalUpdates`.
"""

from __future__ import annotations

from reference_impls.algorithms.compressed_gradient import CompressedGradient
from reference_impls.algorithms.local_updates import LocalUpdates, PeriodicAveraging
from reference_impls.core.algorithm import (
    DEFAULT,
    Algorithm,
    Bucket,
    StateSpec,
    TrainState,
    View,
    option,
    owned,
    per_rank,
    per_tensor,
    replicated,
)
from reference_impls.core.catalogue import Entry
from reference_impls.core.collectives import Exchange, Group, Pending
from reference_impls.core.compute import Key
from reference_impls.core.errors import UnsupportedError, UsageError
from reference_impls.core.registry import registry

__all__ = [
    "DEFAULT",
    "Algorithm",
    "Bucket",
    "CompressedGradient",
    "Entry",
    "Exchange",
    "Group",
    "Key",
    "LocalUpdates",
    "Pending",
    "PeriodicAveraging",
    "StateSpec",
    "TrainState",
    "UnsupportedError",
    "UsageError",
    "View",
    "option",
    "owned",
    "per_rank",
    "per_tensor",
    "registry",
    "replicated",
]
