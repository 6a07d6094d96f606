"""bandwise: communication-efficient data-parallel training, measured.

    from bandwise import DataParallelOptimizer, SimulatedCluster, create, list_algorithms
    from bandwise import simulate               # any model and data by any method, on one machine
    from bandwise import attach                 # around a torch.optim optimizer, in your own loop
    from bandwise import ddp_hook, fsdp_hook    # inside torch's DistributedDataParallel, across the nodes of FSDP2
    from bandwise import fsdp_optimizer         # any method as the optimizer across the nodes of FSDP2
    from bandwise import TrainingLog            # bytes and losses in wandb, tensorboard, mlflow or a CSV file
    from bandwise import PatchStream, WeightPatch   # changed weights, to the bit, to who generates or evaluates
    from bandwise import load                   # a study's runs, curves, timings and verdicts as pandas tables:

    study = load("language")
    study.runs.query("role == 'scored'").groupby("arm")["value"].mean()
    study.verdicts.query("link == '10 Mbit/s' and plain == 'worth it'")[["arm", "net", "net_low", "net_high"]]

The methods live in `reference_impls`; this is their public face. Importing it imports no torch.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from bandwise.simulation import simulate
    from bandwise.training_log import TrainingLog
    from reference_impls import (
        DataParallelOptimizer,
        PatchStream,
        SimulatedCluster,
        WeightPatch,
        create,
        ddp_hook,
        fsdp_hook,
        info,
        list_algorithms,
    )
    from reference_impls.frontends.attached import attach
    from reference_impls.frontends.sharded import fsdp_optimizer
    from suite.analysis.tables import Table

__all__ = [
    "DataParallelOptimizer",
    "PatchStream",
    "SimulatedCluster",
    "TrainingLog",
    "WeightPatch",
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


@dataclass(frozen=True)
class Study:
    """What `load` answers. Columns are described in `suite.analysis.tables` and by ``bandwise export --format latex``.

    Attributes:
        name: Of the study.
        runs: A row a run of any `role`: scored; budget, a multiple `budget` of the steps; tuning, a learning rate tried, whose
            value is the mean over seeds that are not scored.
        curves: A row an evaluation of a scored run.
        rho: A row a method, value of rho and end of overlap: net speedup, verdict. Empty where the study has no verdicts of rho.
        windows: A row a method and end of overlap: from and to which rho it is ahead. Empty as `rho`.
        timings: A row a method, link and round of a session of that name: `seconds` of a whole training, composed of the
            round's blocks, beside `reference_s` of as many steps of the fastest uncompressed DDP. Empty where none was held.
        verdicts: A row a method and link: what a training is `worth`, `net` speedup with its words. `link` is missing where
            no session was held.
    """

    name: str
    runs: pd.DataFrame
    curves: pd.DataFrame
    rho: pd.DataFrame
    windows: pd.DataFrame
    timings: pd.DataFrame
    verdicts: pd.DataFrame

    def __repr__(self) -> str:
        tables = [field.name for field in fields(self) if field.name != "name"]
        sizes = ", ".join(f"{name} {len(getattr(self, name)):,}" for name in tables)
        return f"Study({self.name!r}: rows of {sizes})"


def load(study: str, results: str | os.PathLike[str] | None = None) -> Study:
    """The tables of a study.

    Args:
        study: Its name, such as "language" (``bandwise list sweeps``).
        results: Results folder; None: ``$BANDWISE_RESULTS``, else ``results/`` of the checkout.

    Returns:
        DataFrames with declared dtypes.

    Raises:
        LookupError: There are no tables of that name; those that there are are named.
        CheckoutError: The project is not checked out.
        TableError: A file is damaged.
    """
    from bandwise.cli import require_checkout

    require_checkout("load")
    import pandas as pd

    from suite.analysis.published import find_frame, load_facts, studies_of
    from suite.analysis.tables import (
        BUDGET_RUNS,
        CURVES,
        NET,
        NET_ROUNDS,
        RHO,
        RUNS,
        SESSION,
        TUNING,
        WINDOWS,
        WORTH,
        frame_of,
    )
    from suite.runs.store import default_root

    root = default_root() if results is None else Path(results)
    if study not in studies_of(root):
        raise LookupError(
            f"no tables of a study {study!r} under {root}: there are {', '.join(studies_of(root))}"
        )

    def of(table: Table, name: str = study) -> pd.DataFrame:
        found = find_frame(root, table, name)
        return frame_of(table, ()) if found is None else found

    tried = of(TUNING).rename(columns={"lr": "lr_peak"}).drop(columns=["edge", "vertex"])
    roles = {"scored": of(RUNS).assign(budget=1.0), "budget": of(BUDGET_RUNS), "tuning": tried}
    runs = pd.concat(
        [frame.assign(role=role) for role, frame in roles.items() if len(frame)], ignore_index=True
    )
    runs.insert(0, "role", runs.pop("role"))
    held = load_facts(root, study) or {}
    net = (
        of(NET, f"{SESSION}{study}").assign(world_size=held.get("world_size")).astype({"world_size": "Int64"})
    )
    verdicts = of(WORTH).merge(
        net, how="left", on=["sharding", "world_size", "arm"], suffixes=("", "_session")
    )  # a session times one workload
    rounds = of(NET_ROUNDS, f"{SESSION}{study}")
    return Study(study, runs, of(CURVES), of(RHO), of(WINDOWS), rounds, verdicts)
