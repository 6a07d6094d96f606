"""The model in a file: read where it was made of the same, else fitted anew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suite.analysis.published import load_facts
from suite.costs import model, step
from suite.costs.advice import NAME
from suite.costs.samples import Known, case_recipe, known
from suite.costs.step import Recipe
from suite.links.link import Link
from tests.suite.costs import made_up
from tests.suite.costs.test_fit import exchanges


def refuse(*_: object) -> None:
    raise AssertionError("fitted anew")


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Known:
    """All that is known, and a model of it in a file; whoever fits fails."""
    facts = {"provenance": {"cores": made_up.CORES}}
    samples = list(made_up.samples([Link(4, 100e6)]))
    everything = Known(tmp_path, exchanges(made_up.MODEL.backend), facts, samples, [])
    model.write_model(tmp_path, made_up.MODEL, everything)
    monkeypatch.setattr(model, "fit_model", refuse)
    return everything


def test_a_kept_model_is_the_one_that_was_written(kept: Known) -> None:
    assert model.model_of(kept) == made_up.MODEL


def test_other_measurements_or_cores_are_fitted(kept: Known) -> None:
    first, *rest = kept.samples
    others = (
        replace(kept, calibration=kept.calibration[1:]),
        replace(kept, samples=rest),
        replace(kept, samples=[replace(first, step_s=1.001 * first.step_s), *rest]),
        replace(kept, facts={"provenance": {"cores": made_up.CORES + 1}}),
    )
    for other in others:
        with pytest.raises(AssertionError, match="fitted anew"):
            model.model_of(other)
        with pytest.raises(model.FitError, match="run `bandwise costs score` before"):
            model.scored_model(other)
    assert model.scored_model(kept) == made_up.MODEL


@pytest.mark.parametrize("name", ["START", "HELD", "FIT_SETTINGS", "STEP"])
def test_another_setting_of_the_fit_is_fitted(
    name: str, kept: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, name, (0.5,))
    with pytest.raises(AssertionError, match="fitted anew"):
        model.model_of(kept)


def test_a_model_that_reckons_otherwise_is_fitted(kept: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward a little shorter, or a launch that waits for another thread: no source is compared."""
    for name, value in (("FORWARD", 0.34), ("THREADS", 1)):
        with monkeypatch.context() as changed, pytest.raises(AssertionError, match="fitted anew"):
            changed.setattr(step, name, value)
            model.model_of(kept)


def test_a_method_that_sends_otherwise_is_fitted(kept: Known, monkeypatch: pytest.MonkeyPatch) -> None:

    def larger(*given: Any) -> Recipe:
        return case_recipe(*given).scaled(1.01)

    monkeypatch.setattr(model, "case_recipe", larger)
    with pytest.raises(AssertionError, match="fitted anew"):
        model.model_of(kept)


def test_the_model_that_ships_is_of_what_ships() -> None:
    """Else every question fits it anew, for half a minute; `bandwise costs score` writes it."""
    results = Path(__file__).resolve().parents[3] / "results" / "published"
    shipped = json.loads((results / "tables" / NAME).read_text(encoding="utf-8"))
    assert shipped["made_of"] == model.made_of(known(results))


def test_what_a_session_has_borrowed_counts_once() -> None:
    results = Path(__file__).resolve().parents[3] / "results" / "published"
    assert (load_facts(results, "ladder") or {})["lender"] == "costs-digits"
    sessions = {sample.session for sample in known(results).samples}
    assert "costs-digits" in sessions
    assert "ladder" not in sessions
