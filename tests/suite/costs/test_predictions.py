"""Predictions come before their session, and what was changed or made too late does not count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from suite.costs import score
from suite.costs.samples import case_seconds
from suite.costs.score import (
    PredictionError,
    predict_session,
    prediction_hash,
    prediction_path,
    read_prediction,
    write_prediction,
)
from suite.links.link import Link
from suite.timing.spec import load_session
from tests.suite.costs import made_up


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "unseen.yaml"
    path.write_text(made_up.SESSION, encoding="utf-8")
    known = list(made_up.samples([Link(4, 30e6), Link(4, 100e6)]))
    return predict_session(load_session(str(path)), known, made_up.MODEL, made_up.CORES)


def test_every_case_is_predicted_or_said_not_to_be(made: dict[str, Any]) -> None:
    found = {row["case"]: row["step_s"] for row in made["predictions"]}
    own = next(case for case in made_up.cases() if case.algorithm == "allreduce-sgd")
    setting = next(iter(made_up.samples([Link(4, 55e6)]))).setting
    expected = case_seconds(made_up.MODEL, own, setting, made_up.local_of(own, "digits-mlp", 4))
    assert found["allreduce-sgd: step"] == pytest.approx(expected, rel=1e-6)
    assert [row["case"] for row in made["not_predicted"]] == [
        "DDP fp32, 25 MB buckets",
        "terngrad: step",
    ] or [row["case"] for row in made["not_predicted"]] == ["terngrad: step"]


def test_seconds_of_another_batch_predict_nothing(tmp_path: Path) -> None:
    path = tmp_path / "unseen.yaml"
    path.write_text(made_up.SESSION.replace("batch_size: 32", "batch_size: 16"), encoding="utf-8")
    known = list(made_up.samples([Link(4, 30e6), Link(4, 100e6)]))
    found = predict_session(load_session(str(path)), known, made_up.MODEL, made_up.CORES)
    assert not found["predictions"]
    assert {row["why"] for row in found["not_predicted"]} == {"measured nowhere"}


def test_they_are_written_once_and_read_back(made: dict[str, Any], tmp_path: Path) -> None:
    write_prediction(tmp_path, made)
    assert read_prediction(tmp_path, "unseen") == made
    with pytest.raises(PredictionError, match="made once"):
        write_prediction(tmp_path, made)
    assert read_prediction(tmp_path, "another") is None


def test_changed_predictions_do_not_count(made: dict[str, Any], tmp_path: Path) -> None:
    write_prediction(tmp_path, made)
    made["predictions"][0]["step_s"] *= 1.01
    prediction_path(tmp_path, "unseen").write_text(json.dumps(made), encoding="utf-8")
    with pytest.raises(PredictionError, match="changed after"):
        read_prediction(tmp_path, "unseen")


def test_predictions_after_the_session_do_not_count(
    made: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prediction(tmp_path, made)
    monkeypatch.setattr(score, "load_facts", lambda root, name: {"started": "2000-01-01T00:00:00Z"})
    with pytest.raises(PredictionError, match="predicts nothing"):
        read_prediction(tmp_path, "unseen")
    monkeypatch.setattr(score, "load_facts", lambda root, name: {"started": "2999-01-01T00:00:00Z"})
    assert read_prediction(tmp_path, "unseen") == made


def test_the_hash_covers_everything_but_itself(made: dict[str, Any]) -> None:
    assert made["sha256"] == prediction_hash(made)
    assert prediction_hash({**made, "made": "another time"}) != made["sha256"]


def test_a_session_that_was_held_is_not_predicted(tmp_path: Path) -> None:
    path = tmp_path / "made-up.yaml"
    path.write_text(made_up.SESSION, encoding="utf-8")
    with pytest.raises(PredictionError, match="has been held"):
        predict_session(
            load_session(str(path)), list(made_up.samples([Link(4, 30e6)])), made_up.MODEL, made_up.CORES
        )
