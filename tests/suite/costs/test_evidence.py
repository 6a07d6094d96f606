"""What advice says of accuracy: signed, both shardings, the cell with most seeds, its very configuration, no larger model."""

from __future__ import annotations

from typing import Any

import pytest

from suite.analysis.evidence import Accuracy, accuracy, against, speed
from suite.costs.advice import Study, best_known, of_configuration, shown_worse, verdict
from suite.costs.methods import configuration, of_round

ROW: dict[str, Any] = {
    "n": 12, "n_done": 12, "n_pairs": 12, "n_diverged": 0, "n_stale": 0, "equal": "undecided", "unit": "points",
    "diff_mean": -0.2, "diff_low": -0.5, "diff_high": 0.1,
}  # fmt: skip


def judged(**cells: Any) -> Accuracy:
    return accuracy({**ROW, **cells}, higher=True)


def interval(mean: float) -> dict[str, float]:
    return {"diff_mean": mean, "diff_low": mean - 0.1, "diff_high": mean + 0.1}


@pytest.mark.parametrize(
    ("cells", "higher", "text"),
    [
        ({}, True, "undecided (−0.20 [−0.50, +0.10] points, 12 seeds)"),
        ({"equal": "yes", **interval(0.0)}, True, "equal (0.00 [−0.10, +0.10] points, 12 seeds)"),
        ({"equal": "no", **interval(2.4)}, True, "better by 2.40 points (+2.40 [+2.30, +2.50] points, 12 seeds)"),
        ({"equal": "no", **interval(-2.4)}, True, "worse by 2.40 points (−2.40 [−2.50, −2.30] points, 12 seeds)"),
        ({"equal": "no", **interval(2.4)}, False, "worse by 2.40 points (+2.40 [+2.30, +2.50] points, 12 seeds)"),
        (
            {"equal": "no", "n_diverged": 2, "n_pairs": 4, "diff_low": None, "diff_high": None},
            True,
            "worse (2 of 12 seeds diverged)",
        ),
        (
            {"n": 4, "n_pairs": 4, "diff_low": None, "diff_high": None},
            True,
            "not known (4 seeds: an interval needs 6)",
        ),
        (
            {"n_pairs": 3, "diff_low": None, "diff_high": None},
            True,
            "not known (3 of 12 seeds finished: an interval needs 6)",
        ),
        (
            {"equal": "not sensitive"},
            True,
            "not known (not sensitive; −0.20 [−0.50, +0.10] points, 12 seeds)",
        ),
    ],
)  # fmt: skip
def test_the_words_are_signed_and_have_reasons(cells: dict[str, Any], higher: bool, text: str) -> None:
    found = accuracy({**ROW, **cells}, higher=higher)
    assert found.text == text
    assert text.startswith(found.short)


LINK = {"status": "done", "reason": None}
ARM = {
    "refused": False,
    "speedup": 1.46,
    "speedup_low": 1.3,
    "speedup_high": 1.6,
    "check": "confirmed",
    "reason": None,
}


@pytest.mark.parametrize(
    ("arm", "link", "text", "holds"),
    [
        (ARM, LINK, "1.46× [1.3, 1.6]", True),
        ({**ARM, "check": "not confirmed"}, LINK, "1.46× [1.3, 1.6], but direct runs do not confirm it", False),
        ({**ARM, "check": "contradicted"}, LINK, "1.46× [1.3, 1.6], but direct runs do not confirm it", False),
        ({**ARM, "refused": True, "reason": "not timed."}, LINK, "not measured (not timed)", False),
        (None, LINK, "not measured (the session has not timed it)", False),
        (ARM, {"status": "disturbed", "reason": "machine disturbed"}, "not measured (machine disturbed)", False),
    ],
)  # fmt: skip
def test_a_speed_holds_only_where_it_was_measured_and_is_not_doubted(
    arm: Any, link: Any, text: str, holds: bool
) -> None:
    found = speed(arm, link)
    assert (found.text, found.holds) == (text, holds)
    why = against(ROW, judged(equal="yes", **interval(0.0)), found)
    assert (why == "") == holds, "equal and fast counts only where the speed holds"


def cell(accuracy: Accuracy, sharding: str = "iid", **more: Any) -> Study:
    facts = {
        "sweep": "s",
        "arm": "a",
        "configuration": "c",
        "workload": "digits-mlp",
        "world_size": 4,
        "parameters": 300_000,
    }
    return Study(**{**facts, "sharding": sharding, "accuracy": accuracy, **more})


EQUAL = judged(equal="yes", n_pairs=6, n=6, **interval(0.0))
UNDECIDED = judged()
BETTER = judged(equal="no", **interval(2.4))
WORSE = judged(equal="no", **interval(-2.4))


def test_an_undecided_cell_with_more_seeds_goes_before_an_equal_one() -> None:
    for cells in ([cell(EQUAL), cell(UNDECIDED)], [cell(UNDECIDED), cell(EQUAL)]):
        assert [one.accuracy for one in best_known(cells)] == [UNDECIDED]
        assert verdict(cells, 3e5) == "i.i.d. undecided"


def test_both_shardings_are_told_and_better_is_never_not_equal() -> None:
    cells = [cell(WORSE, "by-class"), cell(BETTER)]
    assert verdict(cells, 3e5) == "i.i.d. better by 2.40 points, by class worse by 2.40 points"
    assert not shown_worse(cells), "i.i.d. it is better"
    assert shown_worse([cell(WORSE)])
    assert "not equal" not in verdict(cells, 3e5)


def test_a_model_more_than_ten_times_larger_is_not_known() -> None:
    said = "measured on 0.30 M parameters: i.i.d. equal; for 110 M parameters: not known"
    assert verdict([cell(EQUAL)], 110e6) == said
    assert verdict([cell(EQUAL)], 3e6) == "i.i.d. equal"
    assert verdict([cell(EQUAL)], 3.01e6).endswith("not known")
    assert verdict([], 1e6) == "not known"


def test_another_period_is_another_method() -> None:
    eight = configuration("local-sgd", {"period": 8})
    studied = [cell(EQUAL, configuration=eight)]
    assert of_configuration(of_round(eight, 8), studied) == studied
    for other in (4, 16):
        assert of_round(eight, other) == configuration("local-sgd", {"period": other})
        assert verdict(of_configuration(of_round(eight, other), studied), 3e5) == "not known"
    assert of_round(configuration("qsr-sgd", {}), 16) == "", "no option fixes the length of its rounds"
