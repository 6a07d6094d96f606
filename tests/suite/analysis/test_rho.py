"""Windows of rho and net speedups: what counts, and what gives none. Numbers: `test_derived_again`, `tests/audit`."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from suite.analysis import collect as collecting
from suite.analysis.collect import collect, write
from suite.analysis.equal_time import net_table, round_rows
from suite.analysis.rho import GRID, null_test, rho_tables
from suite.analysis.study import Arm, Study, Yardstick
from suite.analysis.tables import (
    BY_RHO,
    NET,
    NET_ROUNDS,
    PLACE,
    RHO,
    WINDOWS,
    Table,
    frame_of,
    read_frame,
    table_path,
)
from suite.runs.sweep import ONE_WORKER, PLAIN
from tests.suite.analysis import made_up_ladder as ladder

CELL = ("code", "iid", 4)
BUDGETS = (0.0625, 0.125, 0.25, 0.5, 0.71, 1.0, 1.41)
BF16 = 400_000.0
"""Bytes a step of plain training."""
ENDS = {
    "local": (0.8, 1.0, 1, 0.125),
    "weak": (0.2, 1.0, 1, 0.1),
    "equal": (0.8, 0.5, 2, 1.0),
    "plain-fp32": (1.0, 1.0, 1, 2.0),
    "accumulation": (0.9, 0.5, 2, 1.0),
    "alone": (0.3, 1.0, 1, 0.01),
    "silent": (0.1, 1.0, 1, 0.01),
}
"""Arms: worth, steps, batch, bytes, over plain training. What is sent by one worker is no traffic of gradients."""
Frames = Mapping[Table, pd.DataFrame]


def study(*without: str) -> Study:
    arms = (
        Arm("plain", PLAIN, "baseline", "plain-fp32"),
        Arm("plain-fp32", "allreduce-adamw", "baseline"),
        *(Arm(name, "local-adamw", "synchronisation", "plain-fp32") for name in ("local", "weak", "equal")),
        Arm("accumulation", PLAIN, "baseline", "plain-fp32", alternative=True),
        Arm("alone", ONE_WORKER, "control", "plain-fp32", control=True, alternative=True),
        Arm("silent", "control-no-communication", "control", "plain-fp32", control=True),
    )
    yard = {"code": Yardstick("bits", "bits/byte", "lower", 0.02)}
    return Study(
        "made-up",
        tuple(arm for arm in arms if arm.name not in without),
        (),
        yard,
        references=("plain",),
        by_rho=True,
    )


def runs(**changed: float) -> pd.DataFrame:
    """Runs of eight seeds. changed: what arms are worth instead; nan: one seed diverged."""
    rng, rows = np.random.default_rng(2), []
    for seed in range(8):
        shared = 0.1 * rng.standard_normal()
        wanted = [("plain", b, b, b, 1, 1.0) for b in BUDGETS]
        wanted += [(arm, 1.0, changed.get(arm, own[0]), *own[1:]) for arm, own in ENDS.items()]
        for arm, budget, worth, steps, batch, nbytes in wanted:
            diverged = math.isnan(worth) and seed == 3
            loss = 2 + (1.0 if math.isnan(worth) else worth) ** -0.5 + shared + 0.003 * rng.standard_normal()
            status, value = ("diverged", math.nan) if diverged else ("done", loss)
            row = (*CELL, arm, seed, budget, round(800 * steps), 8 * batch, status, value, BF16 * nbytes)
            rows.append(row)
    columns = "workload sharding world_size arm seed budget steps batch_size status value wire_bytes_per_step"
    return pd.DataFrame(rows, columns=columns.split())


def tables(own: Study | None = None, **changed: float) -> Frames:
    own = own or study()
    of_arms = runs(**changed)
    return rho_tables(own, of_arms[of_arms["arm"].isin(own.by_name)])


def of(frames: Frames, table: Table, arm: str, overlap: str = "none") -> Any:
    frame = frames[table]
    found = frame[(frame["arm"] == arm) & (frame["overlap"] == overlap)]
    return found.set_index("rho") if table is RHO else found.iloc[0]


def test_against_plain_training_by_another_optimizer_beyond_the_budgets_nothing_is_worth_it() -> None:
    other = [
        replace(arm, algorithm="allreduce-muon", baseline=None) if arm.name == "weak" else arm
        for arm in study().arms
    ]
    found = tables(replace(study(), arms=tuple(other)), weak=2.0)
    assert of(found, WINDOWS, "weak")["role"] == "uncompressed"
    assert of(found, WINDOWS, "local")["reason"] == "weak ends better than all budgets"
    assert "worth it" not in set(of(found, RHO, "local")["verdict"])


def test_without_one_worker_alone_nothing_is_worth_it() -> None:
    found = tables(study("alone"))
    local = of(found, WINDOWS, "local")
    assert "worth it" not in set(of(found, RHO, "local")["verdict"])
    assert local["to_rho"] == math.inf
    assert local["reason"] == "no alternative that sends nothing ran: no method can be worth it"


def test_a_diverged_method_and_alternatives_beyond_the_budgets() -> None:
    found = tables(study("accumulation"), local=math.nan, alone=0.03)
    assert set(of(found, RHO, "local")["verdict"]) == {"not worth it"}
    weak = of(found, RHO, "weak")
    assert pd.isna(of(found, WINDOWS, "local")["from_rho"])
    rows = runs(local=math.nan)
    rows.loc[rows["status"] == "diverged", "wire_bytes_per_step"] *= 50  # it ended in another phase
    ended = of(rho_tables(study(), rows), WINDOWS, "local")
    assert ended["bytes"] == of(tables(), WINDOWS, "local")["bytes"], (
        "what it sends is that of runs that ended well"
    )
    assert of(found, WINDOWS, "alone")["worth"] == 0
    assert "worth it" in set(weak["verdict"])  # its interval lies above all that one worker may be worth


def test_plain_training_that_is_not_worth_1_fails_the_null_test() -> None:
    good, bad = (null_test(tables(**{"plain-fp32": worth})[WINDOWS]) for worth in (1.0, 0.9))
    for found, passed in ((good, True), (bad, False)):
        assert found["arm"].tolist() == ["plain-fp32"]
        assert found["passed"].tolist() == [passed]


def test_where_plain_training_sends_nothing_there_is_no_rho() -> None:
    assert rho_tables(study(), runs().assign(wire_bytes_per_step=0.0))[WINDOWS].empty


def test_the_tables_are_written_of_studies_that_ask_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And their session's kappas are in them, the median over links; what is below zero is noise."""
    made = ladder.study_of()
    made = replace(made, references=("allreduce-sgd",))
    ladder.run_all(tmp_path, made)
    assert not set(BY_RHO) & set(collect(tmp_path, made).tables)
    arms = [replace(arm, algorithm=PLAIN) if arm.name == "allreduce-sgd" else arm for arm in made.arms]
    names = [arm.name for arm in arms if arm.name != "allreduce-sgd"]
    monkeypatch.setattr(
        collecting, "own_computing", lambda *of: {names[0]: [0.3, 0.1, 0.2], names[1]: [-0.1]}
    )
    write(tmp_path, collect(tmp_path, replace(made, arms=tuple(arms), by_rho=True)))
    rho, windows = (read_frame(table_path(tmp_path, table, made.name), table) for table in BY_RHO)
    assert len(rho) == len(windows) * len(GRID)
    assert set(windows["sharding"]) == {"iid", "by-class"}
    kappas = dict(zip(windows["arm"], windows["kappa"], strict=True))
    assert (kappas[names[0]], kappas[names[1]]) == (0.2, 0.0)


# ---- net speedups on links

LINK = "100 Mbit/s"
TIMED = ("local", "weak", "alone")


def rounds(sessions: int = 1, timed: Collection[str] = TIMED) -> pd.DataFrame:
    """Rounds in which arms take a fifth of the reference's seconds."""
    rng, rows = np.random.default_rng(4), []
    for session in range(sessions):
        reference = pd.Series(10 * np.exp(0.02 * rng.standard_normal(8)))
        seconds = reference * 0.2 * np.exp(0.01 * rng.standard_normal(8))
        rows += round_rows(f"s{session}", {(LINK, "iid", arm): (seconds, reference) for arm in timed})
    return frame_of(NET_ROUNDS, rows)


def net_of(of_arms: pd.DataFrame, timed: pd.DataFrame, workers: int = 4) -> pd.DataFrame:
    """The table by arm; direct runs are of `local`, and refuse what has no rounds."""
    reasons = dict.fromkeys(timed["arm"])
    told = pd.DataFrame(
        [
            (LINK, "iid", arm, "confirmed", "local", reasons.get(arm, "direct runs disagree"))
            for arm in study().by_name
        ],
        columns=["link", "sharding", "arm", "check", "checked_by", "reason"],
    )
    return net_table(study(), of_arms, timed, told, ("code", workers)).set_index("arm")


def test_one_worker_below_the_budgets_is_beaten_by_a_bound() -> None:
    local = net_of(runs(alone=0.03), rounds(3)).loc["local"]
    assert (local["plain"], local["alone"], local["verdict"]) == ("worth it",) * 3
    assert pd.isna(local["over"])


def test_without_one_worker_nothing_is_worth_it() -> None:
    local = net_of(runs(), rounds(timed=("local", "weak"))).loc["local"]
    assert (local["plain"], local["verdict"]) == ("worth it", "undecided")
    assert pd.isna(local["alone"])


def test_sessions_of_fewer_than_six_rounds_do_not_count() -> None:
    taken = rounds(3)
    one, three = net_of(runs(), rounds()).loc["local"], net_of(runs(), taken).loc["local"]
    assert (one["sessions"], one["rounds"], three["sessions"], three["rounds"]) == (1, 8, 3, 24)
    disturbed = taken[(taken["session_id"] != "s1") | (taken["round"] < 5)]
    two = net_of(runs(), disturbed).loc["local"]
    assert (two["sessions"], two["rounds"]) == (2, 16)


def test_what_gives_no_number_says_why() -> None:
    every = runs()
    few = net_of(every[(every["arm"] != "local") | (every["seed"] > 2)], rounds()).loc["local"]
    assert few["reason"] == "a net speedup takes 6 seeds or more and got 5"
    assert pd.isna(few["verdict"])
    refused = net_of(every, rounds(timed=("weak", "alone"))).loc["local"]
    assert refused["reason"] == "direct runs disagree"
    assert pd.isna(refused["net"])
    assert net_of(every, rounds(), workers=8).empty
    assert list(NET.names[: NET.keys]) == PLACE


def in_rounds(behind: int, local: float) -> Frames:
    """The tables where `local` sends all in every eighth step, and computes for so many while it travels."""
    of_arms = runs(local=local)
    kinds = json.dumps({"average": [100, BF16, behind], "local": [700, 0, 1]})
    return rho_tables(study(), of_arms.assign(kinds=of_arms["arm"].map({"local": kinds}).astype("str")))


@pytest.mark.parametrize(
    ("behind", "seconds"), [(1, 7 / 8 + 10 / 8), (4, 7 / 8 + (10 - 3) / 8), (20, 10 / 8)]
)
def test_a_round_hides_its_exchange_behind_the_steps_that_it_has_for_it(behind: int, seconds: float) -> None:
    found, mean = in_rounds(behind, 0.8), tables()
    time = of(found, RHO, "local", "all")["time"]
    assert time.loc[10.0] == pytest.approx(seconds / 10)
    assert of(found, RHO, "local")["time"].equals(of(mean, RHO, "local")["time"])
    assert of(found, RHO, "weak", "all")["time"].equals(of(mean, RHO, "weak", "all")["time"])


def test_a_window_says_who_is_ahead_inside_it_and_its_verdict_is_unbroken() -> None:
    found = in_rounds(1, 0.95)
    row = of(found, WINDOWS, "local", "all")
    assert row["reason"] == "between these ends accumulation is ahead for a while"
    assert row["from_rho"] == pytest.approx(0.875 / (row["worth"] - 0.125), rel=1e-6)
    verdicts = of(found, RHO, "local", "all")["verdict"]
    assert verdicts[(verdicts.index > 1.5) & (verdicts.index < 2)].eq("not worth it").all()
    assert (
        verdicts[(verdicts.index > row["sure_from"]) & (verdicts.index < row["sure_to"])].eq("worth it").all()
    )
    assert 2 < row["sure_from"] < row["sure_to"]


def test_a_window_does_not_begin_where_another_rival_is_ahead() -> None:
    found = in_rounds(1, 0.91)
    row = of(found, WINDOWS, "local", "all")
    twice = of(found, WINDOWS, "accumulation", "all")["worth"]
    before = 0.875 / (row["worth"] - 0.125)  # from here on it is ahead of plain training
    assert (row["worth"] / twice - 0.875) / 0.125 < before  # and twice the batch is ahead of it
    assert row["from_rho"] == pytest.approx(1.75 * twice / (row["worth"] - 0.25 * twice), rel=5e-3)
    assert row["from_arm"] == "accumulation"
    assert pd.isna(row["reason"])
    assert row["from_low"] < row["from_rho"] < row["from_high"]
