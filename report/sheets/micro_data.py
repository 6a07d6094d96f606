"""asv's measurements as series: one a benchmark, its parameters and machine, commit after commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from report.drawing.numbers import number
from report.errors import ReportError
from suite.analysis.columns import MICRO
from suite.analysis.published import find_table
from suite.analysis.tables import Row, read_table

COMMITS: Final = 20
"""How many commits of a series are shown, the newest."""
WORSE, BETTER, STEADY, ONLY = "worse", "better", "steady", "only one"
"""What became of a value since the commit before, in the order in which lines stand. asv's values are the better the lower."""
WORDS: Final = (WORSE, BETTER, STEADY, ONLY)


@dataclass(frozen=True)
class Series:
    """The rows of one benchmark with its parameters on one machine and environment, the oldest commit first."""

    rows: tuple[Row, ...]

    @property
    def last(self) -> Row:
        """The newest commit's."""
        return self.rows[-1]

    @property
    def before(self) -> Row | None:
        """That of the commit before; None where there is none, or either has no value."""
        if len(self.rows) < 2 or self.last["value"] is None:
            return None
        return self.rows[-2] if self.rows[-2]["value"] is not None else None

    @property
    def word(self) -> str:
        """Changed where each value lies outside of the other's interval; a value without one is its own interval."""
        before = self.before
        if before is None:
            return ONLY
        now, then = number(self.last["value"]) or 0.0, number(before["value"]) or 0.0
        if _inside(now, before) or _inside(then, self.last):
            return STEADY
        return WORSE if now > then else BETTER

    @property
    def ratio(self) -> float | None:
        """The newest value over that of the commit before."""
        before = self.before
        then = None if before is None else number(before["value"])
        return (number(self.last["value"]) or 0.0) / then if then else None


def _inside(value: float, row: Row) -> bool:
    own = number(row["value"]) or 0.0
    low, high = number(row["ci_low"]), number(row["ci_high"])
    return (own if low is None else low) <= value <= (own if high is None else high)


def series_of(rows: Sequence[Row]) -> list[Series]:
    """All series by name and parameters, their newest `COMMITS` commits each."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = tuple(str(row[name] or "") for name in ("benchmark", "params", "machine", "environment"))
        found.setdefault(key, []).append(row)
    return [
        Series(tuple(sorted(own, key=lambda row: (str(row["committed"]), str(row["commit"])))[-COMMITS:]))
        for _, own in sorted(found.items())
    ]


def load_series(results_root: Path) -> list[Series]:
    """From the table. Raises ReportError where asv has left nothing, TableError for a damaged table."""
    path = find_table(results_root, MICRO)
    rows = read_table(path, MICRO) if path.is_file() else []
    if not rows:
        raise ReportError(
            "asv's measurements are not in the tables: run `asv run HEAD^!`, then `bandwise report` of any sweep brings them in"
        )
    return series_of(rows)
