"""Scaling and break-even as a page needs them: rows by setting and by series, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from report.errors import ReportError
from suite.analysis.document import rows_of
from suite.analysis.tables import Row, number
from suite.costs.break_even import BREAK_EVEN, BREAK_EVEN_CHECKS
from suite.costs.model import PREDICTED
from suite.costs.scaling import SCALING, STRONG, WEAK, held_of, series_of

COMMAND: Final = "bandwise costs scaling"
FEW: Final = 3
"""Settings with no more methods than that are shown last."""
SETTING: Final = ("workload", "bucket_bytes", "cores", "world_size")
SERIES: Final = ("workload", "batch_size", "bucket_bytes", "link")


@dataclass(frozen=True)
class Setting:
    """Break-even rates of the methods in one setting, and what sessions measured there."""

    rows: tuple[Row, ...]
    checks: tuple[Row, ...]

    @property
    def held(self) -> bool:
        """Whether sessions held it; else it is the example."""
        return self.rows[0]["workload"] is not None

    @property
    def title(self) -> str:
        """For people."""
        row = self.rows[0]
        if not self.held:
            return f"{number(row, 'parameters') / 1e6:.3g} M parameters, {row['world_size']} workers"
        return f"{row['workload']}, {row['world_size']} workers"

    @property
    def about(self) -> str:
        """What decides it besides the link."""
        row = self.rows[0]
        size, compute = number(row, "parameters") / 1e6, 1e3 * number(row, "compute_s")
        crowd = f"sharing {row['cores']} cores" if self.held else "a machine each"
        cut = f", buckets of {number(row, 'bucket_bytes') / 2**20:.3g} MiB" if self.held else ""
        return f"{size:.3g} M parameters, {crowd}, computing {compute:.3g} ms a step{cut}"


@dataclass(frozen=True)
class Curve:
    """Weak and strong scaling of the methods of one series."""

    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.rows[0]['workload']}, {self.rows[0]['link']}"

    @property
    def about(self) -> str:
        """What the sessions have in common, and their workers."""
        row = self.rows[0]
        sizes = ", ".join(map(str, self.sizes))
        return (
            f"batch {row['batch_size']} a worker, buckets of {number(row, 'bucket_bytes') / 2**20:.3g} MiB; measured with "
            f"{sizes} workers"
        )

    @property
    def sizes(self) -> list[int]:
        """Numbers of workers of the sessions."""
        return sorted({int(number(row, "world_size")) for row in self.measured()})

    def measured(self) -> list[Row]:
        """What sessions measured."""
        return [row for row in self.rows if row["source"] != PREDICTED]

    def weak(self, own_machines: bool) -> list[Row]:
        """The curve for workers that share the sessions' cores, or have machines of their own."""
        return [
            row
            for row in self.rows
            if row["source"] == PREDICTED
            and row["scaling"] == WEAK
            and (row["cores"] is None) == own_machines
        ]

    def strong(self) -> list[Row]:
        """The curve of work that is shared."""
        return [row for row in self.rows if row["scaling"] == STRONG]

    @property
    def methods(self) -> list[str]:
        """The most efficient with the most workers that were measured first."""
        best: dict[str, tuple[float, float]] = {}
        for row in self.measured():
            place = (row["world_size"] == self.sizes[-1], number(row, "efficiency"))
            best[str(row["method"])] = max(best.get(str(row["method"]), (False, 0.0)), place)
        return sorted(best, key=lambda name: (-best[name][0], -best[name][1], name))


@dataclass(frozen=True)
class ScalingData:
    """All that the page shows. alone: what could not be joined, in words."""

    settings: tuple[Setting, ...]
    curves: tuple[Curve, ...]
    alone: tuple[str, ...]
    rows: tuple[Row, ...]
    break_even: tuple[Row, ...]
    checks: tuple[Row, ...]


def load_scaling(results_root: Path) -> ScalingData:
    """From tables alone. Raises ReportError where they were not made, TableError for a damaged one."""
    rows, even, checks = (rows_of(results_root, table) for table in (SCALING, BREAK_EVEN, BREAK_EVEN_CHECKS))
    if rows is None or even is None or checks is None:
        raise ReportError(
            f"scaling and break-even bandwidths have not been worked out: run `{COMMAND}` first "
            "(it needs `bandwise costs score`, and that sessions)"
        )
    settings = [
        Setting(own, tuple(row for row in checks if _at(SETTING)(row) == _at(SETTING)(own[0])))
        for own in _grouped(even, _at(SETTING))
    ]
    return ScalingData(
        tuple(sorted(settings, key=lambda one: (one.held, len(one.rows) <= FEW, _order(one.rows[0])))),
        tuple(map(Curve, _grouped(rows, _at(SERIES)))),
        tuple(series_of(held_of(results_root))[1]),
        tuple(rows),
        tuple(even),
        tuple(checks),
    )


Key = tuple[object, ...]


def _at(names: Sequence[str]) -> Callable[[Row], Key]:
    return lambda row: tuple(row[name] for name in names)


def _grouped(rows: Sequence[Row], key: Callable[[Row], Key]) -> list[tuple[Row, ...]]:
    """In the order of the table, which is sorted by its key."""
    found: dict[Key, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return [tuple(group) for group in found.values()]


def _order(row: Row) -> tuple[float, str, float, float]:
    """Large models first, then few workers."""
    return (
        -number(row, "parameters"),
        str(row["workload"]),
        number(row, "world_size"),
        float(row["bucket_bytes"] or 0),
    )
