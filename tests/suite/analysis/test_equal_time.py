"""Tables of net speedups from a made-up study of known answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from suite.analysis.equal_time import net_table, round_rows, worth_table
from suite.analysis.study import Arm, Study, Yardstick
from suite.analysis.tables import NET, NET_ROUNDS, PLACE, WORTH, frame_of, to_csv

BUDGETS = (0.25, 0.5, 0.71, 1.0, 1.41)
CELL = ("code", "iid", 4)
LINK = "100 Mbit/s"


def loss(budget: float) -> float:
    """Bits a byte of the reference at a budget."""
    return 2.0 + budget**-0.5


def study(direction: str = "lower", trials: dict[Any, Any] | None = None) -> Study:
    return Study(
        "made-up",
        (
            Arm("plain", "allreduce-adamw", "baseline"),
            *(Arm(name, "qsgd", "quantiser", "plain") for name in ("half", "broken")),
            Arm("alone", "allreduce-adamw", "baseline", "plain", alternative=True),
        ),
        (),
        {"code": Yardstick("bits_per_byte", "bits/byte", direction, 0.02)},
        references=("plain",),
        trials=trials or {},
    )


def runs(
    half: float = 0.5, sign: float = 1.0, sd: float = 0.003, missing: int = 0, alone: float = 0.3
) -> pd.DataFrame:
    """Runs of eight seeds: `half` and `alone` end where the reference ends at a budget; `broken` diverges with one seed."""
    rng, rows = np.random.default_rng(2), []
    for seed in range(8):
        shared = 0.1 * rng.standard_normal()
        ends = {("plain", budget): loss(budget) for budget in BUDGETS}
        ends |= {("half", 1.0): loss(half), ("broken", 1.0): loss(1.0), ("alone", 1.0): loss(alone)}
        for (arm, budget), value in ends.items():
            status = (
                "diverged"
                if (arm, seed) == ("broken", 3)
                else "error"
                if (arm == "half" and seed < missing)
                else "done"
            )
            noisy = sign * (value + shared + sd * rng.standard_normal())
            rows.append((*CELL, arm, seed, budget, status, noisy if status == "done" else math.nan))
    return pd.DataFrame(
        rows, columns=["workload", "sharding", "world_size", "arm", "seed", "budget", "status", "value"]
    )


def rounds(sessions: int = 1, time: float = 0.2) -> pd.DataFrame:
    """Rounds in which arms take `time` of the reference's seconds."""
    rng, rows = np.random.default_rng(4), []
    for session in range(sessions):
        at = pd.RangeIndex(8)
        reference = pd.Series(10 * np.exp(0.02 * rng.standard_normal(8)), at)
        seconds = reference * time * np.exp(0.01 * rng.standard_normal(8))
        rows += round_rows(
            f"s{session}",
            {(LINK, "iid", arm): (seconds, reference) for arm in ("half", "broken", "alone")}
            | {(LINK, "iid", "plain"): (1.25 * reference, reference)},
        )
    return frame_of(NET_ROUNDS, rows)


def arms(refused: tuple[str, ...] = (), checked_by: str = "half") -> pd.DataFrame:
    return pd.DataFrame(
        [
            (
                LINK,
                "iid",
                arm,
                arm in refused,
                "confirmed",
                checked_by,
                "direct runs disagree" if arm in refused else None,
            )
            for arm in ("half", "broken", "alone")
        ],
        columns=["link", "sharding", "arm", "refused", "check", "checked_by", "reason"],
    )


def test_worth_is_the_budget_at_which_the_reference_ends_as_well() -> None:
    table = worth_table(study(), runs()).set_index("arm")
    assert set(table.index) == {"half", "broken", "alone"}
    half = table.loc["half"]
    assert half["worth"] == pytest.approx(0.5, rel=0.02)
    assert half["low"] < 0.5 < half["high"] < 1.05 * half["low"] * 1.05
    assert (half["n"], half["n_diverged"], half["reference"]) == (8, 0, "plain")
    broken = table.loc["broken"]
    assert (broken["worth"], broken["n_diverged"]) == (0.0, 1)
    to_csv(WORTH, worth_table(study(), runs()))


def test_net_speedup_is_worth_over_time_with_a_verdict() -> None:
    table = net_table(study(), runs(), rounds(), arms(), ("code", 4)).set_index("arm")
    half = table.loc["half"]
    assert half["time"] == pytest.approx(0.2, rel=0.02)
    assert half["net"] == pytest.approx(2.5, rel=0.03)
    assert half["net_low"] < half["net"] < half["net_high"]
    assert (half["verdict"], half["check"], half["rounds"]) == ("worth it", "confirmed", 8)
    assert table.loc["broken", "verdict"] == "not worth it"
    assert pd.isna(table.loc["broken", "check"])  # checked by direct runs of another arm
    to_csv(NET, net_table(study(), runs(), rounds(), arms(), ("code", 4)))


@pytest.mark.parametrize(
    ("alone", "against", "word"),
    [(0.3, "worth it", "worth it"), (0.5, "undecided", "undecided"), (0.8, "not worth it", "not worth it")],
)
def test_worth_it_is_what_beats_plain_training_and_one_worker_alone(
    alone: float, against: str, word: str
) -> None:
    table = net_table(study(), runs(alone=alone), rounds(3), arms(), ("code", 4)).set_index("arm")
    half, worker = table.loc["half"], table.loc["alone"]
    assert half["over"] == pytest.approx(0.5 / alone, rel=0.03)
    assert half["over_low"] < half["over"] < half["over_high"]
    assert (half["plain"], half["alone"], half["verdict"]) == ("worth it", against, word)
    assert (worker["plain"], worker["verdict"]) == ("worth it", "worth it")
    assert pd.isna(worker["over"])
    assert pd.isna(worker["alone"])


def test_where_one_worker_lies_beyond_the_budgets_intervals_decide() -> None:
    table = net_table(study(), runs(alone=0.05), rounds(3), arms(), ("code", 4)).set_index("arm")
    assert pd.isna(table.loc["half", "over"])
    assert (table.loc["half", "alone"], table.loc["half", "verdict"]) == ("worth it", "worth it")


def test_without_one_worker_nothing_is_worth_it() -> None:
    untimed = rounds()
    untimed = untimed[untimed["arm"] != "alone"]
    half = net_table(study(), runs(), untimed, arms(), ("code", 4)).set_index("arm").loc["half"]
    assert (half["plain"], half["verdict"]) == ("worth it", "undecided")
    assert pd.isna(half["alone"])


def test_a_gain_is_the_loss_of_the_reference_in_the_same_time() -> None:
    table = net_table(study(), runs(half=1.0), rounds(time=0.5), arms(), ("code", 4)).set_index("arm")
    assert table.loc["half", "gain"] == pytest.approx(loss(0.5) - loss(1.0), rel=0.03)
    slow = (
        net_table(study(), runs(half=1.0), rounds(time=1.4), arms(), ("code", 4)).set_index("arm").loc["half"]
    )
    assert slow["gain"] < 0
    assert slow["verdict"] == "not worth it"


def test_several_sessions_count_as_such() -> None:
    one, three = (
        net_table(study(), runs(), rounds(k), arms(), ("code", 4)).set_index("arm").loc["half"]
        for k in (1, 3)
    )
    assert (one["sessions"], one["rounds"], three["sessions"], three["rounds"]) == (1, 8, 3, 24)
    disturbed = rounds(3)
    disturbed = disturbed[(disturbed["session_id"] != "s1") | (disturbed["round"] < 5)]
    two = net_table(study(), runs(), disturbed, arms(), ("code", 4)).set_index("arm").loc["half"]
    assert (two["sessions"], two["rounds"]) == (2, 16)


def test_what_gives_no_number_says_why() -> None:
    few = net_table(study(), runs(missing=3), rounds(), arms(), ("code", 4)).set_index("arm").loc["half"]
    assert few["reason"] == "a net speedup takes 6 seeds or more and got 5"
    assert pd.isna(few["verdict"])
    untimed = rounds()
    untimed = untimed[untimed["arm"] != "half"]
    refused = net_table(study(), runs(), untimed, arms(("half",)), ("code", 4)).set_index("arm").loc["half"]
    assert refused["reason"] == "direct runs disagree"
    assert pd.isna(refused["net"])
    assert net_table(study(), runs(), rounds(), arms(), ("code", 8)).empty
    assert list(NET.names[: NET.keys]) == PLACE
