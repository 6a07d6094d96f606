"""`bandwise advise`: methods that `create` takes, predicted seconds, worth where a study says it, and what is refused."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from bandwise.costs import parsed
from bandwise.verbs.advise import METHODS
from tests.support import Capsys

ADVISE = ["advise", "--params", "110e6", "--workers", "16", "--rate", "1gbit", "--compute-ms", "180"]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The answer to `ADVISE`."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert main([*ADVISE, "--json"]) == 0
    return dict(json.loads(said.getvalue()))


def test_every_row_is_a_method_that_create_takes(found: dict[str, Any]) -> None:
    assert found["predicted"] is True
    assert {row["method"] for row in found["methods"]} == set(METHODS)
    for row in found["methods"]:
        parsed(row["method"])
        assert row["kappa"] is not None, "of all that it compares kappa was measured"
        assert row["step_ms"] >= row["overlapped_ms"] >= 180
    times = [row["step_ms"] for row in found["methods"]]
    assert times == sorted(times)


def test_numbers_are_those_of_the_formula(found: dict[str, Any]) -> None:
    (row,) = [row for row in found["methods"] if row["method"] == "powersgd:optimizer=adamw:rank=4"]
    bf16 = 2 * 15 / 16 * 110e6 * 2
    assert found["plain"]["bf16"]["MB_sent"] == pytest.approx(bf16 / 1e6, rel=1e-3)
    plain = 180 + 1e3 * 8 * bf16 / 0.91e9
    assert found["plain"]["bf16"]["step_ms"] == pytest.approx(plain, rel=1e-3)
    assert found["rho"] == pytest.approx(plain / 180 - 1, rel=1e-3)
    step = 180 * (1 + row["kappa"]) + 1e3 * 8 * 1e6 * row["MB_sent"] / 0.91e9
    assert row["step_ms"] == pytest.approx(step, rel=1e-3)
    assert row["speedup"] == pytest.approx(plain / step, rel=1e-3)
    assert row["net"] == pytest.approx(row["worth"] * plain / step, rel=1e-3)
    assert (row["study"], row["n"]) == ("size-large", 12)


def test_on_a_fast_link_nothing_is_worth_it(capsys: Capsys) -> None:
    assert main([*ADVISE, "--rate", "1000gbit", "--methods", "qsr-adamw:h_base=4:alpha=0.002"]) == 0
    assert "no method here is predicted to be worth it" in capsys.readouterr().out


def test_what_was_not_measured_is_said_to_be_unknown(capsys: Capsys) -> None:
    assert main([*ADVISE, "--methods", "natural-compression,adaqs"]) == 0
    shown = capsys.readouterr().out
    assert "shortest predicted step: natural-compression" in shown
    assert "compressor seconds not known, and not counted: natural-compression" in shown
    assert "adaqs plans by what happens in training" in shown


def test_shapes_of_the_model_itself(capsys: Capsys, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps([[1000, 1000], [1000]]))
    command = ["advise", "--shapes", str(path), *ADVISE[3:], "--methods", "powersgd:rank=4", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == 1_001_000
    sent = 2 * 15 / 16 * 4 * (4 * 2000 + 1000)
    assert found["methods"][0]["MB_sent"] == pytest.approx(sent / 1e6, rel=1e-3)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--workers", "1"], "--workers 1: give a number of at least 2"),
        (["--rate", "fast"], "fast"),
        (["--delay", "soon"], "soon"),
        (["--compute-ms", "0"], "give a number above 0"),
        (["--steps", "0"], "give a number of at least 1"),
        (["--methods", "top-k:ratio"], "write NAME:option=value"),
        (["--methods", "top-kk"], "no algorithm called 'top-kk'"),
    ],
)
def test_what_cannot_be_answered_is_said(more: list[str], words: str, capsys: Capsys) -> None:
    assert main([*ADVISE, *more]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", "[[1, -2]]", "3", "no json"])
def test_shapes_that_are_none_are_refused(text: str, tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    assert main(["advise", "--shapes", str(path), *ADVISE[3:]]) == 2
    assert f"--shapes {path}" in capsys.readouterr().err
