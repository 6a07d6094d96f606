"""Verdicts on record as a page needs them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from suite.analysis.document import rows_of
from suite.analysis.tables import Row
from suite.claims.columns import CLAIMS, PARTS


@dataclass(frozen=True)
class Verdicts:
    """Rows of claims and of their parts; empty where there is no record."""

    claims: Sequence[Row] = ()
    parts: Sequence[Row] = ()

    def of(self, sources: Collection[str]) -> Verdicts:
        """Those that one of these studies or sessions decides."""
        rows = [row for row in self.claims if set(str(row["sources"] or "").split(", ")) & set(sources)]
        return Verdicts(rows, self.parts)

    def parts_of(self, row: Row) -> list[Row]:
        """Premises of a claim, then its parts, in order."""
        own = [part for part in self.parts if part["claim"] == row["claim"]]
        return sorted(own, key=lambda part: (part["role"] != "premise", int(part["part"] or 0)))


def load_verdicts(results_root: Path) -> Verdicts:
    """What is on record."""
    return Verdicts(rows_of(results_root, CLAIMS) or (), rows_of(results_root, PARTS) or ())
