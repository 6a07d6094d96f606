"""`bandwise claims`: the table, one claim in full, and a check that can fail."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from tests.bandwise import said
from tests.bandwise.said import refusal
from tests.suite.claims.claim_files import OTHER, TRAINING, write_claims, write_study
from tests.support import Capsys

BASE = [90.0, 91, 92, 93, 94, 95]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two claims and the study of one, with their verdicts on record."""
    root = tmp_path_factory.mktemp("judged")
    write_claims(root, TRAINING, OTHER)
    write_study(root, {"method": [88.0, 88.9, 90.1, 91.0, 91.9, 93.1], "base": BASE})
    assert main(["claims", "--write", "--results", str(root)]) == 0
    return root


@pytest.fixture
def root(judged: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(judged, tmp_path / "results"))


def answer(capsys: Capsys, root: Path, code: int = 3) -> Any:
    """What a check finds."""
    return said.answer(capsys, "claims", "--check", "--results", str(root), code=code)


def test_the_table_one_claim_in_full_and_a_check_that_is_well(judged: Path, capsys: Capsys) -> None:
    for more, expected in {
        (): (
            "made-up-falls  the paper, abstract  training  reproduced",
            "-2 [-2.09, -1.91] points",
            "2 claims, 2 statements: 2 reproduced; made here\n",
        ),
        ("made-up-loses",): (
            "who says it  the paper, table 1",
            "scale        at our scale: made up",
            "written      before the runs",
            "again by     bandwise sweep claims/made-up && bandwise report claims/made-up && bandwise claims made-up-",
            "wanted < -1 points; found -2 [-2.09, -1.91] points, n = 6: reproduced",
        ),
        ("--check",): ("2 claims, 2 statements: 2 reproduced; all as on record",),
    }.items():
        capsys.readouterr()
        assert main(["claims", *more, "--results", str(judged)]) == 0
        out = capsys.readouterr().out
        assert all(words in out for words in expected), out
    assert "did you mean 'made-up-loses'" in refusal(
        capsys, "claims", "made-up-lose", "--results", str(judged)
    )


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
        (TRAINING, "", "made-up-loses: is on record and in no file"),
    ],
    ids=["contradicted", "changed", "new", "gone"],
)
def test_a_check_finds_a_false_record(root: Path, capsys: Capsys, old: str, new: str, expected: str) -> None:
    text = (TRAINING + OTHER).replace(old, new)
    assert text != TRAINING + OTHER
    write_claims(root, text)
    assert expected in answer(capsys, root)["differ"]


def test_new_runs_make_the_record_false(root: Path, capsys: Capsys) -> None:
    write_study(root, {"method": [90.0, 91.1, 92, 93, 94, 95], "base": BASE})
    assert answer(capsys, root)["verdicts"] == {"contradicted": 2}
