"""Rate and distortion as a page needs them: a panel a source of gradients and number of workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from report.errors import ReportError
from suite.analysis.document import rows_of
from suite.analysis.statistics import pareto_front
from suite.analysis.tables import Row, number
from suite.studies.rate_distortion import QUANTISERS, RATE_DISTORTION, theta_bound

COMMAND: Final = "python -m suite.studies.rate_distortion"
NOTHING: Final = 1.0
"""Error of a mean that is taken for 0."""
STAGES: Final = ("start", "middle", "end")


@dataclass(frozen=True)
class Source:
    """The quantisers on the gradients of one stage of a training, averaged over so many workers."""

    rows: tuple[Row, ...]

    @property
    def place(self) -> tuple[str, str, int]:
        """Workload, stage, workers."""
        row = self.rows[0]
        return str(row["workload"]), str(row["stage"]), int(number(row, "world_size"))

    @property
    def title(self) -> str:
        """For people."""
        workload, stage, n = self.place
        return f"{workload}, {stage} of training, {n} workers"

    @property
    def ring_bits(self) -> float:
        """Bits a coordinate that a rank sends in an fp32 ring all-reduce, which loses nothing."""
        n = self.place[2]
        return 64 * (n - 1) / n

    @property
    def front(self) -> list[Row]:
        """What none of the others beats in bits and error at once, the fewest bits first. An error of 1 costs no bits: it is that
        of sending nothing, so what errs more is not on the front."""
        able = [row for row in self.rows if number(row, "error") < NOTHING]
        bits, precision = (
            [sign * number(row, name) for row in able] for sign, name in ((1, "wire_bits"), (-1, "error"))
        )
        return [able[i] for i in pareto_front(bits, precision)]

    def bounds(self) -> list[tuple[Row, float]]:
        """Rows of which theory bounds the error, and that bound as an error: it is proven for theta, and the two differ by the
        ratio of the norms, which the row knows."""
        found = []
        for row in self.rows:
            theta = bound_of(row)
            if theta is not None and number(row, "theta") > 0:
                found.append((row, theta * number(row, "error") / number(row, "theta")))
        return found


def bound_of(row: Row) -> float | None:
    """The most that theory allows theta; None where it says nothing, or where the quantiser is not one of those measured here."""
    known = next((one for one in QUANTISERS if one.label == row["quantiser"]), None)
    return None if known is None else theta_bound(known.algorithm, known.options)


def load_sources(results_root: Path) -> list[Source]:
    """By workload, workers and stage. Raises ReportError where it was not measured, TableError for a damaged table."""
    rows = rows_of(results_root, RATE_DISTORTION)
    if rows is None:
        raise ReportError(f"rate and distortion have not been measured: run `{COMMAND}` first")
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row["workload"], row["world_size"], row["stage"]), []).append(row)
    return sorted((Source(tuple(rows)) for rows in found.values()), key=_order)


def _order(source: Source) -> tuple[str, int, int]:
    workload, stage, n = source.place
    return workload, n, STAGES.index(stage) if stage in STAGES else len(STAGES)
