"""The store: files replaced whole, ends that mean an end, a full disk that loses nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from suite.runs.files import STALE_AFTER_S, StoreError, StoreFullError, write_atomic
from suite.runs.store import Status, Store, counts, failed, load_spec
from tests.suite.runs.project import SWEEP, ended, one_spec, write_sweep
from tests.support import skip_or_fail

ROOT = Path(__file__).resolve().parents[3]


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


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_the_old_file_and_says_what_to_do(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.json"
    write_atomic(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFullError, match=r"no space left for .*result.json: free some.*--results.*kept"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"], "the temporary file is gone"


@pytest.mark.full
def test_a_sweep_on_a_full_disk_keeps_what_it_finished(tmp_path: Path) -> None:
    """On a real file system of 1 MB: a group of 40 runs fits, three do not."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        skip_or_fail("no file system of its own for the test: `unshare -rm` is missing or not allowed")
    sweep, results = write_sweep(tmp_path, SWEEP.replace("seeds: 3", "seeds: 60")), tmp_path / "results"
    results.mkdir()
    command = f"{sys.executable} -m bandwise sweep {sweep} --results {results} --jobs 1"
    script = f"mount -t tmpfs -o size=1000k none {results} && {command}; code=$?; cp -r {results} {tmp_path}/kept; exit $code"
    done = subprocess.run(
        ["unshare", "-rm", "bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "bandwise: error: no space left for" in done.stderr
    assert "Traceback" not in done.stderr
    kept = Store(tmp_path / "kept")
    states = counts(kept.status(run_id) for run_id in kept.run_ids())
    assert states.get("done", 0) >= 40, "what was finished is kept"
    assert set(states) <= {"done", "missing"}, "nothing is left half-way"


def test_damage_is_named(tmp_path: Path) -> None:
    spec, store = one_spec(), Store(tmp_path)
    store.begin(spec)
    (store.folder(spec.run_id) / "result.json").write_text("{")
    assert store.status(spec.run_id).state == "invalid"
    assert store.status(spec.run_id).reason.startswith("result.json is damaged (Expecting property name")
    assert re.search(
        r"/result.json is damaged .*: move it away; the next sweep trains the run again",
        str(store.refusal(spec.run_id)),
    )
    store.begin(spec)
    assert store.status(spec.run_id).state == "running"
    assert (store.folder(spec.run_id) / "refused-result.json").read_text() == "{", "set aside, not lost"
    with pytest.raises(StoreError, match="no run '0123456789abcdef'"):
        store.spec("0123456789abcdef")


def test_states_outside_the_vocabulary_and_bad_ends_without_reason_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown state 'finished'"):
        Status("finished")
    with pytest.raises(ValueError, match="'oom' needs a reason"):
        Status("oom")
    assert (
        json.dumps(counts([Status("done"), Status("missing"), Status("done")])) == '{"done": 2, "missing": 1}'
    )
