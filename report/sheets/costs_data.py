"""The cost model's tables as a page needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from suite.analysis.document import rows_of
from suite.analysis.tables import Row
from suite.costs.break_even import BEST, SPEEDUPS, WARM_UP
from suite.costs.score import SCORE


@dataclass(frozen=True)
class Costs:
    """Rows by a table's suffix; empty where the model was not scored."""

    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)


def load_costs(results_root: Path) -> Costs:
    """The tables that are there."""
    found = {table.suffix: rows_of(results_root, table) for table in (SCORE, SPEEDUPS, WARM_UP, BEST)}
    return Costs({name: rows for name, rows in found.items() if rows})
