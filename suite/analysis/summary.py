"""Rows of runs to one row an arm: means, paired differences, tests, equality, bytes.

Everything is computed inside a *cell*, the runs of one workload, sharding and world size. Differences pair a
run with the run of its baseline that has the same seed; seeds that either lost are left out of the pair,
counted, and keep the arm from being called equal. Nothing is filled in for a run that failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import fmean

from suite.analysis.equivalence import Control, Sensitivity, equality, sensitivity
from suite.analysis.statistics import (
    MINIMUM_FOR_INTERVAL,
    Interval,
    can_rank,
    holm,
    mean_interval,
    paired_difference,
    sign_flip_p,
)
from suite.analysis.study import Study, StudyError, Yardstick
from suite.analysis.tables import Row, Value

CellKey = tuple[str, str, int]


class Cell:
    """The runs of one workload, sharding and world size, by arm and seed."""

    def __init__(self, study: Study, key: CellKey, rows: Iterable[Row]) -> None:
        self.study = study
        self.key = key
        self.yardstick: Yardstick = study.yardsticks[key[0]]
        self.arms: dict[str, dict[int, Row]] = {}
        for row in rows:
            seeds = self.arms.setdefault(str(row["arm"]), {})
            if seeds.setdefault(int(row["seed"] or 0), row) is not row:
                raise StudyError(
                    f"sweep {study.name}: arm {row['arm']} has two runs of seed {row['seed']} on {key[0]}, "
                    f"{key[1]}; give them two arms"
                )

    def done(self, arm: str) -> dict[int, Row]:
        """Finished runs of an arm by seed."""
        return {seed: row for seed, row in sorted(self.arms.get(arm, {}).items()) if row["status"] == "done"}

    def count(self, arm: str, status: str) -> int:
        """How many of the arm's runs have that status."""
        return sum(row["status"] == status for row in self.arms[arm].values())

    def stale(self, arm: str) -> int:
        """How many runs of the arm and of its baseline come from another source of their method."""
        baseline = self.study.by_name[arm].baseline
        rows = [*self.arms[arm].values(), *(self.arms.get(baseline, {}).values() if baseline else ())]
        return sum(bool(row["stale"]) for row in rows)

    def values(self, arm: str, column: str) -> list[float]:
        """The column over the arm's finished runs, seeds in order; runs without it are left out."""
        return [float(row[column] or 0.0) for row in self.done(arm).values() if row[column] is not None]

    def pairs(self, arm: str, column: str) -> tuple[list[float], list[float]]:
        """The column of the arm and of its baseline over the seeds that both finished."""
        baseline = self.study.by_name[arm].baseline
        own, other = self.done(arm), self.done(baseline) if baseline else {}
        seeds = [s for s in own if s in other and own[s][column] is not None and other[s][column] is not None]
        return [float(own[s][column] or 0.0) for s in seeds], [float(other[s][column] or 0.0) for s in seeds]

    def difference(self, arm: str, column: str = "value") -> Interval | None:
        """Paired difference to the baseline with its interval, or None below six pairs."""
        own, other = self.pairs(arm, column)
        return paired_difference(own, other) if len(own) >= MINIMUM_FOR_INTERVAL else None


def cells(study: Study, runs: Iterable[Row]) -> list[Cell]:
    """The runs sorted into cells, cells in order of their key."""
    groups: dict[CellKey, list[Row]] = {}
    for row in runs:
        key = (str(row["workload"]), str(row["sharding"]), int(row["world_size"] or 0))
        groups.setdefault(key, []).append(row)
    return [Cell(study, key, groups[key]) for key in sorted(groups)]


def _control(cell: Cell, arm: str) -> Control:
    difference = cell.difference(arm)
    if difference is None:
        planned = len(cell.arms[arm])
        return Control(arm, None, collapsed=cell.count(arm, "diverged") == planned, planned=planned)
    if cell.yardstick.direction == "lower":
        return Control(arm, difference)
    d = difference
    return Control(arm, Interval(-d.estimate, -d.high, -d.low, d.n, d.method))


def sensitivity_rows(study: Study, runs: Iterable[Row]) -> list[Row]:
    """One row a cell: whether its negative controls show that a bad method would have been seen."""
    rows: list[Row] = []
    for cell in cells(study, runs):
        controls = [_control(cell, name) for name in sorted(cell.arms) if study.by_name[name].control]
        yard = cell.yardstick
        verdict = sensitivity(controls, yard.margin, yard.unit, yard.no_verdict)
        rows.append(
            {
                "workload": cell.key[0],
                "sharding": cell.key[1],
                "world_size": cell.key[2],
                "controls": len(controls),
                "sensitive": verdict.sensitive,
                "reason": verdict.reason,
                "weakest": verdict.weakest,
                "weakest_loss": verdict.weakest_loss,
                "margin": cell.yardstick.margin,
                "unit": cell.yardstick.unit,
            }
        )
    return rows


def _tests(cell: Cell) -> dict[str, tuple[float, float]]:
    """Exact p and Holm-adjusted p by arm; empty where the sweep does not rank or too few seeds finished.

    The table that Holm corrects over holds every compared arm; one without a complete set of pairs enters
    with p = 1.
    """
    compared = [name for name in sorted(cell.arms) if _is_method(cell, name)]
    if not cell.study.ranks or not compared:
        return {}
    exact: dict[str, float] = {}
    for name in compared:
        own, other = cell.pairs(name, "value")
        complete = len(own) == len(cell.arms[name]) and not cell.stale(name)
        if complete and can_rank(len(own), len(compared)):
            exact[name] = sign_flip_p(own, other)
    adjusted = holm([exact.get(name, 1.0) for name in compared])
    return {name: (exact[name], p) for name, p in zip(compared, adjusted, strict=True) if name in exact}


def _is_method(cell: Cell, arm: str) -> bool:
    return cell.study.by_name[arm].baseline is not None and not cell.study.by_name[arm].control


def _ratios(cell: Cell, arm: str) -> list[float]:
    own, other = cell.pairs(arm, "wire_bytes_per_step")
    return [reference / sent if sent else math.inf for sent, reference in zip(own, other, strict=True)]


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _if_any(function: Callable[[list[float]], float], values: list[float]) -> float | None:
    return function(values) if values else None


def _one(cell: Cell, arm: str, column: str) -> Value:
    found = {row[column] for row in cell.arms[arm].values()}
    if len(found) != 1:
        raise StudyError(
            f"sweep {cell.study.name}: the runs of arm {arm} on {cell.key[0]}, {cell.key[1]}, differ in "
            f"{column}; give them several arms"
        )
    return found.pop()


def _row(cell: Cell, name: str, study: Sensitivity, test: tuple[float, float] | None) -> Row:
    arm = cell.study.by_name[name]
    values = cell.values(name, "value")
    mean = mean_interval(values) if len(values) >= MINIMUM_FOR_INTERVAL else None
    own, other = cell.pairs(name, "value")
    difference, nll = cell.difference(name), cell.difference(name, "nll")
    nll_own, nll_other = cell.pairs(name, "nll")
    is_baseline = arm.baseline is None
    ratios = [1.0] if is_baseline and values else _ratios(cell, name)
    planned, diverged = len(cell.arms[name]), cell.count(name, "diverged")
    word = (
        equality(difference, cell.yardstick.margin, study, planned=planned, done=len(own), diverged=diverged)
        if _is_method(cell, name)
        else None
    )
    if word == "no" and cell.yardstick.no_verdict and not diverged:
        word = "not sensitive"  # its margin was not measured, so a difference beyond it says nothing either
    return {
        "workload": cell.key[0],
        "sharding": cell.key[1],
        "world_size": cell.key[2],
        "arm": name,
        "algorithm": arm.algorithm,
        "family": arm.family,
        "control": arm.control,
        "n": planned,
        "n_done": len(values),
        "n_diverged": diverged,
        "n_stale": sum(bool(row["stale"]) for row in cell.arms[name].values()),
        "metric": cell.yardstick.metric,
        "unit": cell.yardstick.unit,
        "mean": _mean(values),
        "ci_low": mean.low if mean else None,
        "ci_high": mean.high if mean else None,
        "baseline": arm.baseline,
        "n_pairs": None if is_baseline else len(own),
        "diff_mean": _mean([a - b for a, b in zip(own, other, strict=True)]),
        "diff_low": difference.low if difference else None,
        "diff_high": difference.high if difference else None,
        "nll_mean": _mean(cell.values(name, "nll")),
        "nll_diff_mean": _mean([a - b for a, b in zip(nll_own, nll_other, strict=True)]),
        "nll_diff_low": nll.low if nll else None,
        "nll_diff_high": nll.high if nll else None,
        "p_exact": test[0] if test else None,
        "p_holm": test[1] if test else None,
        "equal": word,
        "margin": cell.yardstick.margin,
        "bytes_ratio": _mean(ratios),
        "bytes_ratio_low": _if_any(min, ratios),
        "bytes_ratio_high": _if_any(max, ratios),
        "wire_bytes_per_step": _mean(cell.values(name, "wire_bytes_per_step")),
        "payload_bytes_per_step": _mean(cell.values(name, "payload_bytes_per_step")),
        "syncs": _mean(cell.values(name, "syncs")),
        "lr_peak": _one(cell, name, "lr_peak"),
        "lr_edge": arm.lr_edges.get(cell.key),
    }


def summary_rows(study: Study, runs: Iterable[Row], judged: Iterable[Row]) -> list[Row]:
    """One row an arm and cell. `judged` are the rows of `sensitivity_rows` for the same runs."""
    verdicts = {(row["workload"], row["sharding"], row["world_size"]): row for row in judged}
    rows: list[Row] = []
    for cell in cells(study, runs):
        tests = _tests(cell)
        found = verdicts[cell.key]
        verdict = Sensitivity(bool(found["sensitive"]), str(found["reason"]), None, None)
        rows += [_row(cell, name, verdict, tests.get(name)) for name in sorted(cell.arms)]
    return rows
