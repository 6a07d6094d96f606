"""Where the runs of a panel come from: each distinct commit, environment and machine with how many runs it gave.

Recorded in a study's facts when its tables are made, so that a page from tables alone can say what was mixed. Facts of
older tables lack them; what their rows hold (commit, environment) stands in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from suite.analysis.tables import Row

CELL: Final = ("workload", "sharding", "world_size")
ATTRIBUTES: Final = (
    "commit", "dirty", "environment_hash", "torch", "python", "system", "cpu", "cores", "threads",
)  # fmt: skip
CHANGES: Final = "changes"
"""SHA-256 of how the code differed from its commit."""
Origin = dict[str, Any]
"""A panel (`CELL`), the `ATTRIBUTES` that are known of some of its runs, and how many: `runs`."""


def counted(found: Iterable[tuple[Sequence[Any], Mapping[str, Any]]]) -> list[Origin]:
    """Distinct origins from (cell, provenance) of every run that has one, in order of their content."""
    names = (*ATTRIBUTES, CHANGES)
    counts = Counter((*cell, *(_value(provenance, name) for name in names)) for cell, provenance in found)
    return [
        {**dict(zip((*CELL, *names), key, strict=True)), "runs": runs}
        for key, runs in sorted(counts.items(), key=lambda item: tuple(map(str, item[0])))
    ]


def _value(provenance: Mapping[str, Any], name: str) -> Any:
    found = provenance.get(name)
    return found["sha256"] if name == CHANGES and found else found


def of_study(facts: Mapping[str, Any], runs: Iterable[Row]) -> list[Origin]:
    """The origins on record of a study; of tables that lack them what rows and facts say: None is not known."""
    if "origins" in facts:
        return [dict(origin) for origin in facts["origins"]]
    same = {name: values[0] for name, values in facts["provenance"].items() if len(values) == 1}
    same["dirty"] = {"True": True, "False": False}.get(same.get("dirty", ""))
    return counted(
        (
            [row[name] for name in CELL],
            {**same, "commit": row["commit"], "environment_hash": row["environment"]},
        )
        for row in runs
        if row["commit"] is not None or row["environment"] is not None
    )
