"""A budget ladder as tables: what every rung says, and how much sooner or cheaper an arm is at equal accuracy.

The target of an arm is the uncompressed run of its own optimizer at budget 1, by seed, so that a compressor is not credited
with its optimizer; an uncompressed run is its own target, there by definition. An arm with a run that diverged on any rung
gets no number, with the count, as it is never equal; seeds lost otherwise are left out and n says how many remain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from suite.analysis.columns import COSTS
from suite.analysis.statistics import (
    MINIMUM_FOR_INTERVAL,
    EqualLoss,
    Interval,
    equal_loss_speedup,
    mean_interval,
    paired_difference,
)
from suite.analysis.study import Study
from suite.analysis.tables import Row, Value, number
from suite.runs.sweep import WHOLE

CellKey = tuple[str, str, int]
Seeds = Mapping[int, Row]
"""Rows of runs by seed."""


class NoSpeedupError(ValueError):
    """An arm has no speedup at equal accuracy; the message says why."""


@dataclass(frozen=True)
class Ladder:
    """The runs of one arm in one cell, by budget and seed, and those of its target at budget 1.

    direction: "higher" or "lower" is better.
    """

    cell: CellKey
    arm: str
    target: str
    direction: str
    rungs: Mapping[float, Seeds]
    reference: Seeds

    @property
    def budgets(self) -> list[float]:
        """Rising."""
        return sorted(self.rungs)

    @property
    def steps(self) -> list[int]:
        """Of the rungs, shortest first."""
        return [int(number(next(iter(self.rungs[budget].values())), "steps")) for budget in self.budgets]

    @property
    def seeds(self) -> list[int]:
        """Finished on every rung and by the target."""
        found = [set(_done(rows)) for rows in (*self.rungs.values(), self.reference)]
        return sorted(set.intersection(*found))

    def bytes_of(self, budget: float) -> float | None:
        """Sent in the whole training at a budget, mean over ranks and finished seeds; None where none finished."""
        sent = [
            number(row, "wire_bytes_per_step") * number(row, "steps")
            for row in _done(self.rungs[budget]).values()
        ]
        return fmean(sent) if sent else None

    def costs(self, cost: str) -> list[float]:
        """Of the rungs in steps or bytes. Raises NoSpeedupError where none of a rung finished."""
        if cost == "steps":
            return [float(steps) for steps in self.steps]
        found = [self.bytes_of(budget) for budget in self.budgets]
        if any(sent is None for sent in found):
            raise NoSpeedupError("no run of some rung finished")
        return [float(sent) for sent in found if sent is not None]

    def at_equal_accuracy(self, reference: float, costs: Sequence[float], level: float = 0.95) -> EqualLoss:
        """`reference`, a cost, over the cost at which the arm has the target's metric. costs: of the rungs, shortest first.

        Raises NoSpeedupError where the ladder gives no number.
        """
        self._usable(costs)
        if self.arm == self.target:
            ratio = reference / costs[self.budgets.index(WHOLE)]
            return EqualLoss(Interval(ratio, ratio, ratio, len(self.seeds), "by definition"), "")
        seeds = self.seeds
        values = [[number(self.rungs[budget][seed], "value") for seed in seeds] for budget in self.budgets]
        target = [number(self.reference[seed], "value") for seed in seeds]
        return equal_loss_speedup(reference, target, costs, values, direction=self.direction, level=level)

    def _usable(self, costs: Sequence[float]) -> None:
        rows = [row for rung in (*self.rungs.values(), self.reference) for row in rung.values()]
        if diverged := sum(row["status"] == "diverged" for row in rows):
            raise NoSpeedupError(
                f"{diverged} of its {len(rows)} runs, those of the target included, diverged"
            )
        if len(self.seeds) < MINIMUM_FOR_INTERVAL:
            raise NoSpeedupError(
                f"{len(self.seeds)} seeds finished at every budget, and it takes {MINIMUM_FOR_INTERVAL}"
            )
        if not max(costs):
            raise NoSpeedupError("it sends nothing")
        if not all(0 < a < b for a, b in itertools.pairwise(costs)):
            raise NoSpeedupError("what it costs does not grow with the budget")


def ladders(study: Study, rows: Iterable[Row]) -> list[Ladder]:
    """The ladders of a study in the order of cell and arm. rows: of runs, with `budget`, all rungs."""
    cells: dict[CellKey, dict[str, dict[float, dict[int, Row]]]] = {}
    for row in rows:
        key = str(row["workload"]), str(row["sharding"]), int(number(row, "world_size"))
        rungs = cells.setdefault(key, {}).setdefault(str(row["arm"]), {})
        rungs.setdefault(number(row, "budget"), {})[int(number(row, "seed"))] = row
    found = []
    for key, arms in sorted(cells.items()):
        for arm, rungs in sorted(arms.items()):
            target = study.by_name[arm].baseline or arm
            direction = study.yardsticks[key[0]].direction
            found.append(Ladder(key, arm, target, direction, rungs, arms[target][WHOLE]))
    return found


def ladder_rows(study: Study, found: Iterable[Ladder]) -> list[Row]:
    """The table `ladder`: a row an arm and rung."""
    return [_ladder_row(study, ladder, budget) for ladder in found for budget in ladder.budgets]


def iso_rows(found: Iterable[Ladder]) -> list[Row]:
    """The table `iso`: a row an arm and cost. What it is measured against is the cost of the target at budget 1."""
    every = list(found)
    by_arm = {(ladder.cell, ladder.arm): ladder for ladder in every}
    return [_iso_row(ladder, by_arm[ladder.cell, ladder.target], cost) for ladder in every for cost in COSTS]


def iso_cells(name: str, iso: EqualLoss | None, reason: str = "") -> dict[str, Value]:
    """A speedup at equal accuracy as cells; `name` is that of the estimate. Empty with its reason where there is none."""
    if iso is None:
        return {name: None, "low": None, "high": None, "censored": None, "reason": reason}
    found = iso.speedup
    return {
        name: found.estimate,
        "low": found.low,
        "high": found.high,
        "censored": iso.censored or None,
        "reason": None,
    }


def _iso_row(ladder: Ladder, target: Ladder, cost: str) -> Row:
    iso, reason = None, ""
    try:
        reference = target.costs(cost)[target.budgets.index(WHOLE)]
        iso = ladder.at_equal_accuracy(reference, ladder.costs(cost))
    except NoSpeedupError as error:
        reason = str(error)
    return {
        **_place(ladder),
        "cost": cost,
        "target": ladder.target,
        "n": len(ladder.seeds),
        **iso_cells("ratio", iso, reason),
    }


def _ladder_row(study: Study, ladder: Ladder, budget: float) -> Row:
    yard, rows = study.yardsticks[ladder.cell[0]], ladder.rungs[budget]
    done, reference = _done(rows), _done(ladder.reference)
    values = [number(row, "value") for row in done.values()]
    both = sorted(done.keys() & reference.keys())
    own, other = ([number(side[seed], "value") for seed in both] for side in (done, reference))
    mean = mean_interval(values) if len(values) >= MINIMUM_FOR_INTERVAL else None
    gap = paired_difference(own, other) if len(both) >= MINIMUM_FOR_INTERVAL else None
    return {
        **_place(ladder),
        "budget": budget,
        "steps": ladder.steps[ladder.budgets.index(budget)],
        "n": len(rows),
        "n_done": len(done),
        "n_diverged": sum(row["status"] == "diverged" for row in rows.values()),
        "metric": yard.metric,
        "unit": yard.unit,
        "mean": fmean(values) if values else None,
        "ci_low": mean.low if mean else None,
        "ci_high": mean.high if mean else None,
        "target": ladder.target,
        "n_pairs": len(both),
        "gap_mean": fmean(a - b for a, b in zip(own, other, strict=True)) if both else None,
        "gap_low": gap.low if gap else None,
        "gap_high": gap.high if gap else None,
        "wire_bytes": ladder.bytes_of(budget),
    }


def _place(ladder: Ladder) -> Row:
    workload, sharding, world_size = ladder.cell
    return {"workload": workload, "sharding": sharding, "world_size": world_size, "arm": ladder.arm}


def _done(rows: Seeds) -> dict[int, Row]:
    return {seed: row for seed, row in sorted(rows.items()) if row["status"] == "done"}
