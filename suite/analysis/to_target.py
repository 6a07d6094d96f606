"""How soon each method reaches a target that was stated beforehand, in steps and in bytes, and over all cells of a study.

The *curve* of a run is what each evaluation gave that it kept while it trained. It lies beside its result, in `metrics.jsonl`,
and is read with the same doubt: one that is damaged, or does not end where the result says, is refused by name, the run keeps
its result and has no curve. Where the whole test part would take long, all points of a curve are of the same part of it.

The *target* of a cell is set by its uncompressed arms alone: by the one that ends worst (median over its seeds), given way
by the margin within which results count as equal. So every uncompressed optimizer can reach it, no method has a say in
it, and one that misses it is worse than all of them.

A run has reached it at the first *evaluation* whose metric is as good; nothing is read between evaluations, so a time is
late by up to one gap (`resolution`). A run that never was so good, or diverged, is a miss: infinity, by which medians and
order-statistic intervals are censored. Where the learning rate decays by the budget, such times say as much of the
schedule as of the method; a budget sweep (`suite.analysis.budget_sweep`) is what compares there.

*Performance profiles* are over all cells that share their arms. Compared are the arms that every cell has, negative controls left
out; seeds are those that all of them ended with a curve. An arm that had a target before it sent anything, or whose runs did not
note their bytes, is in the profile of steps alone. A study of fewer than four such cells of six seeds gives no profile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

import pandas as pd

from suite.analysis.columns import ARM, CELL, CURVES, PROFILES, RUN, TO_TARGET
from suite.analysis.statistics import (
    LEAST_WORKLOADS,
    MINIMUM_FOR_INTERVAL,
    censored_median_interval,
    performance_profiles,
)
from suite.analysis.study import Entry, Study
from suite.analysis.summary import arms_of, ends_of
from suite.analysis.tables import Row, Value, checked, frame_of
from suite.runs.files import RefusedError
from suite.runs.store import AGAIN, Store

ENDED: Final = ("done", "diverged")
"""What a run is that has a curve: others say nothing of the method."""
TAUS: Final = tuple(2 ** (k / 6) for k in range(73))
"""Multiples of the least at which a share is stated, up to 4096."""


def read_curve(store: Store, result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluations of a run with this result, in order; none where it kept none. Raises `RefusedError`."""
    run_id, metric = result["run_id"], result["metric"]
    lines = store.metrics(run_id)
    path = store.folder(run_id) / "metrics.jsonl"
    for number, line in enumerate(lines, start=1):
        for name in {metric, "nll"} & line.keys():
            if isinstance(line[name], bool) or not isinstance(line[name], int | float | None):
                raise RefusedError(
                    path, f"is refused (line {number}: {name} is {line[name]!r}, not a number)", AGAIN
                )
    if lines and result["status"] == "done":
        last = lines[-1]
        if (last["step"], last["train_loss"]) != (result["steps"], result["train_loss_last"]):
            raise RefusedError(path, "is refused (it does not end as result.json does)", AGAIN)
    return lines


def curves_of(store: Store, study: Study, results: Mapping[str, Mapping[str, Any] | None]) -> pd.DataFrame:
    """The table `curves`: a row an evaluation of every run that is done or has diverged.

    Args:
        store: Where the runs lie.
        study: Whose runs of budget 1 are read.
        results: What they ended with, by run id; None where there is none that can be used.

    Returns:
        The table; a run whose curve is refused has no row (`bandwise check` names it).
    """
    rows = (row for entry in study.whole for row in _curve_rows(store, entry, results[entry.spec.run_id]))
    return frame_of(CURVES, rows)


def _curve_rows(store: Store, entry: Entry, result: Mapping[str, Any] | None) -> Iterable[Row]:
    if result is None or result["status"] not in ENDED or "metric" not in result:
        return
    try:
        lines = read_curve(store, result)
    except RefusedError:
        return  # `bandwise check` names it
    for line in lines:
        yield {
            "workload": entry.workload,
            "sharding": entry.spec.sharding,
            "world_size": entry.spec.world_size,
            "arm": entry.arm,
            "seed": entry.spec.seed,
            "step": line["step"],
            "value": _float(line.get(result["metric"])),
            "nll": _float(line.get("nll")),
            "train_loss": _float(line["train_loss"]),
            "wire_bytes": _float(line.get("wire_bytes")),
        }


def _float(value: Any) -> Value:
    return None if value is None else float(value)


# ---- targets, and when runs had them first


def targets(study: Study, runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """The target of every cell that has one.

    Args:
        study: Its arms, and how its workloads are judged.
        runs: The table `runs`.
        curves: The table `curves`. Ends are its last values, of the same examples as all that is compared with the target.

    Returns:
        A row a cell: `reference`, the uncompressed arm that sets the target, `target` in the metric's unit, and `sign`, 1 where
        higher is better and -1 otherwise. A cell has none where no uncompressed arm ended, or most seeds of each diverged.
    """
    uncompressed = [arm.name for arm in study.arms if arm.baseline is None and not arm.control]
    ended = runs[runs["arm"].isin(uncompressed) & runs["status"].isin(ENDED)]
    last = curves.sort_values("step").drop_duplicates(RUN, keep="last")
    ended = ended[[*RUN, "status"]].merge(last[[*RUN, "value"]], on=RUN, how="left")
    sign = (
        ended["workload"].map(_signs(study)).astype(float)
    )  # no row, no number: pandas over pyarrow leaves text then
    score = (sign * ended["value"]).where(ended["status"] != "diverged", -math.inf)
    ends = ended.assign(score=score, sign=sign).groupby([*ARM, "sign"])["score"].median().reset_index()
    worst = ends[ends["score"].abs() < math.inf].sort_values(["score", "arm"]).drop_duplicates(CELL)
    margin = (
        worst["workload"].map({label: yard.margin for label, yard in study.yardsticks.items()}).astype(float)
    )
    return worst.assign(target=worst["sign"] * (worst["score"] - margin)).rename(columns={"arm": "reference"})


def _signs(study: Study) -> dict[str, float]:
    """1 for workloads on which higher is better, -1 for the others."""
    return {label: 1.0 if yard.direction == "higher" else -1.0 for label, yard in study.yardsticks.items()}


def arrivals(study: Study, runs: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """When every run had its cell's target first, in cells that have one and curves.

    Args:
        study: Its arms, and how its workloads are judged.
        runs: The table `runs`.
        curves: The table `curves`, or the part of it that is to count.

    Returns:
        A row a run, seeds rising: `reference`, `target`, `status`, and where the run diverged or has a curve, `steps` and
        `wire_bytes` until then: inf where it never had it, bytes missing where they were not recorded. `gap`: steps between
        evaluations or up to the first, the most; missing without a curve. Runs without a curve have nothing.
    """
    ordered = curves.sort_values([*RUN, "step"], kind="stable")
    before = ordered.groupby(RUN)["step"].shift().fillna(0)
    gaps = (
        (ordered["step"] - before).groupby([ordered[name] for name in RUN]).max().rename("gap").reset_index()
    )
    of_cells = targets(study, runs, curves).merge(curves[CELL].drop_duplicates())
    seen = ordered.merge(of_cells, on=CELL)
    reached = seen[seen["sign"] * seen["value"] >= seen["sign"] * seen["target"]].drop_duplicates(RUN)
    first = reached[[*RUN, "step", "wire_bytes"]].rename(columns={"step": "steps"}).assign(reached=True)
    found = runs.sort_values(RUN)[[*RUN, "status"]].merge(of_cells[[*CELL, "reference", "target"]], on=CELL)
    found = found.merge(gaps, on=RUN, how="left").merge(first, on=RUN, how="left")
    diverged = found["status"] == "diverged"
    never = diverged | (found["gap"].notna() & found["reached"].isna())
    found["gap"] = found["gap"].mask(diverged)
    for name in ("steps", "wire_bytes"):
        found[name] = found[name].astype("float64").mask(never, math.inf)
    return found.drop(columns="reached")


def to_target(study: Study, arrived: pd.DataFrame) -> pd.DataFrame:
    """The table `to-target`: a row an arm and cell.

    Args:
        study: Its arms.
        arrived: What `arrivals` gives.

    Returns:
        The table.
    """
    counted = arrived[arrived["steps"].notna()]
    pairs = _pairs(study, counted)
    every, ended = arrived.groupby(ARM), counted.groupby(ARM)
    arms = pd.DataFrame(
        {
            "reference": every["reference"].first(),
            "target": every["target"].first(),
            "n": every["steps"].count(),
            "n_reached": (arrived["steps"] < math.inf).groupby([arrived[name] for name in ARM]).sum(),
            "n_diverged": (arrived["status"] == "diverged").groupby([arrived[name] for name in ARM]).sum(),
            "resolution": every["gap"].max().astype("Int64"),
            "n_pairs": pairs.groupby(ARM).size().reindex(every.size().index, fill_value=0),
        }
    ).join(
        [
            _spread(ended, "steps"),
            _spread(ended, "wire_bytes"),
            _spread(pairs.groupby(ARM), "steps_ratio"),
            _spread(pairs.groupby(ARM), "bytes_ratio"),
        ]
    )
    table = arms.reset_index().merge(arms_of(study), on="arm")
    table["n_pairs"] = table["n_pairs"].astype("Int64").mask(table["baseline"].isna())
    return checked(TO_TARGET, table[list(TO_TARGET.names)])


def _pairs(study: Study, counted: pd.DataFrame) -> pd.DataFrame:
    """Runs beside the run of their baseline with the same seed, where one of both had the target, with how many times fewer
    steps and bytes than the baseline they took: 0 where only the baseline got there.
    """
    own = counted.merge(arms_of(study)[["arm", "baseline"]], on="arm")
    other = counted[[*RUN, "steps", "wire_bytes"]].rename(columns={"arm": "baseline"})
    pairs = own.merge(other, on=[*CELL, "baseline", "seed"], suffixes=("", "_of_baseline")).sort_values(RUN)
    pairs = pairs[(pairs["steps"] < math.inf) | (pairs["steps_of_baseline"] < math.inf)]
    return pairs.assign(
        steps_ratio=_times_fewer(pairs, "steps"), bytes_ratio=_times_fewer(pairs, "wire_bytes")
    )


def _times_fewer(pairs: pd.DataFrame, name: str) -> pd.Series:
    own, baseline = pairs[name], pairs[f"{name}_of_baseline"]
    ratio = (baseline / own).mask(own == 0, math.inf).mask(own == math.inf, 0.0)
    return ratio.where(own.notna() & baseline.notna())


def _spread(groups: Any, name: str) -> pd.DataFrame:
    """Censored median of a column with its interval by group; empty where a value is unknown, the interval below six."""
    lists = groups[name].agg(lambda values: values.tolist() if values.notna().all() else None).dropna()
    intervals = lists[lists.map(len) >= MINIMUM_FOR_INTERVAL].map(censored_median_interval)
    return pd.DataFrame({name: lists.map(median).astype("float64")}).join(ends_of(intervals, name))


# ---- over all cells


def profiles_of(study: Study, arrived: pd.DataFrame) -> pd.DataFrame:
    """The table `profiles`.

    Args:
        study: Its arms.
        arrived: What `arrivals` gives.

    Returns:
        The table, without rows where the study has too little for one.
    """
    shared = arrived.drop_duplicates(ARM).groupby("arm").size() == len(arrived.drop_duplicates(CELL))
    controls = [arm.name for arm in study.arms if arm.control]
    arms = [arm for arm in shared.index[shared] if arm not in controls]
    ended = arrived[arrived["arm"].isin(arms) & arrived["steps"].notna()]
    of_seed = ended.groupby([*CELL, "seed"])["arm"].transform("size")
    whole = ended[of_seed == len(arms)]
    seeds = whole.drop_duplicates([*CELL, "seed"]).groupby(CELL)["seed"].transform("size")
    seeds = seeds[seeds >= MINIMUM_FOR_INTERVAL]
    whole = whole.merge(whole.loc[seeds.index, [*CELL, "seed"]])
    cells = len(whole.drop_duplicates(CELL))
    if cells < LEAST_WORKLOADS:
        return frame_of(PROFILES, ())
    rows: list[Row] = []
    for quantity, column in {"steps": "steps", "bytes": "wire_bytes"}.items():
        amounts = whole[column].fillna(0.0)  # bytes that were not recorded, or none: no profile takes 0
        usable = whole.assign(amount=amounts)[amounts.groupby(whole["arm"]).transform("min") > 0]
        by_arm: Iterable[tuple[Any, pd.DataFrame]] = usable.groupby("arm")
        times = {arm: of_arm.groupby(CELL)["amount"].agg(list).tolist() for arm, of_arm in by_arm}
        if times:
            rows += _profile_rows(study, quantity, times, {"cells": cells, "seeds": int(seeds.min())})
    return frame_of(PROFILES, rows)


def _profile_rows(
    study: Study, quantity: str, times: Mapping[str, Sequence[Sequence[float]]], counts: Row
) -> list[Row]:
    profiles = performance_profiles(times, TAUS)
    risen = max(profile.share.index(profile.share[-1]) for profile in profiles.values())
    last = min(risen + 3, len(TAUS) - 1)
    return [
        {
            "quantity": quantity,
            "arm": arm,
            "tau": tau,
            "family": study.by_name[arm].family,
            "share": profile.share[i],
            "low": profile.low[i],
            "high": profile.high[i],
            "never": profile.missed,
            **counts,
        }
        for arm, profile in profiles.items()
        for i, tau in enumerate(TAUS[: last + 1])
    ]
