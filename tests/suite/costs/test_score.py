"""The score: a model that is right scores well, one thing left out is not looked at, wrong steps show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from suite.analysis.tables import frame_of, rows_of
from suite.costs.columns import ALL, PREDICTIONS
from suite.costs.samples import Sample
from suite.costs.score import LEFT_OUT, beside_table, predictions_table, score_table
from suite.links.link import Link
from tests.suite.costs import made_up
from tests.suite.costs.test_fit import exchanges

LINKS = [
    Link(4, 30e6),
    Link(4, 100e6),
    Link(4, 1e9),
    Link(2, 100e6),
    Link(2, 1e9),
    Link(4, 100e6, delay_s=5e-3),
]


@pytest.fixture(scope="module")
def everything() -> list[Sample]:
    return list(made_up.samples(LINKS))


def test_a_right_model_is_right_about_what_it_has_not_seen(everything: list[Sample]) -> None:
    predictions = predictions_table(everything, exchanges(made_up.MODEL.backend), made_up.CORES)
    score = score_table(predictions)
    whole = score[score["value"] == ALL].set_index("left_out")
    assert set(whole.index) == set(LEFT_OUT) - {"model"}  # there is one model only
    assert list(whole.index) == [column for column in LEFT_OUT if column != "model"]
    assert whole["met"].all()
    assert (whole["worst_error"] < 0.1).all()
    assert (whole["median_error"] < 0.01).all()
    assert whole["n"]["method"] == len(everything)


def test_what_is_left_out_does_not_help(everything: list[Sample]) -> None:
    """Steps at 1 Gbit/s three times as long: predicted from the other rates, they are off by as much."""
    wrong = [
        replace(sample, step_s=3 * sample.step_s) if sample.setting.link.rate_bps == 1e9 else sample
        for sample in everything
    ]
    predictions = predictions_table(wrong, exchanges(made_up.MODEL.backend), made_up.CORES)
    off = predictions[(predictions["left_out"] == "rate") & (predictions["value"] == "1 Gbit/s")]
    assert len(off)
    assert list(off["error"]) == pytest.approx([-2 / 3] * len(off), abs=0.06)
    score = score_table(predictions).set_index(["left_out", "value"])
    assert not score["met"]["rate", ALL]
    assert score["worst_error"]["rate", ALL] > 0.6


def test_local_seconds_are_not_the_sample_s_own(everything: list[Sample]) -> None:
    """A method's null blocks on the link itself, ten times too long, change no prediction for that link."""
    target = everything[-1]
    changed = [
        replace(sample, null_s=10 * sample.null_s, local=None) if sample is target else sample
        for sample in everything
    ]

    def predicted(samples: list[Sample]) -> float:
        table = predictions_table(samples, exchanges(made_up.MODEL.backend), made_up.CORES)
        place = ("rate", target.case.case_id, target.setting.link.label, target.setting.world_size)
        return float(table.set_index(["left_out", "case_id", "link", "world_size"])["predicted_s"][place])

    assert predicted(changed) == pytest.approx(predicted(everything), rel=1e-3)


def test_naive_formulas_are_scored_over_the_model_s_steps() -> None:
    """Bytes alone miss the computing; ten percent on both sides of a speedup change no sign."""
    samples = list(made_up.samples([Link(4, 100e6), Link(4, 300e6)]))
    rows = [
        dict.fromkeys(PREDICTIONS.names) | {
            "left_out": "rate", "value": "100 Mbit/s", "session": one.session, "link": one.setting.link.label,
            "case": one.case.label, "case_id": one.case.case_id, "workload": one.setting.workload,
            "world_size": one.setting.world_size, "step_s": one.step_s, "step_low": one.low_s, "step_high": one.high_s,
            "predicted_s": 1.1 * one.step_s, "error": 0.1,
        }
        for one in samples
        if one.setting.link.rate_bps == 100e6
    ]  # fmt: skip
    table = beside_table(frame_of(PREDICTIONS, rows), samples, made_up.CORES)
    of = {row["predictor"]: row for row in rows_of(table)}
    assert set(of) == {"model", "local + bytes", "bytes / rate"}
    assert all(row["n"] == len(rows) for row in of.values())
    assert of["model"]["median_error"] == pytest.approx(0.1)
    assert of["model"]["within"] == 1.0
    assert of["bytes / rate"]["median_error"] > of["local + bytes"]["median_error"]
    right = of["model"]["near_right"] + of["model"]["easy_right"]
    assert right == of["model"]["n_near"] + of["model"]["n_easy"] > 0
