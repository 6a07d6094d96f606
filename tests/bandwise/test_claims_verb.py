"""`bandwise claims`: the table, one claim in full, and a check that can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from tests.suite.claims.claim_files import OTHER, TRAINING, write_claims, write_study


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two claims and the study of one, with their verdicts on record."""
    write_claims(tmp_path, TRAINING, OTHER)
    write_study(
        tmp_path, {"method": [88.0, 88.9, 90.1, 91.0, 91.9, 93.1], "base": [90.0, 91, 92, 93, 94, 95]}
    )
    assert main(["claims", "--write", "--results", str(tmp_path)]) == 0
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], root: Path, *more: str) -> Any:
    capsys.readouterr()
    assert main(["claims", *more, "--results", str(root), "--json"]) in (0, 3)
    return json.loads(capsys.readouterr().out)


def test_the_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["claims", "--results", str(root)]) == 0
    out = capsys.readouterr().out
    assert "made-up-falls  the paper, abstract  training  reproduced" in out
    assert "-2 [-2.09, -1.91] points" in out
    assert out.endswith("2 claims, 2 statements: 2 reproduced; made here\n")


def test_one_claim_in_full(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["claims", "made-up-loses", "--results", str(root)]) == 0
    out = capsys.readouterr().out
    for expected in (
        "who says it  the paper, table 1",
        "scale        at our scale: made up",
        "written      before the runs",
        "again by     bandwise sweep claims/made-up && bandwise report claims/made-up && bandwise claims made-up-loses --check",
        "wanted < -1 points; found -2 [-2.09, -1.91] points, n = 6: reproduced",
    ):
        assert expected in out


def test_an_unknown_claim_is_an_error_with_the_nearest(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["claims", "made-up-lose", "--results", str(root)]) == 2
    assert "did you mean 'made-up-loses'" in capsys.readouterr().err


def test_a_check_of_what_is_on_record_is_well(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["claims", "--check", "--results", str(root)]) == 0
    out = capsys.readouterr().out
    assert "2 claims, 2 statements: 2 reproduced; all as on record" in out


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("threshold: -1}", "threshold: -3}", "made-up-loses: contradicted, but reproduced is on record"),
        (
            "threshold: -1}",
            "threshold: -1.5}",
            "made-up-loses: its text has changed since it was judged reproduced",
        ),
        ("id: made-up-loses", "id: made-up-other", "made-up-other: reproduced, and nothing is on record"),
    ],
)
def test_a_check_fails_where_the_record_does_not_hold(
    root: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, expected: str
) -> None:
    text = (TRAINING + OTHER).replace(old, new)
    assert text != TRAINING + OTHER
    write_claims(root, text)
    capsys.readouterr()
    assert main(["claims", "--check", "--results", str(root)]) == 3
    assert expected in capsys.readouterr().out


def test_a_claim_that_is_gone_is_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_claims(root, OTHER)
    assert answer(capsys, root, "--check")["differ"] == ["made-up-loses: is on record and in no file"]
    assert answer(capsys, root, "made-up-falls", "--check")["differ"] == []


def test_new_runs_make_the_record_false(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_study(root, {"method": [90.0, 91.1, 92, 93, 94, 95], "base": [90.0, 91, 92, 93, 94, 95]})
    assert answer(capsys, root, "--check")["verdicts"] == {"contradicted": 2}
