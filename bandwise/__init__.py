"""bandwise: communication-efficient data-parallel training, measured.

    from bandwise import DataParallelOptimizer, SimulatedCluster, create, list_algorithms
    from bandwise import simulate               # any model and data by any method, on one machine
    from bandwise import attach                 # around a torch.optim optimizer, in your own loop
    from bandwise import ddp_hook, fsdp_hook    # inside torch's DistributedDataParallel, across the nodes of FSDP2
    from bandwise import fsdp_optimizer         # any method as the optimizer across the nodes of FSDP2
    from bandwise import TrainingLog            # bytes and losses in wandb, tensorboard, mlflow or a CSV file
    from bandwise import load                   # a study's runs, curves, timings and verdicts as pandas tables

The methods live in `reference_impls`; this is their public face. Importing it imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bandwise.loading import load
    from bandwise.simulation import simulate
    from bandwise.training_log import TrainingLog
    from reference_impls import (
        DataParallelOptimizer,
        SimulatedCluster,
        create,
        ddp_hook,
        fsdp_hook,
        info,
        list_algorithms,
    )
    from reference_impls.frontends.attached import attach
    from reference_impls.frontends.sharded import fsdp_optimizer

__all__ = [
    "DataParallelOptimizer",
    "SimulatedCluster",
    "TrainingLog",
    "attach",
    "create",
    "ddp_hook",
    "fsdp_hook",
    "fsdp_optimizer",
    "info",
    "list_algorithms",
    "load",
    "simulate",
]

_HOMES = {
    "TrainingLog": "bandwise.training_log",
    "attach": "reference_impls.frontends.attached",
    "fsdp_optimizer": "reference_impls.frontends.sharded",
    "load": "bandwise.loading",
    "simulate": "bandwise.simulation",
}
"""Names that `reference_impls` does not answer itself -> module."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        import reference_impls

        return getattr(reference_impls, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
