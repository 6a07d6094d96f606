"""The bytes of a run as training goes on, in a form that a checkpoint can carry.

The driver's ledger keeps a row a step; here it is emptied step by step into sums. Numbers are added in the order of
steps however often a run is interrupted, so that the sums are the same floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from reference_impls.drivers.ledger import Ledgers

_KEYS: Final = ("rank", "kind", "stage", "collective", "group")


class LedgerSums:
    """Rows of `Ledgers.totals`, one a rank, kind, stage, collective and group. rows: those of an earlier attempt."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._rows = {tuple(row[key] for key in _KEYS): dict(row) for row in rows}

    def take(self, ledger: Ledgers) -> None:
        """Add what the ledger holds and empty it; once a step."""
        for row in ledger.totals():
            key = tuple(row[key] for key in _KEYS)
            total = self._rows.get(key)
            if total is None:
                self._rows[key] = row
                continue
            for name, value in row.items():
                if name not in _KEYS:
                    total[name] += value
        ledger.clear()

    def wire_bytes(self) -> dict[int, float]:
        """Bytes that each rank has sent so far, added as `record.bytes_summary` does; a rank that sent nothing is not in it."""
        sent: dict[int, float] = {}
        for row in self._rows.values():
            sent[row["rank"]] = sent.get(row["rank"], 0.0) + row["wire_bytes"]
        return sent

    def rows(self) -> list[dict[str, Any]]:
        """The rows so far, rank by rank, in the order of first use."""
        return sorted((dict(row) for row in self._rows.values()), key=lambda row: int(row["rank"]))
