"""load: a study's published numbers, or yours, as four pandas tables.

    study = load("language")
    study.runs.query("role == 'scored'").groupby("arm")["value"].mean()
    study.verdicts.query("link == '10 Mbit/s' and plain == 'worth it'")[["arm", "net", "net_low", "net_high"]]

Tables are read where pages read them: made here where they are whole, else published. Nothing is computed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bandwise.options import require_checkout

if TYPE_CHECKING:
    import pandas as pd

    from suite.analysis.columns import Table

__all__ = ["Study", "load"]


@dataclass(frozen=True)
class Study:
    """What `load` answers. Columns are described in `suite.analysis.columns` and by ``bandwise export --format latex``.

    Attributes:
        name: Of the study.
        runs: A row a run of any `role`: scored; budget, a multiple `budget` of the steps; tuning, a learning rate tried, whose
            value is the mean over seeds that are not scored.
        curves: A row an evaluation of a scored run.
        timings: A row a method, link and round of a session of that name: `seconds` of a whole training, composed of the
            round's blocks, beside `reference_s` of as many steps of the fastest uncompressed DDP. Empty where none was held.
        verdicts: A row a method and link: what a training is `worth`, `net` speedup with its words. `link` is missing where
            no session was held.
    """

    name: str
    runs: pd.DataFrame
    curves: pd.DataFrame
    timings: pd.DataFrame
    verdicts: pd.DataFrame

    def __repr__(self) -> str:
        sizes = ", ".join(
            f"{name} {len(getattr(self, name)):,}" for name in ("runs", "curves", "timings", "verdicts")
        )
        return f"Study({self.name!r}: rows of {sizes})"


def load(study: str, results: str | os.PathLike[str] | None = None) -> Study:
    """The tables of a study.

    Args:
        study: Its name, such as "language" (``bandwise list sweeps``).
        results: Results folder; None: ``$BANDWISE_RESULTS``, else ``results/`` of the checkout.

    Returns:
        Four DataFrames with declared dtypes.

    Raises:
        LookupError: There are no tables of that name; those that there are are named.
        CheckoutError: The project is not checked out.
        TableError: A file is damaged.
    """
    require_checkout("load")
    import pandas as pd

    from suite.analysis.columns import BUDGET_RUNS, CURVES, NET, NET_ROUNDS, RUNS, TUNING, WORTH
    from suite.analysis.published import find_frame, load_facts, studies_of
    from suite.analysis.tables import SESSION, frame_of
    from suite.runs.store import default_root

    root = default_root() if results is None else Path(results)
    if study not in studies_of(root):
        raise LookupError(
            f"no tables of a study {study!r} under {root}: there are {', '.join(studies_of(root))}"
        )

    def of(table: Table, name: str = study) -> pd.DataFrame:
        found = find_frame(root, table, name)
        return frame_of(table, ()) if found is None else found

    tried = of(TUNING).rename(columns={"lr": "lr_peak"}).drop(columns="edge")
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
        net, how="left", on=["sharding", "world_size", "arm"], suffixes=("", "_session"), validate="1:m"
    )
    return Study(study, runs, of(CURVES), of(NET_ROUNDS, f"{SESSION}{study}"), verdicts)
