"""The claims that ship: all can be judged, the record says what they say, and sweeps and claims name each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.claims.claim import Claim, load_claims
from suite.claims.record import differences, judge_all, part_rows, recorded
from suite.claims.verdict import Judgement
from suite.runs.sweep import load_sweep, sweep_names
from suite.timing.spec import session_names

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"
PUBLISHED = RESULTS / "published"
BEING_TRAINED = {"language"}
"""Studies, and sessions, that claims name before they are in the tree."""


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    return load_claims(RESULTS)


@pytest.fixture(scope="module")
def judged(claims: list[Claim]) -> list[Judgement]:
    return judge_all(PUBLISHED, claims)


def test_the_record_is_what_judging_gives(judged: list[Judgement]) -> None:
    assert differences(judged, recorded(PUBLISHED), whole=True) == []


def test_numbers_on_record_are_those_that_judging_gives(judged: list[Judgement]) -> None:
    _, parts = recorded(PUBLISHED)
    on_record = {(row["claim"], row["role"], row["part"]): row for row in parts}
    rows = [row for one in judged for row in part_rows(one)]
    assert len(rows) == len(on_record)
    for row in rows:
        known = on_record[row["claim"], row["role"], row["part"]]
        for name in ("effect", "low", "high"):
            assert (known[name] is None) == (row[name] is None)
            if (
                row[name] is not None
            ):  # below 1e-12 it is how one machine rounds, and stands in the table as 0
                assert known[name] == pytest.approx(row[name], rel=1e-6, abs=1e-6), row["what"]


def test_sources_exist(claims: list[Claim]) -> None:
    """But for studies that are being trained, of which nothing is told until they are published."""
    assert studies_of(claims) - set(sweep_names()) <= BEING_TRAINED
    assert {claim.session for claim in claims if claim.kind == "speed"} - set(
        session_names()
    ) <= BEING_TRAINED


def studies_of(claims: list[Claim]) -> set[str]:
    return {part.study or claim.study for claim in claims for part in (*claim.parts, *claim.premises)} - {""}


def test_arms_of_claims_are_arms_of_their_sweeps(claims: list[Claim]) -> None:
    for claim in claims:
        for part in (*claim.parts, *claim.premises) if claim.kind in ("training", "speed") else ():
            study = part.study or claim.study
            if study in sweep_names():
                assert {part.arm, part.against} - {""} <= set(load_sweep(study).arms), claim.id


def test_what_nothing_tells_says_what_it_takes(judged: list[Judgement]) -> None:
    assert [one.claim.id for one in judged if one.word == "cannot tell" and not one.claim.awaits] == []
