"""A sweep over budgets as tables: what every budget says, and how much sooner or cheaper an arm is at equal loss.

The target of an arm is the uncompressed run of its own optimizer at budget 1, by seed, so that a compressor is not credited
with its optimizer; an uncompressed run is its own target, there by definition. An arm with a run that diverged at any budget
gets no number, with the count, as it is never equal; seeds lost otherwise are left out and n says how many remain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from suite.analysis.columns import ARM, BUDGET_SWEEP, CELL, COSTS, EQUAL_LOSS, RUN
from suite.analysis.statistics import MINIMUM_FOR_INTERVAL, EqualLoss, Interval, equal_loss_speedup
from suite.analysis.study import Study
from suite.analysis.summary import Cell, arms_of, ends_of, interval_by, refuse_two_of_a_seed
from suite.analysis.tables import Row, Value, checked, frame_of
from suite.runs.sweep import WHOLE


class NoSpeedupError(ValueError):
    """An arm has no speedup at equal loss; the message says why."""


@dataclass(frozen=True, eq=False)
class Budgets:
    """The runs of one arm in one cell at all budgets, and those of its target at budget 1.

    direction: "higher" or "lower" is better. runs, reference: rows of the table `runs` with their `budget`.
    """

    cell: Cell
    arm: str
    target: str
    direction: str
    runs: pd.DataFrame
    reference: pd.DataFrame

    @cached_property
    def budgets(self) -> list[float]:
        """Rising."""
        return sorted(self.runs["budget"].unique().tolist())

    @cached_property
    def finished(self) -> pd.DataFrame:
        """The metric at the end by seed, of those that finished at every budget and with the target: a column a budget, and
        `target`.
        """
        done, reference = (frame[frame["status"] == "done"] for frame in (self.runs, self.reference))
        values = done.pivot(index="seed", columns="budget", values="value").reindex(columns=self.budgets)
        return values.assign(target=reference.set_index("seed")["value"]).dropna()

    def costs(self, cost: str) -> list[float]:
        """Steps, or bytes sent in the whole training (mean over ranks and finished seeds), of every budget.

        Raises NoSpeedupError where no run of a budget finished.
        """
        if cost == "steps":
            return self.runs.groupby("budget")["steps"].first().astype("float64").tolist()
        sent = sent_by_budget(self.runs).groupby("budget").mean().reindex(self.budgets)
        if sent.isna().any():
            raise NoSpeedupError("no run of some rung finished")
        return sent.tolist()

    def at_equal_loss(self, reference: float, costs: Sequence[float], level: float = 0.95) -> EqualLoss:
        """How much cheaper the arm is where it has the target's metric.

        Args:
            reference: What the target costs at budget 1.
            costs: Of the arm's budgets, the least first, in the same unit.
            level: Of the interval.

        Returns:
            `reference` over the cost at which the arm has the target's metric.

        Raises:
            NoSpeedupError: The budgets give no number; the message says why.
        """
        self._usable(costs)
        values = self.finished
        if self.arm == self.target:
            ratio = reference / costs[self.budgets.index(WHOLE)]
            return EqualLoss(Interval(ratio, ratio, ratio, len(values), "by definition"), "")
        by_budget = [values[budget].tolist() for budget in self.budgets]
        return equal_loss_speedup(
            reference, values["target"].tolist(), costs, by_budget, direction=self.direction, level=level
        )

    def _usable(self, costs: Sequence[float]) -> None:
        states = pd.concat([self.runs["status"], self.reference["status"]])
        if diverged := int((states == "diverged").sum()):
            raise NoSpeedupError(
                f"{diverged} of its {len(states)} runs, those of the target included, diverged"
            )
        if len(self.finished) < MINIMUM_FOR_INTERVAL:
            raise NoSpeedupError(
                f"{len(self.finished)} seeds finished at every budget, and it takes {MINIMUM_FOR_INTERVAL}"
            )
        if not max(costs):
            raise NoSpeedupError("it sends nothing")
        if not all(0 < a < b for a, b in itertools.pairwise(costs)):
            raise NoSpeedupError("what it costs does not grow with the budget")


def budgets_of(study: Study, runs: pd.DataFrame) -> list[Budgets]:
    """The arms of a study with their runs at all budgets, in the order of cell and arm.

    Args:
        study: Its arms, and how its workloads are judged.
        runs: Rows of the table `runs` of all budgets, with `budget`.

    Returns:
        One for every cell and arm that runs at several budgets; none where only references do, by which `worth` and `net`
        measure the methods.

    Raises:
        StudyError: An arm has two runs of one seed and budget.
    """
    refuse_two_of_a_seed(study, runs, "budget")
    if study.references:
        return []
    groups: Iterable[tuple[Any, pd.DataFrame]] = runs.sort_values([*RUN, "budget"]).groupby(ARM)
    by_place: dict[Any, pd.DataFrame] = dict(iter(groups))
    arms = []
    for (*cell, arm), of_arm in by_place.items():
        if of_arm["budget"].nunique() == 1:
            continue
        target = study.by_name[arm].baseline or arm
        reference = by_place[*cell, target]
        direction = study.yardsticks[cell[0]].direction
        place: Cell = (cell[0], cell[1], cell[2])
        arms.append(Budgets(place, arm, target, direction, of_arm, reference[reference["budget"] == WHOLE]))
    return arms


def sent_by_budget(runs: pd.DataFrame) -> pd.Series:
    """Bytes sent in the whole training of every finished run, mean over ranks, by budget and what else is in the index."""
    done = runs[runs["status"] == "done"].set_index([*ARM, "budget"])
    return (done["wire_bytes_per_step"] * done["steps"]).astype("float64")


def budget_table(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """The table `ladder`: a row an arm and budget.

    Args:
        study: Its arms, and how its workloads are judged.
        runs: As in `budgets_of`.

    Returns:
        The table.
    """
    place = [*ARM, "budget"]
    several = runs.groupby(ARM)["budget"].transform("nunique") > 1
    ordered = runs[several].sort_values([*RUN, "budget"])
    ordered = ordered.merge(arms_of(study)[["arm", "baseline"]], on="arm")
    ordered["target"] = ordered["baseline"].fillna(ordered["arm"])
    done = ordered[ordered["status"] == "done"]
    of_target = done.loc[done["budget"] == WHOLE, [*RUN, "value"]].rename(columns={"arm": "target"})
    pairs = done.merge(of_target, on=[*CELL, "target", "seed"], suffixes=("", "_of_target"))
    pairs["gap"] = pairs["value"] - pairs["value_of_target"]
    every = ordered.groupby(place)
    table = pd.DataFrame(
        {
            "steps": every["steps"].first(),
            "n": every.size(),
            "n_done": done.groupby(place).size(),
            "n_diverged": (ordered["status"] == "diverged").groupby([ordered[name] for name in place]).sum(),
            "mean": done.groupby(place)["value"].mean(),
            "target": every["target"].first(),
            "n_pairs": pairs.groupby(place).size(),
            "gap_mean": pairs.groupby(place)["gap"].mean(),
            "wire_bytes": sent_by_budget(ordered).groupby(place).mean(),
        }
    ).join(
        [ends_of(interval_by(done, "value", place), "ci"), ends_of(interval_by(pairs, "gap", place), "gap")]
    )
    table[["n_done", "n_pairs"]] = table[["n_done", "n_pairs"]].fillna(0).astype("int64")
    table = table.reset_index()
    yards = [study.yardsticks[workload] for workload in table["workload"]]
    return checked(
        BUDGET_SWEEP, table.assign(metric=[yard.metric for yard in yards], unit=[yard.unit for yard in yards])
    )


def equal_loss_table(arms: Iterable[Budgets]) -> pd.DataFrame:
    """The table `iso`: a row an arm and cost. What it is measured against is the cost of the target at budget 1."""
    by_place = {(arm.cell, arm.arm): arm for arm in arms}
    return frame_of(
        EQUAL_LOSS,
        (
            _equal_loss_row(arm, by_place[arm.cell, arm.target], cost)
            for arm in by_place.values()
            for cost in COSTS
        ),
    )


def equal_loss_cells(name: str, result: EqualLoss | None, reason: str = "") -> dict[str, Value]:
    """A speedup at equal loss as cells; `name` is that of the estimate. Empty with its reason where there is none."""
    if result is None:
        return {name: None, "low": None, "high": None, "censored": None, "reason": reason}
    return {
        name: result.speedup.estimate,
        "low": result.speedup.low,
        "high": result.speedup.high,
        "censored": result.censored or None,
        "reason": None,
    }


def _equal_loss_row(arm: Budgets, target: Budgets, cost: str) -> Row:
    result, reason = None, ""
    try:
        reference = target.costs(cost)[target.budgets.index(WHOLE)]
        result = arm.at_equal_loss(reference, arm.costs(cost))
    except NoSpeedupError as error:
        reason = str(error)
    return {
        **dict(zip(ARM, (*arm.cell, arm.arm), strict=True)),
        "cost": cost,
        "target": arm.target,
        "n": len(arm.finished),
        **equal_loss_cells("ratio", result, reason),
    }
