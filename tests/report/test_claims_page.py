"""Claims on pages: one line each, what decided them, everything escaped, and whole without a script."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bandwise.cli import main
from report.claims import build_claims_page
from report.pages import Place, ReportError
from suite.claims.claim import load_claims
from suite.claims.measured import judge
from suite.claims.verdict import write_record
from tests.report.conftest import HOSTILE, Built, build
from tests.report.test_page import Page, whole
from tests.suite.claims.claim_files import OTHER, TRAINING, write_claims, write_study

WORSE = {"method": [88.0, 88.9, 90.1, 91.0, 91.9, 93.1], "base": [90.0, 91, 92, 93, 94, 95]}


def record(root: Path, *claims: str) -> Path:
    """A results folder with verdicts of these claims."""
    write_claims(root, *claims)
    write_study(root, WORSE)
    write_record(root, [judge(root, claim) for claim in load_claims(root)])
    return root


def page_of(root: Path) -> tuple[str, Page, list[str]]:
    place = Place(root / "reports", "claims.html")
    findings, path = build_claims_page(root, place), place.path
    text = path.read_text(encoding="utf-8")
    return text, Page(text), findings


def test_a_line_and_all_that_decided_it(tmp_path: Path) -> None:
    text, page, findings = page_of(record(tmp_path, TRAINING, OTHER))
    whole(tmp_path / "reports" / "claims.html")
    shown = page.sections["claims"] + page.sections["decided"]
    for expected in (
        "made-up-loses", "The method loses a point.", "reproduced", "-2 [-2.09, -1.91] points", "< -1 points",
        "the paper, table 1", "at our scale: made up", "before the runs", "method less base: accuracy",
        "bandwise sweep claims/made-up",
    ):  # fmt: skip
        assert expected in shown
    told = "measured: 2, 2 reproduced"
    assert findings == [
        "2 claims judge 2 statements; authors make 2 of them themselves.",
        f"All statements: {told}.",
        f"The authors' own: {told}.",
    ]
    assert 'href="#claim-made-up-loses"' in text
    assert "claim-made-up-loses" in page.ids


def test_contradicted_claims_of_authors_head_the_page(tmp_path: Path) -> None:
    wrong = TRAINING.replace("threshold: -1", "threshold: -3")
    ours = OTHER.replace("threshold: -0.5", "threshold: -3").replace("label: abstract", "label: derived")
    text, page, findings = page_of(
        record(tmp_path, wrong.replace("scale: made up", f"scale: '{HOSTILE}'"), ours)
    )
    assert HOSTILE in page.sections["decided"]
    assert "<script>alert" not in text, "hostile text stays text"
    assert findings == [
        "2 claims judge 2 statements; authors make 1 of them themselves.",
        "All statements: measured: 2, 2 contradicted.",
        "The authors' own: measured: 1, 1 contradicted.",
        "Contradicted at our scale, A paper: The method loses a point.",
    ]
    assert "ours, derived from the method, abstract (not the authors)" in page.sections["decided"]


def test_without_a_record_the_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="bandwise claims --write"):
        build_claims_page(tmp_path, Place(tmp_path, "claims.html"))


OF_THE_STUDY = (
    TRAINING.replace("study: claims/made-up", "study: made-up")
    .replace("arm: method, against: base", "arm: lion-cub-1bit K=100, against: allreduce-lion")
    .replace("threshold: -1", "threshold: -1, sharding: by-class")
)


def test_a_study_shows_the_claims_that_it_decides(built: Built, tmp_path: Path, no_pictures: None) -> None:
    assert 'id="claims"' not in built.html
    shutil.copytree(built.root / "tables", tmp_path / "tables")
    record(tmp_path, OF_THE_STUDY, OTHER)
    page = whole(build(tmp_path).path)
    assert "made-up-loses" in page.sections["claims"]
    assert "made-up-falls" not in page.sections["claims"]
    assert "#claims" in page.references


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = record(tmp_path, TRAINING, OTHER)
    assert main(["report", "claims", "--results", str(root)]) == 0
    assert capsys.readouterr().out.endswith(f"report: {root / 'reports' / 'claims.html'}\n")
