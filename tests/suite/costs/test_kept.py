"""The model in a file: read where it was made of the same, else fitted anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from suite.analysis.session_tables import load_facts
from suite.costs import kept, model
from suite.costs.known import known
from suite.links.link import Link
from tests.suite.costs import made_up
from tests.suite.costs.test_fit import rows

CALIBRATION = rows(made_up.MODEL.backend)
SAMPLES = list(made_up.samples([Link(4, 100e6)]))


def refuse(*_: object) -> None:
    raise AssertionError("fitted anew")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    kept.write(tmp_path, made_up.MODEL, CALIBRATION, SAMPLES, made_up.CORES)
    return tmp_path


def test_a_kept_model_is_the_one_that_was_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "fit_model", refuse)
    found = kept.load_or_fit(root, CALIBRATION, SAMPLES, made_up.CORES)
    assert found.backend == made_up.MODEL.backend
    assert found.overlap == made_up.MODEL.overlap


def test_other_measurements_or_cores_are_fitted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "fit_model", refuse)
    for calibration, samples, cores in (
        (CALIBRATION[1:], SAMPLES, made_up.CORES),
        (CALIBRATION, SAMPLES[1:], made_up.CORES),
        (CALIBRATION, SAMPLES, made_up.CORES + 1),
    ):
        with pytest.raises(AssertionError, match="fitted anew"):
            kept.load_or_fit(root, calibration, samples, cores)


def test_other_code_is_fitted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "fit_model", refuse)
    monkeypatch.setattr(kept, "_code", lambda: "another")
    with pytest.raises(AssertionError, match="fitted anew"):
        kept.load_or_fit(root, CALIBRATION, SAMPLES, made_up.CORES)


def test_the_model_that_ships_is_of_what_ships() -> None:
    """Else every question fits it anew, for half a minute; `bandwise costs score` writes it."""
    results = Path(__file__).resolve().parents[3] / "results" / "published"
    found = known(results)
    said = json.loads((results / "tables" / kept.NAME).read_text(encoding="utf-8"))["made_of"]
    assert said == kept.digest(found.calibration, found.samples, found.cores)


def test_what_a_session_has_borrowed_counts_once() -> None:
    results = Path(__file__).resolve().parents[3] / "results" / "published"
    assert (load_facts(results, "ladder") or {})["lender"] == "costs-digits"
    sessions = {sample.session for sample in known(results).samples}
    assert "costs-digits" in sessions
    assert "ladder" not in sessions
