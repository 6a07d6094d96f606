"""Net speedups: what counts, and what gives none. Numbers and verdicts are found again by other code in `tests/audit`."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import pandas as pd
import pytest

from suite.analysis.equal_time import net_table, round_rows
from suite.analysis.tables import NET, NET_ROUNDS, PLACE, frame_of
from tests.suite.analysis.test_rho import BUDGETS, runs, study

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


def test_seconds_of_an_arm_are_confirmed_by_direct_runs_of_its_own_alone() -> None:
    table = net_of(runs(), rounds())
    assert table.loc["local", "check"] == "confirmed"
    assert pd.isna(table.loc["weak", "check"])


@pytest.mark.parametrize(
    ("alone", "word"), [(0.5, "worth it"), (0.8, "undecided"), (1.2, "not worth it"), (0.03, "worth it")]
)
def test_worth_it_is_what_beats_plain_training_and_one_worker_alone(alone: float, word: str) -> None:
    """By what both are worth; of one worker below the budgets a bound decides."""
    local = net_of(runs(alone=alone), rounds(3)).loc["local"]
    assert (local["plain"], local["alone"], local["verdict"]) == ("worth it", word, word)
    over = (
        pytest.approx(0.8 / alone, rel=0.03) if alone > BUDGETS[0] else pytest.approx(math.nan, nan_ok=True)
    )
    assert local["over"] == over


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
