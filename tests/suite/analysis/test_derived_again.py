"""Published tables are those that the code makes of published runs, rounds and rates: a changed number is a changed method."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

import pandas as pd
import pytest

from suite.analysis.collect import summarise
from suite.analysis.equal_time import net_table, worth_table
from suite.analysis.gates import gate_rows
from suite.analysis.published import find_frame, load_facts, runs_at_all_budgets, studies_of
from suite.analysis.rho import own_computing, rho_tables
from suite.analysis.study import Study, study_of, tuning_rows
from suite.analysis.tables import (
    ARMS,
    CELL,
    GATES,
    NET,
    NET_ROUNDS,
    RUNS,
    SENSITIVITY,
    SESSION,
    SUMMARY,
    TUNING,
    WORTH,
    Table,
    frame_of,
)
from suite.runs.plan import make_plan
from suite.runs.sweep import load_sweep, sweep_names
from tests.support import ROOT

PUBLISHED = ROOT / "results" / "published"
FAST = ("quick", "python-150k")
"""With a session each; the second is judged over rho and has gates."""
STUDIES = sorted({*studies_of(PUBLISHED)} & {*sweep_names()})


def made_again(name: str) -> Mapping[Table, pd.DataFrame]:
    """Tables of a study by name, of what is published of its runs."""
    sweep = load_sweep(name)
    study, runs, every = (
        study_of(make_plan(sweep)),
        find_frame(PUBLISHED, RUNS, name),
        runs_at_all_budgets(PUBLISHED, name),
    )
    assert runs is not None
    summary, sensitivity = summarise(study, runs)
    found = {SUMMARY: summary, SENSITIVITY: sensitivity, TUNING: frame_of(TUNING, tuning_rows(sweep))}
    if sweep.gates:
        found[GATES] = frame_of(GATES, gate_rows(sweep))
    if study.references and every is not None:
        found[WORTH] = worth_table(study, every)
        if study.by_rho:
            kappas = own_computing(PUBLISHED, name)
            found |= rho_tables(study, every, {arm: max(0.0, median(own)) for arm, own in kappas.items()})
        found |= net_of(name, study, every)
    return found


def net_of(name: str, study: Study, every: pd.DataFrame) -> Mapping[Table, pd.DataFrame]:
    """Net speedups of the session of a study's name, where there is one."""
    rounds, arms = (find_frame(PUBLISHED, table, f"{SESSION}{name}") for table in (NET_ROUNDS, ARMS))
    facts = load_facts(PUBLISHED, name)
    if rounds is None or arms is None or facts is None:
        return {}
    cells = every[CELL].drop_duplicates()
    (workload,) = {*cells["workload"]}
    return {NET: net_table(study, every, rounds, arms, (workload, facts["world_size"]))}


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.full) for name in STUDIES if name not in FAST)]
)
def test_every_number_and_word_is_found_again(name: str) -> None:
    for table, frame in made_again(name).items():
        known = find_frame(PUBLISHED, table, f"{SESSION}{name}" if table is NET else name)
        keys = [*table.names[: table.keys]]
        one, other = (of.sort_values(keys).reset_index(drop=True) for of in (frame, known))
        # runs have nine digits: a difference of two accuracies near 100 is known to 1e-7
        pd.testing.assert_frame_equal(one, other, rtol=1e-6, atol=1e-7, obj=f"{name}, {table.suffix}")
