"""Who is ranked, who is not and why; ranks stay within a place and a family."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest

from reference_impls import create
from reference_impls.facts import facts
from report.site.leaderboard import Standing, ranked_view, standings, state_bytes, unranked_view
from report.study.data import Panel, StudyData

METHOD = "global-qsgd standard"


@pytest.fixture(scope="module")
def board(timed: Any) -> list[Standing]:
    return standings(timed.study, "made-up.html")


def changed(study: StudyData, **cells: Any) -> list[Standing]:
    """The board of the study with other cells in the summary of one method."""
    panels = [
        replace(p, summary=[{**r, **cells} if r["arm"] == METHOD else r for r in p.summary])
        for p in study.panels
    ]
    return standings(replace(study, panels=panels), "made-up.html")


def test_every_method_stands_once_at_every_place_and_controls_nowhere(board: list[Standing]) -> None:
    keys = [(one.place, one.row["arm"]) for one in board]
    assert len(set(keys)) == len(keys) == 4 * 11, "two links, two shardings"
    assert {one.rank > 0 for one in board} == {True, False}
    assert all(bool(one.rank) != bool(one.reason) for one in board)


def test_ranks_run_within_a_family_at_one_place_by_speedup(board: list[Standing]) -> None:
    def key(one: Standing) -> tuple[str, str]:
        return one.place, str(one.row["family"])

    ranked = sorted((one for one in board if one.rank), key=lambda one: (key(one), one.rank))
    for _, group in groupby(ranked, key):
        own = list(group)
        assert [one.rank for one in own] == list(range(1, len(own) + 1))
        assert {one.ranked for one in own} == {len(own)}
        assert [one.speedup for one in own] == sorted((one.speedup for one in own), reverse=True)
        assert all(one.row["equal"] == "yes" for one in own)


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ({"equal": "no", "diff_mean": -2.0}, "worse by 2.00 points (−2.00 ["),
        ({"equal": "no", "diff_mean": 2.0}, "better by 2.00 points (+2.00 ["),
        ({"equal": "undecided"}, "undecided ("),
        ({"equal": "yes", "n_done": 5, "n_diverged": 1}, "worse (1 of 6 seeds diverged"),
        ({"equal": "yes", "n_done": 5}, "5 of 6 seeds finished"),
        ({"equal": "yes", "n_stale": 2}, "stale: 2 of its runs"),
    ],
)
def test_who_is_not_ranked_stays_listed_with_the_reason(timed: Any, cells: dict[str, Any], why: str) -> None:
    found = [one for one in changed(timed.study, **cells) if one.row["arm"] == METHOD]
    assert found
    for one in found:
        assert (one.rank, one.reason[: len(why)]) == (0, why)
    lines = unranked_view(found).lines
    assert sorted(line.cells["reason"].text for line in lines) == sorted(one.reason for one in found)


def test_equal_without_a_speedup_that_holds_is_not_ranked(timed: Any) -> None:
    (session,) = [s for s in timed.study.sessions if s.sweep == "made-up"]

    def with_arm(**cells: Any) -> set[str]:
        links = [
            replace(link, arms=[{**a, **cells} if a["arm"] == METHOD else a for a in link.arms])
            for link in session.links
        ]
        panels = [replace(p, summary=[{**r, "equal": "yes"} for r in p.summary]) for p in timed.study.panels]
        study = replace(timed.study, sessions=(replace(session, links=links),), panels=panels)
        return {one.reason for one in standings(study, "") if one.row["arm"] == METHOD}

    assert with_arm() == {""}
    assert with_arm(check="not confirmed", reason="1.2 times") == {
        "equal, but its speedup is not confirmed: 1.2 times"
    }
    assert with_arm(refused=True, reason="not timed") == {"equal, but its speed is not measured (not timed)"}
    assert with_arm(arm="another") == {"equal, but its speed is not measured (the session has not timed it)"}


def test_a_study_that_is_not_sensitive_ranks_nobody(timed: Any) -> None:
    def blind(panel: Panel) -> Panel:
        return replace(panel, verdict={**panel.verdict, "sensitive": False, "reason": "no control ran"})

    found = standings(replace(timed.study, panels=[blind(p) for p in timed.study.panels]), "")
    assert ranked_view(found).lines == ()
    blinded = {
        one.reason
        for one in found
        if one.row["equal"] in {"yes", "undecided"} and one.row["diff_low"] is not None
    }
    assert blinded
    assert all(reason.startswith("not known (not sensitive: no control ran; ") for reason in blinded)


def test_state_is_that_of_the_facts_and_unknown_for_what_cannot_be_configured() -> None:
    assert state_bytes("allreduce-adamw", "{}", 4) == 8, "two moments in float32"
    state = facts(create("apmsqueeze"), sizes=(4,)).state
    assert state.owned > 0
    whole = state.replicated + state.per_rank + state.owned / 4 + state.local_optimizer
    assert state_bytes("apmsqueeze", "{}", 4) == whole
    assert state_bytes("allreduce-adamw", '{"label":"made up"}', 4) is None
    assert state_bytes("no such method", "{}", 4) is None
