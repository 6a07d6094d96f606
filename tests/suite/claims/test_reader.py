"""Claim files: what they hold, and errors that name file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.claims.claim import ClaimError, load_claims, read_text
from suite.runs.documents import YamlError
from tests.suite.claims.claim_files import EXACT, HEAD, SPEED, TRAINING, write_claims

FILE = "a-paper.yaml"


def test_a_claim_as_read(tmp_path: Path) -> None:
    write_claims(tmp_path, TRAINING, EXACT)
    training, exact = load_claims(tmp_path)
    assert (training.id, training.kind, training.source, training.planned) == (
        "made-up-loses",
        "training",
        "claims/made-up",
        6,
    )
    assert (training.said_by, training.own) == ("the paper, table 1", True)
    (part,) = training.parts
    assert (part.what, part.bar, part.level) == ("method less base: accuracy", "< -1 points", 0.95)
    assert (exact.check, exact.options["n"]) == ("ratio-of-traffic", 4)
    assert exact.command == "bandwise claims made-up-bits --check"


@pytest.mark.parametrize("label", ["derived", "third-party", "memory"])
def test_what_others_say_is_not_the_papers(label: str) -> None:
    (claim,) = read_text(HEAD + EXACT.replace("label: abstract", f"label: {label}"), FILE)
    assert not claim.own
    assert not claim.said_by.startswith("the paper")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("label: paper", "label: hearsay", r"a-paper.yaml:8: key 'claims\[0\].label': 'hearsay' is none of"),
        ("label: paper", "lable: paper", r"key 'claims\[0\].label' is missing"),
        ("n: 6", "n: six", r"a-paper.yaml:11: key 'claims\[0\].n' must be a whole number, not 'six'"),
        ("is: below", "is: equals", r"a-paper.yaml:14: .*an interval lies above, below, within a threshold"),
        ("place: table 1\n    ", "", "where do the authors say it"),
        ("against: base, ", "", r"'claims\[0\].parts\[0\].against' is missing"),
        ("kind: training", "kind: rumour", "'rumour' is none of exact, training, speed"),
        ("id: made-up-loses", "id: Made_Up", "lower-case words"),
        ("scale: made up", "note: none", "needs scale and n"),
        (
            "n: 6",
            "n: 6\n    writen: abc",
            r"a-paper.yaml:12: unknown key 'claims\[0\].writen'; did you mean 'written'",
        ),
        (
            "quantity: accuracy",
            "quantity: worth",
            "a share of the reference's steps is set against the reference alone",
        ),
        ("n: 6", "n: 6\n    counts_as: {reproduced: partly}", "say why"),
        (
            "threshold: -1",
            "threshold: -1, level: 2",
            r"a-paper.yaml:14: key 'claims\[0\].parts\[0\].level': must be below 1, not 2",
        ),
        (
            "threshold: -1",
            "threshold: -1, tolerance: 1",
            r"'claims\[0\].parts\[0\].tolerance': a claim that is training has none",
        ),
        ("threshold: -1", "threshold: [-1]", "a list of printed values is for an exact claim"),
        ("threshold: -1", "threshold: low", "give a number or a list of numbers, not 'low'"),
        ("study: claims", "check: claims", r"'claims\[0\].check': a claim that is training has none"),
        (
            "study: claims/made-up",
            "session: quick",
            r"'claims\[0\].session': a claim that is training has none",
        ),
        (
            "n: 6",
            "n: 6\n    counts_as: {reproduced: party}",
            "'party' is none of reproduced, .*did you mean 'partly'",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, error: str) -> None:
    assert old in TRAINING
    with pytest.raises(YamlError, match=error):
        read_text(HEAD + TRAINING.replace(old, new), FILE)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("ratio-of-traffic", "ratio-of-trafic", "did you mean 'ratio-of-traffic'"),
        ("n: 4", "workers: 4", "a-paper.yaml:11: .*takes no such option"),
        (", n: 4", "", "check ratio-of-traffic needs n"),
        ("threshold: 2", "threshold: [2, one]", "a list of numbers"),
    ],
)
def test_checks_and_their_options_are_known(old: str, new: str, error: str) -> None:
    assert old in EXACT
    with pytest.raises(YamlError, match=error):
        read_text(HEAD + EXACT.replace(old, new), FILE)


@pytest.mark.parametrize(
    ("old", "new"),
    [("n: 4", "n: 2"), ("allreduce-bf16}", "allreduce-bf16, per: 2}"), ("threshold: 2", "threshold: [4, 4]")],
)
def test_a_number_among_a_claims_own_conditions_is_a_unit_test_and_no_claim(old: str, new: str) -> None:
    """As in: 500 steps a round send 500 times less."""
    assert old in EXACT
    with pytest.raises(
        YamlError, match=r"a-paper.yaml:13: .*no number could contradict it: make it a unit test"
    ):
        read_text(HEAD + EXACT.replace(old, new), FILE)
    bound = EXACT.replace(old, new).replace("equals", "at-least").replace(", tolerance: 0.01", "")
    if "[" not in new:
        assert read_text(HEAD + bound, FILE), "a bound can be missed"


@pytest.mark.parametrize(
    "check", ["same-trajectory", "bits-per-parameter", "message-bits", "planned-steps", "traffic-by-workers"]
)
def test_what_a_method_was_written_to_do_is_no_claim(check: str) -> None:
    """Special cases of a method, and bits that it declares: unit tests hold them."""
    with pytest.raises(YamlError, match=f"no check is called '{check}'"):
        read_text(HEAD + EXACT.replace("ratio-of-traffic", check), FILE)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("quantity: net", "quantity: speedup", "a speed is net .at equal time. or steps .a second."),
        ("quantity: net", "against: base, quantity: steps", "over those of the fastest uncompressed DDP"),
        ("    n: 6\n", "    n: 6\n    of: made-up-other\n", "no claim of this file has this id"),
        ("    session: made-up\n", "", "'claims\\[0\\].session' is missing"),
        ("    study: claims/made-up\n", "", "'claims\\[0\\].study' is missing"),
        ("threshold: 2}", "threshold: 2, level: 0.9}", "a claim that is speed has none"),
    ],
)
def test_a_speed_is_a_net_speedup_of_trainings(old: str, new: str, error: str) -> None:
    assert old in SPEED
    with pytest.raises(YamlError, match=error):
        read_text(HEAD + SPEED.replace(old, new), FILE)


def test_ids_are_unique_over_files(tmp_path: Path) -> None:
    write_claims(tmp_path, EXACT)
    (tmp_path / "claims" / "other.yaml").write_text(HEAD + EXACT)
    with pytest.raises(ClaimError, match=r"stands in a-paper.yaml:5 and other.yaml:5"):
        load_claims(tmp_path)


def test_a_folder_without_claims_is_said(tmp_path: Path) -> None:
    with pytest.raises(ClaimError, match="no claim file in"):
        load_claims(tmp_path)


def test_a_file_runs_nothing() -> None:
    """Tags that make YAML construct objects are read as words or refused, never carried out."""
    hostile = HEAD + EXACT.replace("Half the bytes.", "!!python/object/apply:os.system ['exit 1']")
    with pytest.raises(YamlError, match="must be a word"):
        read_text(hostile, FILE)
