"""How soon each method reaches a target that was stated beforehand, in steps and in bytes.

The target of a cell is set by its uncompressed arms alone: by the one that ends worst (median over its seeds), given way
by the margin within which results count as equal. So every uncompressed optimizer can reach it, no method has a say in
it, and one that misses it is worse than all of them.

A run has reached it at the first *evaluation* whose metric is as good; nothing is read between evaluations, so a time is
late by up to one gap (`resolution`). A run that never was so good, or diverged, is a miss: infinity, by which medians and
order-statistic intervals are censored. Where the learning rate decays by the budget, such times say as much of the
schedule as of the method; a ladder of budgets (`iso_accuracy`) is what compares there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, censored_median_interval
from suite.analysis.study import Study
from suite.analysis.summary import Cell, CellKey, cells
from suite.analysis.tables import Row, number

Curves = Mapping[tuple[str, int], Sequence[Row]]
"""(arm, seed) -> rows of the table `curves`, steps rising."""


@dataclass(frozen=True)
class Target:
    """What is to be reached, in the metric's unit, and the uncompressed arm that set it."""

    value: float
    reference: str
    direction: str

    def reached_by(self, value: float | None) -> bool:
        """Whether an evaluation is as good."""
        if value is None:
            return False
        return value >= self.value if self.direction == "higher" else value <= self.value


@dataclass(frozen=True)
class Arrival:
    """When a run had the target first: completed steps, and bytes sent until then (None: not recorded). inf: never."""

    steps: float
    wire_bytes: float | None


NEVER = Arrival(math.inf, math.inf)


@dataclass(frozen=True)
class Race:
    """A cell with its target, and the arrivals of its runs by arm and seed; runs without a curve are not in it."""

    cell: Cell
    target: Target
    arrivals: Mapping[str, Mapping[int, Arrival]]
    resolution: Mapping[str, int]


def target_of(cell: Cell) -> Target | None:
    """The target of a cell; None where no uncompressed arm ended, or most seeds of each diverged."""
    higher = cell.yardstick.direction == "higher"
    worst = -math.inf if higher else math.inf
    ends = {}
    for name in sorted(cell.arms):
        arm = cell.study.by_name[name]
        if arm.baseline is None and not arm.control:
            values = [*cell.values(name, "value"), *[worst] * cell.count(name, "diverged")]
            if values and math.isfinite(end := median(values)):
                ends[name] = end
    if not ends:
        return None
    reference = (min if higher else max)(ends, key=lambda name: ends[name])
    margin = cell.yardstick.margin
    return Target(ends[reference] + (-margin if higher else margin), reference, cell.yardstick.direction)


def races(study: Study, runs: Iterable[Row], curves: Iterable[Row]) -> list[Race]:
    """Every cell that has a target and curves, in order of their key."""
    by_cell: dict[CellKey, dict[tuple[str, int], list[Row]]] = {}
    for row in curves:
        key = (str(row["workload"]), str(row["sharding"]), int(number(row, "world_size")))
        run = (str(row["arm"]), int(number(row, "seed")))
        by_cell.setdefault(key, {}).setdefault(run, []).append(row)
    found = []
    for cell in cells(study, runs):
        target, own = target_of(cell), by_cell.get(cell.key, {})
        if target is not None and own:
            found.append(_race(cell, target, own))
    return found


def _race(cell: Cell, target: Target, curves: Curves) -> Race:
    arrivals: dict[str, dict[int, Arrival]] = {}
    gaps: dict[str, int] = {}
    for arm, seeds in cell.arms.items():
        arrivals[arm] = {}
        for seed, run in sorted(seeds.items()):
            curve = curves.get((arm, seed), ())
            if run["status"] == "diverged":
                arrivals[arm][seed] = NEVER
            elif curve:
                arrivals[arm][seed] = arrival(curve, target)
                gaps[arm] = max(gaps.get(arm, 0), _widest(curve))
    return Race(cell, target, arrivals, gaps)


def arrival(curve: Sequence[Row], target: Target) -> Arrival:
    """The first evaluation at the target; `NEVER` where there is none."""
    for row in curve:
        value = row["value"]
        if target.reached_by(None if value is None else number(row, "value")):
            sent = None if row["wire_bytes"] is None else number(row, "wire_bytes")
            return Arrival(number(row, "step"), sent)
    return NEVER


def _widest(curve: Sequence[Row]) -> int:
    """Steps between evaluations, or up to the first: the most."""
    steps = [0, *(int(number(row, "step")) for row in curve)]
    return max(after - before for before, after in itertools.pairwise(steps))


def to_target_rows(found: Iterable[Race]) -> list[Row]:
    """A row an arm and cell."""
    return [_row(race, name) for race in found for name in sorted(race.cell.arms)]


def _row(race: Race, name: str) -> Row:
    arm = race.cell.study.by_name[name]
    own = race.arrivals[name]
    other = race.arrivals.get(arm.baseline, {}) if arm.baseline else {}
    pairs = [(own[s], other[s]) for s in own if s in other and (own[s] != NEVER or other[s] != NEVER)]
    return {
        "workload": race.cell.key[0],
        "sharding": race.cell.key[1],
        "world_size": race.cell.key[2],
        "arm": name,
        "family": arm.family,
        "baseline": arm.baseline,
        "control": arm.control,
        "reference": race.target.reference,
        "target": race.target.value,
        "n": len(own),
        "n_reached": sum(one != NEVER for one in own.values()),
        "n_diverged": race.cell.count(name, "diverged"),
        "resolution": race.resolution.get(name),
        **_spread("steps", [one.steps for one in own.values()]),
        **_spread("wire_bytes", [one.wire_bytes for one in own.values()]),
        "n_pairs": len(pairs) if arm.baseline else None,
        **_spread("steps_ratio", [_times(a.steps, b.steps) for a, b in pairs]),
        **_spread("bytes_ratio", [_times(a.wire_bytes, b.wire_bytes) for a, b in pairs]),
    }


def _times(own: float | None, baseline: float | None) -> float | None:
    """How many times fewer than the baseline; 0 where only the baseline got there, None where one is unknown."""
    if own is None or baseline is None:
        return None
    if math.isinf(own):
        return 0.0
    return baseline / own if own else math.inf


def _spread(name: str, values: Sequence[float | None]) -> Row:
    """Censored median with its interval; empty where there is no value, or one of them is unknown."""
    known = [value for value in values if value is not None]
    low = high = middle = None
    if known and len(known) == len(values):
        middle = median(known)
        if len(known) >= MINIMUM_FOR_INTERVAL:
            interval = censored_median_interval(known)
            low, high = interval.low, interval.high
    return {name: middle, f"{name}_low": low, f"{name}_high": high}
