"""The store: files replaced whole, ends that mean an end, a full disk that loses nothing; what is declared is what is written."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from suite.runs.files import StoreError, problem, write_atomic
from suite.runs.spec import RunSpec
from suite.runs.store import (
    RESULT_VERSION,
    STALE_AFTER_S,
    Evaluation,
    Note,
    Result,
    Status,
    Store,
    counts,
    failed,
    load_spec,
    result_problem,
)
from suite.training.execute import execute
from tests.suite.runs.project import ended, one_spec


def test_the_layout_of_a_run_folder(tmp_path: Path) -> None:
    spec, store = one_spec(), Store(tmp_path)
    assert store.begin(spec).attempt == 1
    folder = tmp_path / "runs" / spec.run_id[:2] / spec.run_id
    assert folder == store.folder(spec.run_id)
    assert (folder / "spec.json").read_text() == spec.to_json()
    assert store.status(spec.run_id) == Status("running")
    outcome = ended(spec)
    curve = [{"step": step, "lr": 0.1, "train_loss": None} for step in (1, 2)]
    store.finish(spec.run_id, outcome.status, outcome.result, curve)
    assert sorted(path.name for path in folder.iterdir()) == [
        "metrics.jsonl",
        "result.json",
        "spec.json",
        "status.json",
    ]
    assert store.metrics(spec.run_id) == curve
    assert store.result(spec.run_id) == outcome.result
    assert store.status(spec.run_id) == Status("done")
    assert store.run_ids() == [spec.run_id]
    assert load_spec(spec.run_id, store) == load_spec(str(folder / "spec.json"), store) == spec


def test_a_new_attempt_forgets_the_failed_one(tmp_path: Path) -> None:
    spec, store = one_spec(), Store(tmp_path)
    store.begin(spec)
    failed(spec, Status("error", "the worker died")).save(store)
    assert store.begin(spec).attempt == 2
    assert store.result(spec.run_id) is None
    assert store.status(spec.run_id).state == "running"


def test_a_silent_run_is_stale_and_a_stopped_one_missing(tmp_path: Path) -> None:
    spec, store = one_spec(), Store(tmp_path)
    assert store.status(spec.run_id).state == "missing"
    store.begin(spec)
    long_ago = time.time() - STALE_AFTER_S - 1
    os.utime(store.folder(spec.run_id) / "status.json", (long_ago, long_ago))
    assert store.status(spec.run_id).state == "stale"
    store.heartbeat(spec.run_id)
    assert store.status(spec.run_id).state == "running"
    store.abandon(spec.run_id)
    assert store.status(spec.run_id).state == "missing"


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path: Path) -> None:
    """Such as /dev/null, in the place of which a rename as root puts a file, and everybody reads what anybody has written."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomic(pipe, "told")
    assert (os.read(reader, 9), pipe.is_fifo()) == (b"told", True)
    os.close(reader)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_the_old_file_and_says_what_to_do(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    write_atomic(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"no space left for .*result.json: free some.*--results.*kept"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"], "the temporary file is gone"


def test_states_outside_the_vocabulary_and_bad_ends_without_reason_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown state 'finished'"):
        Status("finished")
    with pytest.raises(ValueError, match="'oom' needs a reason"):
        Status("oom")
    assert (
        json.dumps(counts([Status("done"), Status("missing"), Status("done")])) == '{"done": 2, "missing": 1}'
    )


# ---- declaration and writer of a run's files hold each other


@pytest.mark.parametrize("name", ["changed", "diverged", "done", "oom"])
def test_what_was_written_before_is_read(name: str) -> None:
    result = json.loads((Path(__file__).parent / "frozen" / f"{name}.json").read_text(encoding="utf-8"))
    assert result_problem(result, result["run_id"]) is None


@pytest.mark.parametrize(
    ("algorithm", "peak", "state"), [("lion-cub-1bit", 0.001, "done"), ("allreduce-sgd", 1e9, "diverged")]
)
def test_what_a_real_run_writes_is_what_is_declared(
    algorithm: str, peak: float, state: str, tmp_path: Path
) -> None:
    run, store = one_spec(algorithm, peak=peak), Store(tmp_path)
    list(execute([run], store))
    run_id = run.run_id
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
