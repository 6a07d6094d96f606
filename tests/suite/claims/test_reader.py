"""Claim files: what they hold, and errors that name file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.claims.claim import ClaimError, load_claims
from suite.runs.files import YamlError
from tests.suite.claims.claim_files import HEAD, OTHER, SPEED, TRAINING, read_text, write_claims

FILE = "a-paper.yaml"


def test_a_claim_as_read(tmp_path: Path) -> None:
    write_claims(tmp_path, TRAINING, OTHER)
    training, other = load_claims(tmp_path)
    assert (training.id, training.kind, training.sources, training.planned) == (
        "made-up-loses",
        "training",
        ("claims/made-up",),
        6,
    )
    assert (training.said_by, training.own) == ("the paper, table 1", True)
    (part,) = training.parts
    assert (part.what, part.bar, part.level) == ("method less base: accuracy", "< -1 points", 0.95)
    steps = "bandwise sweep claims/made-up && bandwise report claims/made-up"
    assert other.command == f"{steps} && bandwise claims made-up-falls --check"


@pytest.mark.parametrize("label", ["derived", "third-party", "memory"])
def test_what_others_say_is_not_the_papers(label: str) -> None:
    (claim,) = read_text(HEAD + OTHER.replace("label: abstract", f"label: {label}"), FILE)
    assert not claim.own
    assert not claim.said_by.startswith("the paper")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("label: paper", "label: hearsay", r"a-paper.yaml:8: key 'claims\[0\].label': 'hearsay' is none of"),
        ("place: table 1\n    ", "", "where do the authors say it"),
        ("against: base, ", "", r"'claims\[0\].parts\[0\].against' is missing"),
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
            "study: claims/made-up",
            "session: quick",
            r"'claims\[0\].session': a claim that is training has none",
        ),
        ("quantity: net", "quantity: speedup", "a speed is net .at equal time. or steps .a second."),
        ("quantity: net", "against: base, quantity: steps", "over those of the fastest uncompressed DDP"),
        (
            "    session: made-up\n",
            "    session: made-up\n    of: made-up-other\n",
            "no claim of this file has this id",
        ),
        ("    study: claims/made-up\n    session", "    session", "'claims\\[0\\].study' is missing"),
        ("threshold: 2}", "threshold: 2, level: 0.9}", "a claim that is speed has none"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, error: str) -> None:
    claim = TRAINING if old in TRAINING else SPEED
    assert old in claim
    with pytest.raises(YamlError, match=error):
        read_text(HEAD + claim.replace(old, new), FILE)


def test_ids_are_unique_over_files(tmp_path: Path) -> None:
    write_claims(tmp_path, TRAINING)
    (tmp_path / "claims" / "other.yaml").write_text(HEAD + TRAINING)
    with pytest.raises(ClaimError, match=r"stands in a-paper.yaml:5 and other.yaml:5"):
        load_claims(tmp_path)


def test_a_folder_without_claims_is_said(tmp_path: Path) -> None:
    with pytest.raises(ClaimError, match="no claim file in"):
        load_claims(tmp_path)


def test_a_file_runs_nothing() -> None:
    """Tags that make YAML construct objects are read as words or refused, never carried out."""
    hostile = HEAD + TRAINING.replace(
        "The method loses a point.", "!!python/object/apply:os.system ['exit 1']"
    )
    with pytest.raises(YamlError, match="must be a word"):
        read_text(hostile, FILE)
