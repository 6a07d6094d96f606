"""`bandwise reproduce`: a run comes out to the bit, and a record that was changed is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from bandwise.cli import main
from suite.analysis.collect import collect_sweep
from suite.analysis.reproduction import Recorded, compare
from suite.runs.files import dump
from suite.runs.plan import EVALUATIONS, make_plan
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.runs.sweep import load_sweep
from suite.training.execute import execute
from tests.bandwise.said import answer, refusal
from tests.suite.runs.project import SWEEP, one_spec, write_sweep
from tests.support import Capsys, Patch


@pytest.fixture
def store(results: Path) -> Store:
    """The results folder with the records."""
    return Store(results)


def ran(store: Store, spec: RunSpec) -> str:
    """Carry a run out; returns its id."""
    torch.set_num_threads(1)
    list(execute([spec], store))
    return spec.run_id


def change(store: Store, run_id: str, line: int, name: str, factor: float) -> None:
    """Change one number of a stored curve."""
    path = store.folder(run_id) / "metrics.jsonl"
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    lines[line][name] *= factor
    path.write_text("".join(dump(one) + "\n" for one in lines))


def test_a_run_comes_out_to_the_bit(store: Store, capsys: Capsys) -> None:
    run_id = ran(store, one_spec("qsgd", {"bits": 4}, steps=16))
    before = {path: path.read_bytes() for path in store.folder(run_id).rglob("*") if path.is_file()}
    found = answer(capsys, "reproduce", run_id)
    assert (found["verdict"], found["gaps"], found["environment"]) == ("equal", [], [])
    assert found["compared"].startswith("to the bit")
    again = Store(store.root / "reproduced")
    assert len(again.metrics(run_id)) == EVALUATIONS == 16
    assert again.metrics(run_id) == store.metrics(run_id)
    assert {path: path.read_bytes() for path in store.folder(run_id).rglob("*") if path.is_file()} == before


def test_a_changed_record_is_found_at_its_first_evaluation(store: Store, capsys: Capsys) -> None:
    run_id = ran(store, one_spec(steps=16))
    change(store, run_id, 15, "excess_loss", 1 + 2**-52)
    (gap,) = answer(capsys, "reproduce", run_id, code=3)["gaps"]
    assert gap["what"] == "evaluation 16 (step 16), excess_loss", "the last bit of the last number"
    change(store, run_id, 4, "train_loss", 1 + 1e-12)
    change(store, run_id, 2, "train_loss", 1.5)
    found = answer(capsys, "reproduce", run_id, code=3)
    assert found["verdict"] == "not equal"
    true = Store(store.root / "reproduced").metrics(run_id)[2]["train_loss"]
    (gap,) = found["gaps"]
    assert gap["what"] == "evaluation 3 (step 3), train_loss"
    assert gap["by"] == pytest.approx(-true / 2)
    assert main(["reproduce", run_id]) == 3
    assert "the record was changed after it was written" in capsys.readouterr().out


def test_what_differs_in_the_environment_is_said(store: Store, capsys: Capsys) -> None:
    run_id = ran(store, one_spec())
    path = store.folder(run_id) / "result.json"
    result = json.loads(path.read_text())
    result["provenance"] |= {"torch": "1.0", "host_hash": "elsewhere", "commit": "0" * 40}
    path.write_text(dump(result))
    found = answer(capsys, "reproduce", run_id)
    assert found["verdict"] == "equal"
    assert [(one["what"], one["then"]) for one in found["environment"]] == [
        ("commit", "0" * 40),
        ("torch", "1.0"),
    ]
    assert [one["what"] for one in found["harmless"]] == ["host_hash"]
    change(store, run_id, 0, "train_loss", 2)
    assert answer(capsys, "reproduce", run_id, code=3)["verdict"] == "other environment"
    assert main(["reproduce", run_id]) == 3
    assert f"`git worktree add ../bandwise-{'0' * 12} {'0' * 40}`" in capsys.readouterr().out


def test_bytes_that_differ_are_named(store: Store) -> None:
    spec = one_spec()
    result = {"status": "done", "bytes": {"by": [{"wire_bytes": 10}]}, "train_s": 1.0}
    other = {"status": "done", "bytes": {"by": [{"wire_bytes": 12}]}, "train_s": 2.0}
    found = compare(Recorded(spec, "a", True, result), Recorded(spec, "b", True, other))
    assert [(gap.what, gap.by) for gap in found.gaps] == [("bytes.by[0].wire_bytes", 2.0)]


@pytest.mark.parametrize(
    ("budgets", "name"), [("", "small-runs.csv"), ("budgets: [0.5, 1]", "small-rungs.csv")]
)
def test_a_row_of_a_table_is_enough(
    budgets: str,
    name: str,
    store: Store,
    tmp_path: Path,
    capsys: Capsys,
    monkeypatch: Patch,
) -> None:
    from suite.analysis.collect import write

    sweep = load_sweep(write_sweep(tmp_path, f"{SWEEP}{budgets}\n"))
    specs = make_plan(sweep).specs
    torch.set_num_threads(1)
    first = specs[0]
    list(execute([s for s in specs if (s.algorithm, s.steps) == (first.algorithm, first.steps)], store))
    write(store.root, collect_sweep(store.root, sweep))
    shutil.rmtree(store.root / "runs")
    monkeypatch.setattr("suite.analysis.reproduction.load_sweep", lambda name: sweep)
    run_id = specs[0].run_id
    found = answer(capsys, "reproduce", run_id)
    assert found["verdict"] == "equal"
    assert found["compared"].startswith("to the nine digits of the table")
    assert ("every evaluation" in found["compared"]) == (not budgets), "rungs leave no curve"
    table = store.root / "tables" / name
    again = Store(store.root / "reproduced")
    value = again.result(run_id)["final"]["excess_loss"]
    assert f"{value:.9g}" in table.read_text()
    table.write_text(table.read_text().replace(f"{value:.9g}", f"{value * 1.00001:.9g}"))
    assert [gap["what"] for gap in answer(capsys, "reproduce", run_id, code=3)["gaps"]] == ["value"]
    if not budgets:
        curves = table.with_name("small-curves.csv")
        first = min(again.metrics(run_id), key=lambda line: line["step"])["excess_loss"]
        assert f"{first:.9g}" in curves.read_text()
        curves.write_text(curves.read_text().replace(f"{first:.9g}", f"{first * 1.00001:.9g}"))
        gaps = [gap["what"] for gap in answer(capsys, "reproduce", run_id, code=3)["gaps"]]
        assert gaps == ["evaluation 1 (step 1), excess_loss", "value"]
        curves.unlink()  # tables of an earlier version
        assert "the curve lies in no table" in answer(capsys, "reproduce", run_id, code=3)["compared"]
    missing = specs[-1].run_id  # has a row, but was never run
    assert f"nothing is on record of run {missing}" in refusal(capsys, "reproduce", missing)


def test_what_is_not_on_record_is_refused_and_the_record_stays(store: Store, capsys: Capsys) -> None:
    for run_id, words in (
        ("../../etc/passwd", "is no run id"),
        ("0" * 16, f"nothing is on record of run {'0' * 16}"),
    ):
        assert words in refusal(capsys, "reproduce", run_id)
    said = refusal(capsys, "reproduce", run_id := ran(store, one_spec()), "--out", str(store.root))
    assert "is where the record lies" in said
    (store.folder(run_id) / "result.json").write_text("{")
    assert "result.json is damaged" in refusal(capsys, "reproduce", run_id, code=3)
