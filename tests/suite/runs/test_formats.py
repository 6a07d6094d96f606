"""Declaration and writer of a run's files hold each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from suite.runs.files import problem
from suite.runs.spec import RunSpec
from suite.runs.store import RESULT_VERSION, Evaluation, Note, Result, Store, result_problem
from tests.suite.runs.project import ended, one_spec

FROZEN = Path(__file__).parent / "frozen"


def frozen(name: str) -> dict[str, Any]:
    return dict(json.loads((FROZEN / f"{name}.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["changed", "diverged", "done", "oom"])
def test_what_was_written_before_is_read(name: str) -> None:
    result = frozen(name)
    assert result_problem(result, result["run_id"]) is None


@pytest.mark.parametrize(
    ("algorithm", "workload", "lr", "state"),
    [("lion-cub-1bit", "quadratic", "0.001", "done"), ("allreduce-sgd", "quadratic", "1e9", "diverged")],
)
def test_what_a_real_run_writes_is_what_is_declared(
    algorithm: str, workload: str, lr: str, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--algorithm", algorithm, "--workload", workload, "--steps", "4", "--batch-size", "2", "--lr", lr,
          "--world-size", "2", "--results", str(tmp_path)])  # fmt: skip
    capsys.readouterr()
    store = Store(tmp_path)
    (run_id,) = store.run_ids()
    folder = store.folder(run_id)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    assert (result["schema_version"], result["status"]) == (RESULT_VERSION, state)
    assert result_problem(result, run_id) is None
    assert set(Result.__annotations__) == set(result)
    status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    assert set(status) == set(Note.__annotations__)
    assert problem(Note, status) is None
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    assert problem(RunSpec, spec) is None
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        assert problem(Evaluation, json.loads(line)) is None


def test_what_keys_say_together_is_checked_too() -> None:
    spec = one_spec()
    result = dict(ended(spec).result)

    def found(**changes: Any) -> str:
        return result_problem({**result, **changes}, spec.run_id) or ""

    assert found() == ""
    assert found(final={}) == "final lacks the metric excess_loss, though the run is done"
    assert found(directions={}) == "directions lacks excess_loss"
    bare = {
        key: result[key] for key in ("schema_version", "run_id", "spec", "status", "reason", "provenance")
    }
    assert result_problem(bare, spec.run_id) == "metric is missing, though the run is done"
