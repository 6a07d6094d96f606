"""A member of an array, in this process: whatever happens to it, no run is left without an end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm.member
from slurm.member import job_id, train
from suite.runs.execute import execute
from suite.runs.store import Store
from tests.slurm.specs import broken, tiny


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR2)
    yield
    signal.signal(signal.SIGUSR2, before)


def test_a_member_does_what_the_local_pool_does(tmp_path: Path) -> None:
    specs = [tiny(0), broken(1), tiny(2)]
    train([spec.as_dict() for spec in specs], str(tmp_path / "member"), 10, 60)
    for _ in execute(specs, Store(tmp_path / "local")):
        pass
    member, local = Store(tmp_path / "member"), Store(tmp_path / "local")
    assert [member.status(spec.run_id).state for spec in specs] == ["done", "error", "done"]
    for spec in specs:
        assert member.metrics(spec.run_id) == local.metrics(spec.run_id)


@pytest.mark.parametrize(("timeout_min", "state"), [(1, "timeout"), (600, "preempted")])
def test_a_warning_ends_the_runs_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout_min: int, state: str
) -> None:
    def interrupted(specs: object, store: Store) -> Iterator[None]:
        yield from execute([finished], store)
        os.kill(os.getpid(), signal.SIGUSR2)

    finished, open_ = tiny(0), tiny(1)
    monkeypatch.setattr(slurm.member, "execute", interrupted)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    train([finished.as_dict(), open_.as_dict()], str(tmp_path), timeout_min, 6)
    store = Store(tmp_path)
    assert store.status(finished.run_id).state == "done"
    assert store.status(open_.run_id).state == state
    assert "job 17" in store.status(open_.run_id).reason


def test_a_fault_of_the_program_is_kept_and_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(specs: object, store: Store) -> Iterator[None]:
        raise KeyError("fault")
        yield

    monkeypatch.setattr(slurm.member, "execute", faulty)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    with pytest.raises(KeyError, match="fault"):
        train([tiny(0).as_dict()], str(tmp_path), 10, 60)
    status = Store(tmp_path).status(tiny(0).run_id)
    assert status.state == "error"
    assert "17_3_0_log.err" in status.reason


def test_the_job_id_is_the_one_that_slurm_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    assert job_id() == "unknown"
    monkeypatch.setenv("SLURM_JOB_ID", "18")
    assert job_id() == "18"
