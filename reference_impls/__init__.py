"""Reference implementations of communication-efficient training methods, behind one interface.

Public face: `list_algorithms`, `info`, `create`, `DataParallelOptimizer` (real process groups), `SimulatedCluster`
(n workers in one process), `ddp_hook` and `fsdp_hook` (inside torch's wrappers), `WeightPatch` and `PatchStream` (changed weights
to who generates or evaluates). Importing this package imports no torch; the names are resolved when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reference_impls.core.registry import AlgorithmInfo, create, info, list_algorithms, load_plugin

if TYPE_CHECKING:
    from reference_impls.compressors.weight_patch import PatchStream, WeightPatch
    from reference_impls.frontends.hooks import ddp_hook, fsdp_hook
    from reference_impls.frontends.optimizer import DataParallelOptimizer
    from reference_impls.frontends.simulated import SimulatedCluster

__all__ = [
    "AlgorithmInfo",
    "DataParallelOptimizer",
    "PatchStream",
    "SimulatedCluster",
    "WeightPatch",
    "create",
    "ddp_hook",
    "fsdp_hook",
    "info",
    "list_algorithms",
    "load_plugin",
]

_LAZY = {
    "ddp_hook": "reference_impls.frontends.hooks",
    "fsdp_hook": "reference_impls.frontends.hooks",
    "DataParallelOptimizer": "reference_impls.frontends.optimizer",
    "PatchStream": "reference_impls.compressors.weight_patch",
    "SimulatedCluster": "reference_impls.frontends.simulated",
    "WeightPatch": "reference_impls.compressors.weight_patch",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
