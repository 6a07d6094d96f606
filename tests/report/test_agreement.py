"""The study's page, its headline, and the first page with its leaderboard say the same of a method, word for word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from report.pages.claims import Verdicts
from report.site.build import _headline
from report.site.leaderboard import standings, unranked_view
from report.study.data import StudyData
from report.study.headline import headline
from report.study.speedup import place_words
from report.study.summary import methods_view
from suite.analysis.evidence import DOUBT, accuracy

METHOD = "global-qsgd standard"


def changed(study: StudyData, link: dict[str, Any] | None = None, **arm: Any) -> StudyData:
    """The study with other cells of every arm on all links of its own session, and of the links themselves."""
    (session,) = [s for s in study.sessions if s.sweep == study.sweep]
    links = [
        replace(
            one, facts={**one.facts, **(link or {})}, arms=[{**row, **arm} for row in one.arms], equal_loss=[]
        )
        for one in session.links
    ]
    return replace(study, sessions=(replace(session, links=links),))


def first_page(study: StudyData, tmp_path: Any) -> list[str]:
    return _headline(tmp_path, {study.sweep: study}, standings(study, "made-up.html"), [], Verdicts())


CASES = {
    "as it was": ({}, {}),
    "not confirmed": ({}, {"check": "not confirmed", "reason": "direct runs of it: 1.3, partly outside"}),
    "not timed": ({}, {"refused": True, "speedup": None, "reason": "fewer than six rounds are whole"}),
    "disturbed": ({"status": "disturbed", "reason": "machine disturbed"}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_page_says_of_a_place_what_the_study_says(case: str, timed: Any, tmp_path: Any) -> None:
    link, arm = CASES[case]
    study = changed(timed.study, link, **arm)
    first, own = "\n".join(first_page(study, tmp_path)), "\n".join(headline(study))
    for session in study.sessions:
        for panel in study.panels:
            for one in session.links:
                told = place_words(panel, one)
                assert told in first, (panel.title, one.label)
                assert told in own, (panel.title, one.label)
    assert (DOUBT in first) == (DOUBT in own) == (case == "not confirmed")
    assert (
        ("not measured (machine disturbed)" in first)
        == ("not measured (machine disturbed)" in own)
        == (case == "disturbed")
    )
    if case != "as it was":
        assert not any(one.rank for one in standings(study, "")), (
            "nobody leads with a speed that does not hold"
        )


def test_the_table_and_the_leaderboard_have_the_same_words(timed: Any) -> None:
    study = timed.study
    reasons = {
        (one.panel.sharding, one.row["arm"]): one.reason for one in standings(study, "") if not one.rank
    }
    shown = unranked_view(standings(study, "")).lines
    for panel in study.panels:
        lines = {str(line.cells["method"].raw): line.cells for line in methods_view(panel, False).lines}
        for row in panel.methods:
            judged = accuracy(
                row, higher=True, not_sensitive="" if panel.sensitive else str(panel.verdict["reason"])
            )
            assert lines[row["arm"]]["equal"].text == judged.short
            if judged.word != "equal":
                assert reasons[panel.sharding, row["arm"]] == judged.text
                assert any(judged.text == line.cells["reason"].text for line in shown)


def test_better_is_called_better_everywhere(timed: Any) -> None:
    cells = {"equal": "no", "diff_mean": 0.9, "diff_low": 0.7, "diff_high": 1.1}
    panels = [
        replace(p, summary=[{**r, **cells} if r["arm"] == METHOD else r for r in p.summary])
        for p in timed.study.panels
    ]
    study = replace(timed.study, panels=panels)
    for panel in study.panels:
        (line,) = [x for x in methods_view(panel, False).lines if x.cells["method"].raw == METHOD]
        assert line.cells["equal"].text == "better by 0.90 points"
    why = {one.reason for one in standings(study, "") if one.row["arm"] == METHOD}
    assert why == {"better by 0.90 points (+0.90 [+0.70, +1.10] points, 6 seeds)"}
