"""The score: a model that is right scores well, one thing left out is not looked at, wrong steps show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.costs.score import ALL, COLUMNS, score, summary
from suite.links.link import Link
from tests.suite.costs import made_up
from tests.suite.costs.test_fit import rows

LINKS = [
    Link(4, 30e6),
    Link(4, 100e6),
    Link(4, 1e9),
    Link(2, 100e6),
    Link(2, 1e9),
    Link(4, 100e6, delay_s=5e-3),
]


@pytest.fixture(scope="module")
def everything() -> list[made_up.Sample]:
    return list(made_up.samples(LINKS))


def test_a_right_model_is_right_about_what_it_has_not_seen(everything: list[made_up.Sample]) -> None:
    scored = list(score(everything, rows(made_up.MODEL.backend), made_up.CORES))
    found = {row["left_out"]: row for row in summary(scored) if row["value"] == ALL}
    assert set(found) == set(COLUMNS) - {"model"}  # there is one model only
    for row in found.values():
        assert row["met"] is True
        assert float(row["worst_error"]) < 0.1  # type: ignore[arg-type]
        assert float(row["median_error"]) < 0.01  # type: ignore[arg-type]
    assert found["method"]["n"] == len(everything)


def test_what_is_left_out_does_not_help(everything: list[made_up.Sample]) -> None:
    """Steps at 1 Gbit/s three times as long: predicted from the other rates, they are off by as much."""
    wrong = [
        replace(sample, step_s=3 * sample.step_s) if sample.setting.link.rate_bps == 1e9 else sample
        for sample in everything
    ]
    scored = list(score(wrong, rows(made_up.MODEL.backend), made_up.CORES))
    off = [one for one in scored if one.column == "rate" and one.left_out == "1 Gbit/s"]
    assert off
    assert all(one.error == pytest.approx(-2 / 3, abs=0.06) for one in off)
    row = next(row for row in summary(scored) if (row["left_out"], row["value"]) == ("rate", ALL))
    assert row["met"] is False
    assert float(row["worst_error"]) > 0.6  # type: ignore[arg-type]


def test_local_seconds_are_not_the_sample_s_own(everything: list[made_up.Sample]) -> None:
    """A method's null blocks on the link itself, ten times too long, change no prediction for that link."""
    target = everything[-1]
    changed = [
        replace(sample, null_s=10 * sample.null_s, local=None) if sample is target else sample
        for sample in everything
    ]
    calibration = rows(made_up.MODEL.backend)

    def predicted(samples: list[made_up.Sample]) -> float:
        return next(
            one.predicted_s for one in score(samples, calibration, made_up.CORES)
            if one.column == "rate" and one.sample.case == target.case and one.sample.setting == target.setting
        )  # fmt: skip

    assert predicted(changed) == pytest.approx(predicted(everything), rel=1e-3)
