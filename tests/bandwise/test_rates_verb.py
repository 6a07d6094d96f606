"""`bandwise rates`: what it measures, prints and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bandwise.cli import main
from suite.analysis.tables import Row, read_table, table_path
from suite.micro import first_call, scaling, simulation, throughput
from suite.micro.tables import AGAINST, CODECS, COMPILE, SCALING, SIMULATION


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    monkeypatch.setattr(throughput, "BUDGET_S", 0.0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_some_codecs_are_printed_and_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["rates", "--only", "bf*", "--numel", "1000", "--threads", "1", "--results", str(tmp_path)]) == 0
    )
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].split()[:4] == ["case", "operation", "n", "rate"]
    assert [line.split()[1] for line in lines[1:4]] == ["encode", "decode", "accumulate"]
    assert "1 threads; others used" in shown.out
    assert "rates: bf16" in shown.err
    assert list(tmp_path.iterdir()) == []


def test_the_default_writes_the_table_of_codecs_and_its_facts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(throughput, "CODECS", ("copy", "bf16"))
    assert main(["rates", "--numel", "1000", "--threads", "1", "--results", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = read_table(table_path(tmp_path, CODECS), CODECS)
    assert [(row["case"], row["operation"]) for row in rows] == [
        ("bf16", v) for v in ("accumulate", "decode", "encode")
    ]
    assert [Path(path).name for path in answer["tables"]] == ["rates-codecs.csv"]
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        "rates-codecs.csv",
        "rates-codecs-facts.json",
    }
    assert answer["facts"]["threads"] == 1


@pytest.mark.parametrize(
    ("flag", "module", "function", "table"),
    [
        ("--against", throughput, "against_rows", AGAINST),
        ("--compile", first_call, "compile_rows", COMPILE),
        ("--scaling", scaling, "scaling_rows", SCALING),
        ("--simulation", simulation, "simulation_rows", SIMULATION),
    ],
)
def test_the_other_measurements(
    flag: str, module: Any, function: str, table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def rows(*given: Any) -> list[Row]:
        asked.append(given)
        return []

    monkeypatch.setattr(module, function, rows)
    assert main(["rates", flag, "--threads", "3", "--results", str(tmp_path)]) == 0
    assert (3 in asked[0]) == (flag != "--simulation")
    assert read_table(table_path(tmp_path, table), table) == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--only", "nothing"], "no case matches"),
        (["--threads", "0"], "1 or more"),
        (["--numel", "0"], "1 or more"),
    ],
)
def test_refusals(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rates", *arguments]) == 2
    assert word in capsys.readouterr().err
