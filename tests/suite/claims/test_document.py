"""docs/claims.md is what the record makes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.make import claims, counts
from suite.claims.claim import load_claims
from suite.claims.record import judge_all, statements, write_record
from tests.suite.claims.claim_files import BASE, OTHER, TRAINING, WORSE, write_claims, write_study

IDLE = """\
  - id: made-up-vast
    statement: So it is at scale.
    label: derived
    kind: not-run
    because: nobody could
"""


def record(root: Path, *claims: str) -> None:
    """Verdicts of these claims, by a study that decides them."""
    write_claims(root, *claims)
    write_study(root, {"method": WORSE, "base": BASE})
    write_record(root, judge_all(root, load_claims(root)))


def test_what_was_measured_is_counted_apart_from_what_was_not(tmp_path: Path) -> None:
    record(tmp_path, TRAINING, OTHER.replace("label: abstract", "label: derived"), IDLE)
    lines = counts(tmp_path).splitlines()
    assert "| measured | the authors | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 1 |" in lines
    assert "| measured | others, or ours | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 1 |" in lines
    assert "| not measured | others, or ours | 0 | 0 | 0 | 0 | 0 | 0 | 1 | 1 |" in lines
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("words", "together"),
    [
        (["contradicted", "contradicted", "contradicted"], "contradicted"),
        (["reproduced", "cannot tell"], "reproduced"),
        (["undecided", "contradicted"], "contradicted"),
        (["undecided", "reproduced"], "partly"),
        (["partly", "contradicted"], "partly"),
        (["cannot tell", "not run"], "not run"),
    ],
)
def test_a_statement_is_counted_once_however_many_claims_judge_it(words: list[str], together: str) -> None:
    rows = [{"claim": f"c{i}", "of": "c0" if i else None, "verdict": word} for i, word in enumerate(words)]
    (one,) = statements(rows[::-1])
    assert (one["claim"], one["verdict"]) == ("c0", together)
    assert len(statements([*rows, {"claim": "d", "of": None, "verdict": "reproduced"}])) == 2


def test_a_line_says_why_a_verdict_is_not_what_its_number_says(tmp_path: Path) -> None:
    less = "    counts_as: {reproduced: undecided}\n    because: its grid was too coarse\n"
    record(tmp_path, TRAINING + less)
    (line,) = (one for one in claims(tmp_path).splitlines() if "made-up-loses" in one)
    why = "reproduced by the numbers; counts as undecided: its grid was too coarse"
    assert f"| *undecided* | -2 [-2.09, -1.91] points; {why} |" in line


def test_a_line_of_a_claim_and_the_names_of_what_nobody_measured(tmp_path: Path) -> None:
    record(tmp_path, TRAINING.replace("loses a point", "loses | a point"), IDLE)
    lines = claims(tmp_path).splitlines()
    said = r"The method loses \| a point."
    assert (
        f"| `made-up-loses` | {said} | *reproduced* | -2 [-2.09, -1.91] points | < -1 points | 6 |" in lines
    )
    assert "Not run: `made-up-vast`." in lines
