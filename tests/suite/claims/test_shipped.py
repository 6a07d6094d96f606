"""The claims that ship: all can be judged, the record says what they say, and sweeps and claims name each other."""

from __future__ import annotations

import pytest

from suite.claims.claim import Claim, load_claims
from suite.claims.measured import judge
from suite.claims.verdict import differences, part_rows, recorded
from suite.runs.sweep import load_sweep, sweep_names
from suite.timing.spec import session_names
from tests.support import ROOT

RESULTS = ROOT / "results"
PUBLISHED = RESULTS / "published"
BEING_TRAINED = {"language"}
"""Studies, and sessions, that claims name before they are in the tree."""


@pytest.fixture(scope="module")
def claims() -> list[Claim]:
    return load_claims(RESULTS)


@pytest.mark.parametrize("first", [0, *(pytest.param(i, marks=pytest.mark.full) for i in range(1, 6))])
def test_verdicts_and_numbers_on_record_are_those_that_judging_gives(first: int, claims: list[Claim]) -> None:
    """Of a sixth of the claims; the full tests judge the others."""
    judged = [judge(PUBLISHED, claim) for claim in claims[first::6]]
    assert differences(judged, recorded(PUBLISHED), whole=False) == []
    on_record = {(row["claim"], row["role"], row["part"]): row for row in recorded(PUBLISHED)[1]}
    for row in (row for one in judged for row in part_rows(one)):
        known = on_record[row["claim"], row["role"], row["part"]]
        for name in ("effect", "low", "high"):  # below 1e-12 it is how one machine rounds, and 0 in the table
            assert (known[name] is None) == (row[name] is None)
            assert known[name] is None or known[name] == pytest.approx(row[name], rel=1e-6, abs=1e-6)


def test_sources_exist(claims: list[Claim]) -> None:
    """But for studies that are being trained, of which nothing is told until they are published."""
    assert studies_of(claims) - set(sweep_names()) <= BEING_TRAINED
    assert {claim.session for claim in claims if claim.kind == "speed"} - set(
        session_names()
    ) <= BEING_TRAINED


def studies_of(claims: list[Claim]) -> set[str]:
    return {part.study or claim.study for claim in claims for part in (*claim.parts, *claim.premises)} - {""}


def test_arms_of_claims_are_arms_of_their_sweeps(claims: list[Claim]) -> None:
    arms = {study: set(load_sweep(study).arms) for study in studies_of(claims) & set(sweep_names())}
    for claim in claims:
        for part in (*claim.parts, *claim.premises) if claim.kind in ("training", "speed") else ():
            study = part.study or claim.study
            assert study not in arms or {part.arm, part.against} - {""} <= arms[study], claim.id


def test_what_nothing_tells_says_what_it_takes(claims: list[Claim]) -> None:
    told = {row["claim"]: row["verdict"] for row in recorded(PUBLISHED)[0]}
    assert told.keys() == {claim.id for claim in claims}
    assert [one.id for one in claims if told[one.id] == "cannot tell" and not one.awaits] == []
