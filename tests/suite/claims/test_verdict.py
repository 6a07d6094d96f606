"""From intervals and numbers to words: each word can be had, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from suite.claims.claim import Claim, Part
from suite.claims.verdict import Found, Judged, briefly, combine, of_claim, of_found, of_interval, statements


def part(side: str, threshold: Any, **more: Any) -> Part:
    given = {"quantity": "accuracy", "is": side, "threshold": threshold, "arm": "method", "against": "base"}
    return Part.model_validate(given | more)


def claim(**more: Any) -> Claim:
    given = {"id": "c", "statement": "s", "place": "p", "label": "paper", "kind": "training", "study": "s"}
    return Claim.model_validate(given | more)


@pytest.mark.parametrize(
    ("side", "low", "high", "word"),
    [
        ("above", 1.1, 2.0, "reproduced"),
        ("above", 0.0, 0.9, "contradicted"),
        ("above", 0.9, 1.1, "undecided"),
        ("below", 0.0, 0.9, "reproduced"),
        ("below", 1.1, 2.0, "contradicted"),
        ("within", -0.9, 0.9, "reproduced"),
        ("within", 1.1, 2.0, "contradicted"),
        ("within", -2.0, -1.1, "contradicted"),
        ("within", 0.5, 1.5, "undecided"),
    ],
)
def test_words_of_intervals(side: Any, low: float, high: float, word: str) -> None:
    assert of_interval(side, 1.0, low, high) == word


def test_undecided_says_what_could_be_seen() -> None:
    judged = of_found(part("above", 0.0, unit="points"), Found(0.1, -0.4, 0.6, 6))
    assert (judged.word, judged.reason) == ("undecided", "an effect of 0.5 points could be seen")


@pytest.mark.parametrize(
    ("side", "higher_is_better", "low", "word"),
    [
        ("above", True, None, "contradicted"),
        ("above", True, 5.0, "contradicted"),  # the seeds that are left may look as they like
        ("below", True, None, "reproduced"),
        ("below", True, -5.0, "reproduced"),
        ("below", False, None, "contradicted"),
        ("above", False, None, "reproduced"),
        ("within", True, None, "contradicted"),
    ],
)
def test_a_diverged_seed_is_a_loss_without_bound(
    side: str, higher_is_better: bool, low: float | None, word: str
) -> None:
    found = Found(low, low, None if low is None else low + 1, 6, lost=2)
    assert of_found(part(side, 0.0), found, higher_is_better=higher_is_better).word == word


def test_a_doubt_leaves_no_number_a_verdict() -> None:
    for low in (-0.1, -2.1, -0.6):
        judged = of_found(
            part("above", -0.5), Found(low, low, low + 0.2, 6, doubts=("no control ran", "pinned"))
        )
        assert (judged.word, judged.reason) == ("cannot tell", "no control ran; pinned")
    assert (
        of_found(part("above", -0.5), Found(-0.1, -0.1, 0.1, 6, lost=2, doubts=("no",))).word == "cannot tell"
    )


def test_what_holds_an_interval_back_leaves_it_undecided() -> None:
    judged = of_found(part("above", 1), Found(1.2, 1.1, 1.3, 6, held_back="by Holm"))
    assert (judged.word, judged.reason) == ("undecided", "by Holm")
    assert of_found(part("above", 1), Found(1.2, 1.1, 1.3, 6)).word == "reproduced"


@pytest.mark.parametrize(
    ("words", "every", "one"),
    [
        ("r r", "reproduced", "reproduced"),
        ("r c", "partly", "reproduced"),
        ("r u", "partly", "reproduced"),
        ("c u", "contradicted", "undecided"),
        ("r n", "not run", "reproduced"),
        ("t t", "cannot tell", "cannot tell"),
        ("r t", "partly", "reproduced"),
        ("c t", "contradicted", "cannot tell"),
        ("u t", "cannot tell", "cannot tell"),
    ],
)
def test_several_parts_make_one_word(words: str, every: str, one: str) -> None:
    names: Any = {
        "r": "reproduced",
        "c": "contradicted",
        "u": "undecided",
        "n": "not run",
        "t": "cannot tell",
    }
    assert combine([names[word] for word in words.split()]) == every
    assert combine([names[word] for word in words.split()], "any") == one


def test_of_a_claim_whose_premise_does_not_hold_nothing_can_be_told() -> None:
    one = part("above", 0.0)
    good, bad = Judged(one, Found(), "reproduced"), Judged(one, Found(), "undecided")
    assert of_claim(claim(parts=(one,)), [good], [good]).word == "reproduced"
    judged = of_claim(claim(parts=(one,)), [good], [bad])
    assert judged.word == "cannot tell"
    assert "premise does not hold: method less base" in judged.why
    assert of_claim(claim(parts=(one,), awaits="a ship"), [good], [bad]).why.endswith(
        " is undecided. It takes a ship"
    )


def test_what_a_verdict_counts_as() -> None:
    one = part("above", 0.0)
    held_back = claim(parts=(one,), counts_as={"reproduced": "partly"}, because="it was close")
    judged = of_claim(held_back, [Judged(one, Found(), "reproduced")])
    assert (judged.word, judged.why) == (
        "partly",
        "reproduced by the numbers; counts as partly: it was close",
    )
    assert of_claim(held_back, [Judged(one, Found(), "contradicted")]).word == "contradicted"


@pytest.mark.parametrize(
    ("words", "together"),
    [
        (["contradicted", "contradicted", "contradicted"], "contradicted"),
        (["reproduced", "cannot tell"], "reproduced"),
        (["undecided", "contradicted"], "contradicted"),
        (["undecided", "reproduced"], "partly"),
        (["cannot tell", "not run"], "not run"),
    ],
)
def test_a_statement_is_counted_once_however_many_claims_judge_it(words: list[str], together: str) -> None:
    rows = [{"claim": f"c{i}", "of": "c0" if i else None, "verdict": word} for i, word in enumerate(words)]
    (one,) = statements(rows[::-1])
    assert (one["claim"], one["verdict"]) == ("c0", together)
    assert len(statements([*rows, {"claim": "d", "of": None, "verdict": "reproduced"}])) == 2


def test_a_claim_in_another_cell_says_what_differs() -> None:
    rows: list[Any] = [
        {"claim": "trains", "of": None, "statement": "Trains like fp32."},
        {"claim": "trains-8", "of": "trains", "statement": "Trains like fp32, with eight workers."},
        {"claim": "other", "of": "trains", "statement": "Ends like fp32."},
        {"claim": "lone", "of": "not-shown", "statement": "Trains like fp32, too."},
    ]
    said = [briefly(row, rows) for row in rows]
    assert said == [
        "Trains like fp32.",
        "…, with eight workers.",
        "Ends like fp32.",
        "Trains like fp32, too.",
    ]
