"""`bandwise costs` and `bandwise advise`: what they print, and what they say where nothing is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from suite.costs import samples as module
from suite.costs.samples import Known
from suite.links.link import Link
from suite.timing import spec as sessions
from tests.suite.costs import made_up
from tests.suite.costs.test_fit import exchanges

ADVISE = ["advise", "--params", "20e6", "--compute-ms", "200"]


@pytest.fixture
def something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up session over two links is all that is known."""
    path = tmp_path / "made-up.yaml"
    path.write_text(made_up.SESSION, encoding="utf-8")
    facts = {"provenance": {"cpu": "a processor", "cores": made_up.CORES, "torch": "2"}}
    samples = list(made_up.samples([Link(4, 100e6), Link(4, 1e9)]))
    found = Known(tmp_path, exchanges(made_up.MODEL.backend), facts, samples, [])
    monkeypatch.setattr(module, "known", lambda root: found)
    real = sessions.load_session
    for place in ("suite.costs.methods", "suite.timing.spec"):
        monkeypatch.setattr(
            f"{place}.load_session", lambda name: real(str(path) if name == "made-up" else name)
        )


def advised(capsys: pytest.CaptureFixture[str], tmp_path: Path, *more: str) -> dict[str, Any]:
    assert main([*ADVISE, *more, "--results", str(tmp_path), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.usefixtures("something")
def test_advice_ranks_and_says_where_each_pays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = advised(capsys, tmp_path, "--workers", "8", "--rate", "100mbit")
    times = [row["step_ms"] for row in found["methods"]]
    assert times == sorted(times)
    by_name = {row["method"]: row for row in [*found["methods"], *found["references"]]}
    assert [row["method"] for row in found["references"]] == ["all-reduce bf16", "all-reduce fp32"]
    vote = "lion-cub-1bit:momentum_sync=never"
    assert set(by_name) == {"all-reduce fp32", "all-reduce bf16", "allreduce-sgd", vote, "qsgd"}
    assert by_name[vote]["speedup"] > 2
    assert by_name[vote]["pays_below_vs_fp32"].endswith("bit/s")
    assert by_name["all-reduce bf16"]["pays_below_vs_fp32"] == "always"
    assert by_name[vote]["accuracy"] == "not known"
    assert found["predicted"] is True
    assert found["timed_on"] == "a processor"


@pytest.mark.usefixtures("something")
def test_advice_as_a_table_says_that_it_is_predicted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*ADVISE, "--workers", "8", "--rate", "10gbit", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "Predicted, not measured." in shown
    assert "not scored yet; `bandwise costs score`" in shown


@pytest.mark.usefixtures("something")
def test_cores_that_are_shared_cost_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def step(*more: str) -> float:
        found = advised(capsys, tmp_path, "--workers", "8", "--rate", "1gbit", *more)
        return float(
            next(row["step_ms"] for row in found["references"] if row["method"] == "all-reduce fp32")
        )

    assert step("--cores", "2") > step()


@pytest.mark.usefixtures("something")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "8"], "give --workers and --rate, or --measure"),
        (["--workers", "1", "--rate", "1gbit"], "workers is 1: give a number of at least 2"),
        (["--workers", "8", "--rate", "fast"], "fast"),
        (["--workers", "8", "--rate", "1gbit", "--delay", "soon"], "soon"),
        (["--workers", "8", "--rate", "1gbit", "--cores", "0"], "cores is 0"),
        (["--measure"], "start this command with torchrun"),
    ],
)
def test_what_cannot_be_answered_is_said(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    assert main([*ADVISE, *arguments, "--results", str(tmp_path)]) in (2, 3)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "verb",
    [["costs", "score"], ["costs", "predict", "quick"], [*ADVISE, "--workers", "8", "--rate", "1gbit"]],
)
def test_without_a_calibration_the_command_that_makes_one_is_named(
    verb: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*verb, "--results", str(tmp_path)]) == 2
    assert "bandwise costs probe" in capsys.readouterr().err


@pytest.mark.usefixtures("something")
def test_a_session_is_predicted_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = made_up.SESSION.replace("55mbit", "77mbit")
    (tmp_path / "unseen.yaml").write_text(text, encoding="utf-8")
    command = ["costs", "predict", str(tmp_path / "unseen.yaml"), "--results", str(tmp_path)]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "lion-cub-1bit: step" in shown
    assert "not predicted: terngrad: step" in shown
    assert "sha256" in shown
    assert main(command) == 2
    assert "made once" in capsys.readouterr().err


@pytest.mark.usefixtures("something")
def test_the_score_is_written_and_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["costs", "score", "--results", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "median_error" in shown
    for name in ("costs-score", "costs-predictions", "costs-prices"):
        assert (tmp_path / "tables" / f"{name}.csv").is_file()
