"""Runs on real processes that are interrupted, killed, or out of space: all ranks at the same step, the same bits."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.training import checkpoint as files
from suite.training.checkpoint import Interrupted, Interruption
from suite.training.execute import execute
from tests.suite.runs.project import kept, one_spec

pytestmark = pytest.mark.gloo


def spec_of(name: str, options: dict[str, Any], steps: int = 400) -> RunSpec:
    return one_spec(name, options, steps=steps, peak=0.01, backend="gloo")


def stop_after(spec: RunSpec, store: Store, step: int) -> int:
    """Interrupt a run once it has come that far; returns the step of its checkpoint."""
    asked = Interruption()

    def look(done: int) -> None:
        if done >= step:
            asked.request("a test")

    with pytest.raises(Interrupted):
        list(execute([spec], store, look, interruption=asked))
    note = store.note(spec.run_id)
    assert note is not None
    assert (note.state, note.reason) == ("interrupted", "a test")
    assert spec.steps > note.step >= step
    return note.step


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lion-cub-1bit", {"momentum_sync": "never"}),
        ("one-bit-adam", {"total_steps": 800, "warmup_fraction": 0.5}),
        ("local-adamw", {"period": 7}),
    ],
)
@pytest.mark.full
def test_ranks_stop_at_the_same_step_and_go_on_to_the_bit(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    spec = spec_of(name, options, steps=800)
    store, whole = Store(tmp_path / "stopped"), Store(tmp_path / "whole")
    step = stop_after(spec, store, 100)
    names = sorted(path.name for path in store.folder(spec.run_id).glob("checkpoint*"))
    assert names == [f"checkpoint-{step}-0.pt", f"checkpoint-{step}-1.pt", "checkpoint.json"]
    (outcome,) = execute([spec], store)
    assert outcome.status.state == "done", outcome.status.reason
    list(execute([spec], whole))
    assert kept(store, spec.run_id) == kept(whole, spec.run_id)
    assert not list(store.folder(spec.run_id).glob("checkpoint*"))


LOCAL = spec_of("local-adamw", {"period": 3})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with one run of local rounds that was never interrupted."""
    store = Store(tmp_path_factory.mktemp("whole"))
    list(execute([LOCAL], store))
    return store


@pytest.mark.full
def test_a_kill_of_one_rank_is_gone_on_from_the_last_checkpoint(tmp_path: Path, whole: Store) -> None:
    store = Store(tmp_path)
    others = set(multiprocessing.active_children())
    steps: list[int] = []

    def kill_one(step: int) -> None:
        note = store.note(LOCAL.run_id)
        if note is not None and note.step >= 100 and not steps:
            steps.append(note.step)
            os.kill(max(p.pid or 0 for p in set(multiprocessing.active_children()) - others), signal.SIGKILL)

    (outcome,) = execute([LOCAL], store, kill_one, checkpoint_s=0.0)
    assert outcome.status.state == "error"
    assert "rank 1 died: signal SIGKILL" in outcome.status.reason
    begun: list[int] = []

    def look(step: int) -> None:
        note = store.note(LOCAL.run_id)
        begun.append(note.step if note else 0)

    (outcome,) = execute([LOCAL], store, look)
    assert outcome.status.state == "done", outcome.status.reason
    assert begun[0] >= steps[0], "it did not begin anew"
    assert kept(store, LOCAL.run_id) == kept(whole, LOCAL.run_id)


@pytest.mark.full
def test_a_rank_file_that_cannot_be_read_makes_all_ranks_begin_anew(tmp_path: Path, whole: Store) -> None:
    store = Store(tmp_path)
    step = stop_after(LOCAL, store, 100)
    files.rank_path(store.folder(LOCAL.run_id), step, 1).write_bytes(b"nonsense")
    (outcome,) = execute([LOCAL], store)
    assert outcome.result["steps"] == LOCAL.steps
    assert kept(store, LOCAL.run_id) == kept(whole, LOCAL.run_id)


def test_an_index_without_its_files_is_of_no_use(tmp_path: Path) -> None:
    files.rank_path(tmp_path, 5, 0).write_bytes(b"5")
    files.publish(tmp_path, LOCAL, "code", 5)
    with pytest.raises(files.CheckpointError, match=r"at step 5 lacks the files of ranks \[1\]"):
        files.published(tmp_path, LOCAL, "code")
    with pytest.raises(files.CheckpointError, match="begun by other code"):
        files.published(tmp_path, LOCAL, "newer code")


def test_the_old_checkpoint_stands_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 dies, or has no space, at every write of the second checkpoint's publication."""
    spec, folder = spec_of("allreduce-sgd", {}), tmp_path
    for rank in range(2):
        files.rank_path(folder, 5, rank).write_bytes(b"5")
    files.publish(folder, spec, "code", 5)
    for rank in range(2):
        files.rank_path(folder, 9, rank).write_bytes(b"9")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RuntimeError, match="no space left"):
            files.publish(folder, spec, "code", 9)
    assert files.published(folder, spec, "code") == 5
    files.publish(folder, spec, "code", 9)
    assert files.published(folder, spec, "code") == 9
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint-9-0.pt",
        "checkpoint-9-1.pt",
        "checkpoint.json",
    ]
