"""Numbers of studies and sessions: paired by seed, from the right cell, and no verdict where none can rest on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suite.analysis.equal_time import LEVEL
from suite.analysis.statistics import mean_interval
from suite.analysis.tables import (
    NET,
    SUMMARY,
    read_table,
    session_table_path,
    table_path,
    write_table,
)
from suite.claims.claim import Claim, ClaimError, load_claims
from suite.claims.measured import judge
from suite.claims.verdict import Judgement
from suite.runs.sweep import ONE_WORKER
from tests.suite.claims.claim_files import (
    BASE,
    CONTROL,
    HEAD,
    SPEED,
    STUDY,
    TRAINING,
    WORSE,
    WORTHY,
    net,
    read_text,
    write_arms,
    write_net,
    write_study,
)

RESULTS = Path(__file__).resolve().parents[3] / "results"
ARMS = {"method": WORSE, "base": BASE}
ALONE = mean_interval([own - base for own, base in zip(WORSE, BASE, strict=True)])
"""Their difference, of seeds alone."""
ABOVE = TRAINING.replace("is: below", "is: above")


def judged(root: Path, text: str = TRAINING) -> Judgement:
    (claim,) = read_text(HEAD + text, "a-paper.yaml")
    return judge(root, claim)


# ---- differences of runs


def test_a_difference_is_paired_by_seed(tmp_path: Path) -> None:
    write_study(tmp_path, {**ARMS, "other": [0.0] * 6})
    found = judged(tmp_path)
    (part,) = found.parts
    assert found.word == "reproduced"
    assert (part.found.effect, part.found.n) == (ALONE.estimate, 6)
    assert (part.found.low, part.found.high) == pytest.approx((ALONE.low, ALONE.high))


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("threshold: -1", "threshold: -3", "contradicted"),
        ("threshold: -1", "threshold: -2", "undecided"),
        ("is: below", "is: above", "contradicted"),
        ("arm: method, against: base", "arm: base, against: method", "contradicted"),
        ("quantity: accuracy", "quantity: nll", "reproduced"),
    ],
)
def test_a_claim_that_was_tampered_with_fails(tmp_path: Path, old: str, new: str, word: str) -> None:
    write_study(
        tmp_path,
        ARMS,
        controls={"control": [105.0, 106.1, 107, 108, 109, 110]} if "nll" in new else {"control": [80.0] * 6},
    )
    text = TRAINING.replace(old, new)
    assert text != TRAINING
    assert judged(tmp_path, text).word == word


@pytest.mark.parametrize(("df", "t"), [(30.0, 2.5706), (2.0, 4.3027)])
def test_the_choice_of_learning_rates_widens_the_interval(df: float, t: float, tmp_path: Path) -> None:
    """By t(5 degrees) times the error of method and base, the reference; by t(2 degrees) where that is hardly known."""
    write_study(tmp_path, ARMS, tuning_sd=0.5, tuning_df=df)
    (part,) = judged(tmp_path).parts
    half = ((ALONE.high - ALONE.low) ** 2 / 4 + (t * 0.5) ** 2) ** 0.5
    ends = ALONE.estimate - half, ALONE.estimate + half
    assert (part.found.low, part.found.high) == pytest.approx(ends, abs=1e-4)
    assert part.word == "undecided"


def test_the_choice_of_two_rates_beside_the_references_widens_it_by_the_error_of_either(
    tmp_path: Path,
) -> None:
    write_study(tmp_path, {**ARMS, "other": [100.0, 101, 102.1, 103, 104, 105]}, tuning_sd=0.5, own_sd=0.3)
    (part,) = judged(tmp_path, TRAINING.replace("against: base", "against: other")).parts
    assert part.found.could_see == pytest.approx((2 * (2.5706 * 0.3) ** 2 + 0.09**2) ** 0.5, abs=0.02)


def test_seeds_that_diverged_count_against_the_arm(tmp_path: Path) -> None:
    write_study(tmp_path, {"method": [*WORSE[:5], None], "base": BASE})
    assert judged(tmp_path, ABOVE).word == "contradicted"
    found = judged(tmp_path)
    assert (found.word, found.why) == ("reproduced", "1 seeds of method diverged")


def test_seeds_on_which_the_other_side_diverged_leave_a_doubt(tmp_path: Path) -> None:
    write_study(tmp_path, {"method": [*WORSE, WORSE[0]], "base": [*BASE, None]})
    assert "1 runs of base diverged, and the difference is of the other seeds" in judged(tmp_path).why


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("arm: method", "arm: methode", "has 0 cells with the arm methode"),
        ("against: base", "against: bas", "has no arm bas"),
        ("quantity: accuracy", "quantity: speed", "measures accuracy, nll and worth, not speed"),
    ],
)
def test_what_a_study_does_not_have_is_an_error(tmp_path: Path, old: str, new: str, error: str) -> None:
    write_study(tmp_path, ARMS)
    with pytest.raises(ClaimError, match=rf"a-paper.yaml:14: .*{error}"):
        judged(tmp_path, TRAINING.replace(old, new))


# ---- no verdict


def test_a_study_that_is_not_published_tells_nothing(tmp_path: Path) -> None:
    found = judged(tmp_path, TRAINING + "    awaits: a larger machine\n")
    assert (found.word, found.why) == (
        "cannot tell",
        "study claims/made-up is not published yet. It takes a larger machine",
    )
    write_study(tmp_path, ARMS)
    assert judged(tmp_path).word == "reproduced", "and it is read as soon as it is"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"controls": {}}, "no negative control of base ran in claims/made-up"),
        ({"controls": {"control": [90.1, 90.8, 92.1, 92.9, 94.2, 94.9]}}, "control cannot be told from base"),
        ({"workload": "digits-mlp"}, "all seeds of digits-mlp share 1,797 examples"),
        ({"workload": "digits-noisy"}, "digits-noisy supports no verdict"),
        ({"lr_edge": None}, "learning rates were pinned in claims/made-up, not tuned"),
        ({"lr_edge": True}, "the learning rate of method and base lies on an edge"),
        ({"tuning_sd": None, "own_sd": None}, "the choice of learning rates is no part of its interval"),
        ({"stale": "method"}, "6 runs come from another source"),
    ],
)
def test_whatever_the_number_nothing_is_told(tmp_path: Path, given: dict[str, Any], why: str) -> None:
    """On either side of the bar: where the study has no such flaw, tests above tell both."""
    write_study(tmp_path, ARMS, **given)
    for text in (TRAINING, ABOVE):
        found = judged(tmp_path, text)
        assert found.word == "cannot tell"
        assert why in found.why
        assert found.parts[0].found.effect == pytest.approx(-2), "the number stands all the same"


def test_a_bar_is_held_against_the_lower_end_of_the_weakest_control(tmp_path: Path) -> None:
    """It loses 2.2 on average: half of that is more than the bar of 1; of the lower end of its interval, 1.56, it is not."""
    losses = (2.8, 1.5, 2.7, 1.6, 2.8, 1.8)
    weak = {"strong": [80.0] * 6, "weak": [own - loss for own, loss in zip(BASE, losses, strict=True)]}
    write_study(tmp_path, ARMS, controls=weak)
    low = {
        row["arm"]: -row["diff_high"]
        for row in read_table(table_path(tmp_path, SUMMARY, STUDY), SUMMARY)
        if row["control"]
    }
    assert 1 / 2.2 < 0.5 < 1 / low["weak"] < 1
    found = judged(tmp_path)
    assert found.word == "cannot tell"
    assert "the bar of 1 is more than half of the" in found.why
    assert "weak, surely loses" in found.why
    assert judged(tmp_path, TRAINING.replace("threshold: -1", "threshold: -0.75")).word == "reproduced"


def test_a_control_of_which_all_seeds_diverged_is_seen_and_one_worker_alone_is_none(tmp_path: Path) -> None:
    write_study(tmp_path, ARMS, controls={"control": [None] * 6})
    assert judged(tmp_path).word == "reproduced"
    write_study(tmp_path, ARMS, controls={ONE_WORKER: CONTROL})
    assert judged(tmp_path).why == "no negative control of base ran in claims/made-up"


def test_controls_are_those_of_the_claims_own_family(tmp_path: Path) -> None:
    """That the other family's control loses too little says nothing of the method's, in its parts and in premises."""
    weak = [own - 0.5 - 0.01 * seed for seed, own in enumerate(BASE)]
    write_study(tmp_path, {**ARMS, "other-base": WORSE}, controls={"control": CONTROL, "weak": weak})
    path = table_path(tmp_path, SUMMARY, STUDY)
    rows = read_table(path, SUMMARY)
    for row in rows:
        row["baseline"] = {"weak": "other-base", "other-base": None}.get(row["arm"], row["baseline"])
    write_table(path, SUMMARY, rows)
    premise = "{arm: other-base, against: base, quantity: accuracy, unit: points, is: below, threshold: -1}"
    assert judged(tmp_path, TRAINING + f"    premises:\n      - {premise}\n").word == "reproduced"
    other = TRAINING.replace("arm: method", "arm: other-base")
    assert "weak" in judged(tmp_path, other).why


def test_one_training_under_two_names_is_no_evidence(tmp_path: Path) -> None:
    write_study(tmp_path, {**ARMS, "twin": WORSE})
    found = judged(
        tmp_path,
        TRAINING.replace("against: base", "against: twin")
        .replace("is: below", "is: within")
        .replace("-1", "1"),
    )
    assert found.word == "cannot tell"
    assert "one training by construction" in found.why


def test_what_was_stated_after_its_runs_tells_nothing(tmp_path: Path) -> None:
    write_study(tmp_path, ARMS)
    found = judged(tmp_path, TRAINING + "    written: after\n")
    assert (found.word, found.why) == ("cannot tell", "it was stated after its runs had been looked at")
    assert judged(tmp_path, TRAINING + "    written: during\n").word == "reproduced"


# ---- what a training is worth


@pytest.mark.parametrize(
    ("worth", "word"),
    [
        ((1.0, 0.9, 1.1), "undecided"),
        ((float("inf"), 1.2, float("inf")), "reproduced"),
        ((0.0, 0.0, 0.06), "contradicted"),
    ],
)
def test_words_of_what_a_training_is_worth(
    tmp_path: Path, worth: tuple[float, float, float], word: str
) -> None:
    write_study(tmp_path, ARMS, worth={"method": worth})
    found = judged(tmp_path, WORTHY)
    assert (found.word, found.parts[0].found.effect) == (word, worth[0])


# ---- net speedups


def test_up_to_is_reproduced_by_one_link(tmp_path: Path) -> None:
    write_study(tmp_path, ARMS)
    write_net(tmp_path, net("10 Mbit/s", 3, 4, 5), net("1 Gbit/s", 0.9, 1, 1.1))
    found = judged(tmp_path, SPEED)
    assert found.word == "reproduced"
    assert [part.word for part in found.parts] == ["reproduced", "contradicted"]
    assert judged(tmp_path, SPEED.replace("threshold: 2", "threshold: 20")).word == "contradicted"
    assert judged(tmp_path, SPEED.replace("threshold: 2", "threshold: 4")).word == "undecided"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"check": "contradicted"}, "direct runs of method itself do not confirm its seconds"),
        ({"sessions": 2}, "the session was held 2 times, 3 are needed"),
        ({"net": None, "net_low": None, "net_high": None, "reason": "disturbed"}, "disturbed"),
    ],
)
def test_seconds_that_do_not_hold_tell_nothing(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    write_study(tmp_path, ARMS)
    write_net(tmp_path, *({**net(link, 3, 4, 5), **more} for link in ("10 Mbit/s", "1 Gbit/s")))
    found = judged(tmp_path, SPEED)
    assert (found.word, found.why) == ("cannot tell", why)


@pytest.mark.parametrize(("verdict", "word"), [("worth it", "reproduced"), ("undecided", "undecided")])
def test_whether_it_is_worth_it_is_decided_by_holm_over_its_link(
    tmp_path: Path, verdict: str, word: str
) -> None:
    write_study(tmp_path, ARMS)
    write_net(tmp_path, *(net(link, 1.1, 1.2, 1.3, plain=verdict) for link in ("10 Mbit/s", "1 Gbit/s")))
    assert judged(tmp_path, SPEED.replace("threshold: 2", "threshold: 1")).word == word


@pytest.mark.parametrize(
    ("over", "word", "verdict"),
    [
        ((1.1, 1.2, 1.3), "worth it", "reproduced"),
        ((1.1, 1.2, 1.3), "undecided", "undecided"),
        ((0.4, 0.5, 0.6), "not worth it", "contradicted"),
        ((None, None, None), None, "cannot tell"),
    ],
)
def test_a_speed_may_be_held_against_one_worker_alone(
    tmp_path: Path, over: tuple[float | None, ...], word: str | None, verdict: str
) -> None:
    """Whatever it is over plain training."""
    write_study(tmp_path, ARMS, controls={"control": CONTROL, ONE_WORKER: CONTROL})
    ends = dict(zip(("over_low", "over", "over_high"), over, strict=True))
    rows = [net(link, 3, 4, 5, alone=word, **ends) for link in ("10 Mbit/s", "1 Gbit/s")]
    write_net(tmp_path, *rows)
    text = SPEED.replace("quantity: net", f"against: {ONE_WORKER}, quantity: net").replace(": 2}", ": 1}")
    assert judged(tmp_path, text).word == verdict
    with pytest.raises(ClaimError, match="over plain training or one worker alone, not over base"):
        judged(tmp_path, text.replace(f"against: {ONE_WORKER}", "against: base"))


def test_steps_a_second_need_no_training_and_nothing_composed(tmp_path: Path) -> None:
    """Neither controls nor tuning nor direct runs; but seconds of several kinds of step are composed."""
    write_study(tmp_path, ARMS, controls={}, lr_edge=True)
    ends = {"time": 0.25, "time_low": 0.2, "time_high": 0.4, "check": None}
    write_net(tmp_path, *(net(link, 0.4, 0.5, 0.6, **ends) for link in ("10 Mbit/s", "1 Gbit/s")))
    write_arms(tmp_path, "one kind")
    found = judged(tmp_path, SPEED.replace("quantity: net", "quantity: steps"))
    assert found.word == "reproduced"
    told = found.parts[0].found
    assert (told.effect, told.low, told.high, told.n) == (4.0, 2.5, 5.0, 24)
    write_arms(tmp_path, "several kinds")
    found = judged(tmp_path, SPEED.replace("quantity: net", "quantity: steps"))
    assert (found.word, found.why) == (
        "cannot tell",
        "steps of method are of several kinds, so that its seconds are composed",
    )


def test_a_link_that_was_not_timed_is_an_error(tmp_path: Path) -> None:
    write_study(tmp_path, ARMS)
    write_net(tmp_path, net("10 Mbit/s", 3, 4, 5))
    with pytest.raises(
        ClaimError, match=r"a-paper.yaml:17: .*session made-up has no net speedup with link 1 Gbit/s"
    ):
        judged(tmp_path, SPEED)
    assert session_table_path(tmp_path, NET, "made-up").is_file()


def test_what_a_training_is_worth_has_the_interval_of_its_level() -> None:
    """The table has 95 % intervals; others are made anew of the published runs. One at almost that level is the table's."""
    (claim,) = (one for one in load_claims(RESULTS) if one.id == "apmsqueeze-converges-masked")
    wanted = claim.parts[0].level
    table, anew, wide = (ends(claim, level) for level in (LEVEL, LEVEL + 1e-9, wanted))
    assert anew == pytest.approx(table, rel=1e-6)
    assert wanted > LEVEL
    assert wide[0] < table[0] < table[1] < wide[1]


def ends(claim: Claim, level: float) -> tuple[float, float]:
    """Of the interval of a claim's first part, at a level."""
    part = claim.parts[0].model_copy(update={"level": level})
    number = judge(RESULTS, claim.model_copy(update={"parts": (part,)})).parts[0].found
    assert number.low is not None
    assert number.high is not None
    return number.low, number.high
