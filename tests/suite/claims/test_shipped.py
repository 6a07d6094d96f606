"""The claims that ship: all can be judged, the record says what they say, and sweeps and claims name each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from suite.claims.claim import Claim, load_claims
from suite.claims.record import claim_row, differences, judge_all, part_rows, recorded
from suite.claims.verdict import Judgement
from suite.runs.sweep import load_sweep, sweep_names, sweeps_folder
from suite.timing.spec import session_names

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"
PUBLISHED = RESULTS / "published"
BEING_TRAINED = {"language"}
"""Studies, and sessions, that claims name before they are in the tree."""
SEEDS = {"2411.16462", "2305.18627", "2008.11343", "2310.14423"}


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


def test_trainings_and_speeds_say_at_what_scale(judged: list[Judgement]) -> None:
    for one in judged:
        if one.claim.kind in ("training", "speed"):
            assert str(claim_row(one)["scale"]).startswith("at our scale: ")


def test_what_was_recalled_or_reported_by_others_is_never_the_papers(judged: list[Judgement]) -> None:
    others = [one for one in judged if one.claim.label in ("memory", "third-party", "derived")]
    assert len(others) > 10
    for one in others:
        row = claim_row(one)
        assert row["own"] is False
        assert not str(row["said_by"]).startswith(("the paper", "the authors"))


def test_the_four_seeds_have_headlines(claims: list[Claim]) -> None:
    assert {claim.paper.arxiv for claim in claims if claim.own} >= SEEDS


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


def test_what_sweeps_say_they_serve_are_claims(claims: list[Claim]) -> None:
    ids, served = {claim.id for claim in claims}, studies_of(claims)
    for path in (sweeps_folder() / "claims").glob("*.yaml"):
        if path.name.endswith("-lr.yaml"):
            continue
        comment = " ".join(line for line in path.read_text().splitlines() if line.startswith("#"))
        if f"claims/{path.stem}" not in served:
            assert "Serves no claim any more" in comment, path.name
            continue
        head = re.search(r"Serves the claims? (.*?)\(results/claims", comment)
        assert head, f"{path.name}: say which claims it serves"
        named = re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)+", head[1])
        own = {one.id for one in claims if f"claims/{path.stem}" in studies_of([one])}
        assert set(named) == own, path.name
        assert own <= ids


def test_what_holds_by_construction_is_held_by_tests_that_there_are() -> None:
    text = (ROOT / "docs" / "claim-studies.md").read_text(encoding="utf-8")
    section = text.partition("## By construction")[2].partition("\n## ")[0]
    named = re.findall(r"`(tests/[a-z0-9_/]+\.py)::(\w+)`", section)
    assert len(named) > 20
    for file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"
