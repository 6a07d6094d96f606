"""Bytes by stage of several ranks: means, with 0 for a rank that sends nothing there."""

from __future__ import annotations

from suite.timing.ranks import mean_stages
from tests.suite.timing.fakes import sent


def test_a_rank_that_sends_nothing_counts_as_none() -> None:
    found = mean_stages([[sent(100.0), sent(8.0, "plan")], [sent(300.0)]])
    assert [(one["stage"], one["wire_bytes"], one["calls"]) for one in found] == [
        ("gradient", 200.0, 2.0),
        ("plan", 4.0, 1.0),
    ]


def test_without_stages_there_are_none() -> None:
    assert mean_stages([[], []]) == []
