"""A sweep over budgets as a table: what every budget says beside the uncompressed run of the same optimizer at budget 1."""

from __future__ import annotations

import pandas as pd

from suite.analysis.columns import ARM, BUDGET_SWEEP, CELL, RUN
from suite.analysis.study import Study
from suite.analysis.summary import arms_of, ends_of, interval_by, refuse_two_of_a_seed
from suite.analysis.tables import checked
from suite.runs.sweep import WHOLE


def sent_by_budget(runs: pd.DataFrame) -> pd.Series:
    """Bytes sent in the whole training of every finished run, mean over ranks, by budget and what else is in the index."""
    done = runs[runs["status"] == "done"].set_index([*ARM, "budget"])
    return (done["wire_bytes_per_step"] * done["steps"]).astype("float64")


def budget_table(study: Study, runs: pd.DataFrame) -> pd.DataFrame:
    """The table `ladder`: a row an arm and budget.

    Args:
        study: Its arms, and how its workloads are judged.
        runs: Rows of the table `runs` of all budgets, with `budget`.

    Returns:
        The table.

    Raises:
        StudyError: An arm has two runs of one seed and budget.
    """
    refuse_two_of_a_seed(study, runs, "budget")
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
