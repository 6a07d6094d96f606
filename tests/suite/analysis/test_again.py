"""A study that was trained here beside the published one: all equal, or what differs first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from suite.analysis.reproduction import of_study
from suite.analysis.tables import CURVES, RUNS, SUMMARY, Table, read_frame, table_path, write_table

TABLES = Path(__file__).resolve().parents[3] / "results" / "published" / "tables"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Results with the quick study, made here as it is published."""
    for top in (tmp_path, tmp_path / "published"):
        (top / "tables").mkdir(parents=True)
        for path in TABLES.glob("quick-*"):
            shutil.copy(path, top / "tables")
    return tmp_path


def test_a_study_that_came_out_the_same_says_how_much_of_it_is(root: Path) -> None:
    found = of_study(root, "quick")
    assert found is not None
    runs = len(read_frame(table_path(root, RUNS, "quick"), RUNS))
    assert found.equal == found.runs > runs, "runs at other budgets too"
    assert str(found) == (
        f"quick: {found.runs} of {found.runs} runs equal the published ones in every number, "
        f"{found.evaluations:,} evaluations on the way among them"
    )
    assert found.evaluations == len(read_frame(table_path(root, CURVES, "quick"), CURVES))


@pytest.mark.parametrize(
    ("table", "column"), [(RUNS, "value"), (RUNS, "wire_bytes_per_step"), (CURVES, "train_loss")]
)
def test_one_number_in_the_ninth_digit_is_told(root: Path, table: Table, column: str) -> None:
    path = table_path(root, table, "quick")
    frame = read_frame(path, table)
    frame.loc[3, column] *= 1 + 1e-7
    write_table(path, table, frame)
    facts = root / "tables" / "quick-study.json"
    told = json.loads(facts.read_text())
    facts.write_text(json.dumps(told | {"provenance": told["provenance"] | {"torch": ["9.9"]}}))
    found = of_study(root, "quick")
    assert found is not None
    assert found.runs - found.equal == 1
    assert f"has {column} " in str(found)
    assert found.within == found.means == 15, "arms"
    (torch,) = told["provenance"]["torch"]
    assert str(found).endswith(f"; other than published: torch 9.9 (there {torch})")


def test_means_elsewhere_are_held_against_published_intervals(root: Path) -> None:
    for table, row, column in ((SUMMARY, 4, "mean"), (RUNS, 0, "value")):
        path = table_path(root, table, "quick")
        frame = read_frame(path, table)
        frame.loc[row, column] += 50
        write_table(path, table, frame)
    found = of_study(root, "quick")
    assert found is not None
    assert (found.means, found.within) == (15, 14)
    assert "125 of 126 runs equal the published ones, 14 of 15 means lie in the published intervals; " in str(
        found
    )


def test_an_evaluation_that_is_missing_is_told(root: Path) -> None:
    path = table_path(root, CURVES, "quick")
    frame = read_frame(path, CURVES)
    write_table(path, CURVES, frame.drop(index=[5]))
    found = of_study(root, "quick")
    assert found is not None
    assert found.runs - found.equal == 1


def test_runs_that_have_not_ended_are_not_counted_and_nothing_is_said_of_what_is_in_one_place(
    root: Path,
) -> None:
    whole = of_study(root, "quick")
    path = table_path(root, RUNS, "quick")
    frame = read_frame(path, RUNS)
    seed = frame["seed"] == 0
    numbers = ["value", "nll", "payload_bytes_per_step", "wire_bytes_per_step", "wire_bytes_per_step_max"]
    frame.loc[seed, numbers] = float("nan")
    frame.loc[seed, "status"] = "missing"
    write_table(path, RUNS, frame)
    curves = read_frame(table_path(root, CURVES, "quick"), CURVES)
    write_table(table_path(root, CURVES, "quick"), CURVES, curves[curves["seed"] != 0])
    found = of_study(root, "quick")
    assert whole is not None
    assert found is not None
    assert found.runs == found.equal == whole.runs - int(seed.sum())
    shutil.rmtree(root / "tables")
    assert of_study(root, "quick") is None
