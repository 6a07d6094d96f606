"""Numbers of studies and sessions: paired by seed, from the right cell, never from runs that do not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suite.analysis.speed_columns import ARMS, session_table_path
from suite.analysis.statistics import paired_difference
from suite.analysis.tables import write_table
from suite.claims.claim import ClaimError, read_text
from suite.claims.measured import commits
from suite.claims.record import judge
from suite.claims.verdict import Judgement
from tests.suite.claims.claim_files import HEAD, TRAINING, write_study

BASE = [90.0, 91.0, 92.0, 93.0, 94.0, 95.0]
WORSE = [88.0, 88.9, 90.1, 91.0, 91.9, 93.1]


def judged(root: Path, text: str = TRAINING) -> Judgement:
    (claim,) = read_text(HEAD + text, "a-paper.yaml")
    return judge(root, claim)


def test_a_difference_is_paired_by_seed(tmp_path: Path) -> None:
    write_study(tmp_path, {"method": WORSE, "base": BASE, "other": [0.0] * 6})
    found = judged(tmp_path)
    expected = paired_difference(WORSE, BASE)
    (part,) = found.parts
    assert found.word == "reproduced"
    assert (part.found.effect, part.found.low, part.found.high, part.found.n) == (
        expected.estimate, expected.low, expected.high, 6,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("threshold: -1", "threshold: -3", "contradicted"),
        ("threshold: -1", "threshold: -2", "undecided"),
        ("is: below", "is: above", "contradicted"),
        ("arm: method, against: base", "arm: base, against: method", "contradicted"),
    ],
)
def test_a_claim_that_was_tampered_with_fails(tmp_path: Path, old: str, new: str, word: str) -> None:
    write_study(tmp_path, {"method": WORSE, "base": BASE})
    assert judged(tmp_path).word == "reproduced"
    assert judged(tmp_path, TRAINING.replace(old, new)).word == word


def test_seeds_that_diverged_count_against_the_arm(tmp_path: Path) -> None:
    write_study(tmp_path, {"method": [*WORSE[:5], None], "base": BASE})
    assert judged(tmp_path, TRAINING.replace("is: below", "is: above")).word == "contradicted"
    found = judged(tmp_path)
    assert (found.word, found.why) == ("reproduced", "1 seeds of method diverged")


def test_too_few_seeds_are_no_verdict(tmp_path: Path) -> None:
    write_study(tmp_path, {"method": WORSE[:5], "base": BASE})
    found = judged(tmp_path)
    assert (found.word, found.why) == ("not run", "5 pairs of seeds finished, 6 are needed")


def test_runs_of_another_source_are_no_verdict(tmp_path: Path) -> None:
    write_study(tmp_path, {"method": WORSE, "base": BASE}, stale="method")
    assert judged(tmp_path).word == "not run"


@pytest.mark.parametrize("sensitive", [False, None])
def test_no_worse_is_undecided_where_no_control_shows_that_worse_is_seen(
    tmp_path: Path, sensitive: bool | None
) -> None:
    text = TRAINING.replace("is: below, threshold: -1", "is: above, threshold: -5, equality: true")
    write_study(tmp_path, {"method": WORSE, "base": BASE}, sensitive=True)
    assert judged(tmp_path, text).word == "reproduced"
    write_study(tmp_path, {"method": WORSE, "base": BASE}, sensitive=sensitive)
    assert judged(tmp_path, text).word == "undecided"


def test_a_study_that_was_not_run(tmp_path: Path) -> None:
    found = judged(tmp_path)
    assert (found.word, found.why) == ("not run", "the study was not run: bandwise sweep claims/made-up")


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("arm: method", "arm: methode", "with the arm methode; found: none"),
        ("against: base", "against: bas", "has no arm bas"),
        ("quantity: accuracy", "quantity: speed", "measures accuracy and nll, not speed"),
    ],
)
def test_what_a_study_does_not_have_is_an_error(tmp_path: Path, old: str, new: str, error: str) -> None:
    write_study(tmp_path, {"method": WORSE, "base": BASE})
    with pytest.raises(ClaimError, match=rf"a-paper.yaml:14: .*{error}"):
        judged(tmp_path, TRAINING.replace(old, new))


def test_commits_are_those_of_the_runs_that_judge(tmp_path: Path) -> None:
    write_study(tmp_path, {"method": WORSE, "base": BASE}, commit="abcdef0")
    (claim,) = read_text(HEAD + TRAINING, "a-paper.yaml")
    assert commits(tmp_path, claim) == ["abcdef0"]


SPEED = """\
  - id: made-up-fast
    statement: Twice as fast.
    place: abstract
    label: abstract
    kind: speed
    session: made-up
    n: 6
    scale: made up
    quantifier: any
    parts:
      - {link: 10 Mbit/s, arm: method, quantity: speedup, unit: times, is: above, threshold: 2}
      - {link: 1 Gbit/s, arm: method, quantity: speedup, unit: times, is: above, threshold: 2}
"""


def write_session(root: Path, *rows: dict[str, Any]) -> None:
    full = []
    for row in rows:
        one: dict[str, Any] = dict.fromkeys(ARMS.names)
        one |= {
            "sharding": "-",
            "arm": "method",
            "kind": "step",
            "n_pairs": 6,
            "refused": False,
            "stale": False,
            **row,
        }
        full.append(one)
    path = session_table_path(root, ARMS, "made-up")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, ARMS, full)


def speed(link: str, low: float, middle: float, high: float, **more: Any) -> dict[str, Any]:
    return {"link": link, "speedup": middle, "speedup_low": low, "speedup_high": high, **more}


def test_up_to_is_reproduced_by_one_link(tmp_path: Path) -> None:
    write_session(tmp_path, speed("10 Mbit/s", 3, 4, 5), speed("1 Gbit/s", 0.9, 1, 1.1))
    found = judged(tmp_path, SPEED)
    assert found.word == "reproduced"
    assert [part.word for part in found.parts] == ["reproduced", "contradicted"]
    assert judged(tmp_path, SPEED.replace("threshold: 2", "threshold: 20")).word == "contradicted"


def test_what_a_session_refuses_is_no_number(tmp_path: Path) -> None:
    write_session(
        tmp_path,
        speed("10 Mbit/s", 3, 4, 5, refused=True, reason="contradicted by direct runs"),
        speed("1 Gbit/s", 3, 4, 5, stale=True),
    )
    assert judged(tmp_path, SPEED).word == "not run"


def test_kinds_of_steps_are_put_together_by_their_seconds(tmp_path: Path) -> None:
    """Half the steps at the reference's speed and half at four times it: 1 / (0.5 / 1 + 0.5 / 4)."""
    rows = [speed(link, 1, 1, 1, kind="warm-up") for link in ("10 Mbit/s", "1 Gbit/s")]
    rows += [speed(link, 4, 4, 4, kind="compressed") for link in ("10 Mbit/s", "1 Gbit/s")]
    write_session(tmp_path, *rows)
    text = SPEED.replace("arm: method,", "arm: method, shares: {warm-up: 0.5, compressed: 0.5},")
    assert judged(tmp_path, text).parts[0].found.effect == pytest.approx(1.6)
