"""A job's work, in this process: whatever happens to it, no run is left without an end or a next turn."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from submitit.core.utils import DelayedSubmission, UncompletedJobError

from slurm.job import TrainRuns
from slurm.states import REASONS, TIME_LIMIT, TOLD_TO_STOP
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.training import execute as executing
from suite.training.checkpoint import Interrupted, Interruption
from suite.training.execute import execute
from tests.slurm.specs import broken, tiny
from tests.support import Capsys, Patch

OWNER = "slurm 17_3"


def work(root: Path, *groups: list[RunSpec], max_requeues: int = 2) -> TrainRuns:
    plain = [[spec.as_dict() for spec in group] for group in groups]
    return TrainRuns("tiny", str(root), plain, 10, max_requeues, 60.0)


@pytest.fixture(autouse=True)
def job(monkeypatch: Patch) -> Iterator[None]:
    """This process is the only task of member 3 of array 17; it has its own signal handlers back afterwards."""
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    place = {
        "ARRAY_JOB_ID": 17,
        "ARRAY_TASK_ID": 3,
        "JOB_ID": 20,
        "PROCID": 0,
        "NTASKS": 1,
        "RESTART_COUNT": 0,
    }
    for name, value in place.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    before = {number: signal.getsignal(number) for number in REASONS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def submitits(answer: BaseException | None = None) -> list[int]:
    """Put a handler in the place of submitit's, which starts the job again, or raises; the signals that reach it."""
    asked: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        raise answer or SystemExit(-1)

    signal.signal(signal.SIGUSR2, handle)
    return asked


@pytest.fixture
def stopped(monkeypatch: Patch) -> list[str]:
    """The reason in this list stops training once the first run of a group has ended."""
    reasons: list[str] = []

    def one_run(group: list[RunSpec], store: Store, **rest: Any) -> Iterator[Any]:
        yield from execute(group[:1], store)
        if reasons:
            raise Interrupted(reasons[0], [spec.run_id for spec in group[1:]])

    monkeypatch.setattr(executing, "execute", one_run)
    return reasons


def states(root: Path, *specs: RunSpec) -> list[str]:
    return [Store(root).status(spec.run_id).state for spec in specs]


def test_a_job_does_what_the_local_pool_does(tmp_path: Path) -> None:
    specs = [tiny(0), broken(1), tiny(2)]
    work(tmp_path / "job", specs[:2], specs[2:])()
    for _ in execute(specs, Store(tmp_path / "local")):
        pass
    job, local = Store(tmp_path / "job"), Store(tmp_path / "local")
    assert states(tmp_path / "job", *specs) == ["done", "error", "done"]
    for spec in specs:
        assert job.metrics(spec.run_id) == local.metrics(spec.run_id)


def test_near_its_limit_submitit_starts_it_again(tmp_path: Path, stopped: list[str]) -> None:
    asked = submitits()
    stopped.append(TIME_LIMIT)
    job = work(tmp_path, [tiny(0)], [tiny(1)])
    with pytest.raises(SystemExit):
        job()
    assert asked == [signal.SIGUSR2]
    assert states(tmp_path, tiny(0), tiny(1)) == ["done", "missing"], "it has another turn"
    again = job.checkpoint()
    assert isinstance(again, DelayedSubmission)
    assert again.function == job
    stopped[:] = [TOLD_TO_STOP]
    work(tmp_path, [tiny(2)], [tiny(3)])()
    assert asked == [signal.SIGUSR2], "told to stop, it leaves the rest to Slurm"
    assert states(tmp_path, tiny(2), tiny(3)) == ["done", "missing"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (UncompletedJobError("timed-out too many times"), "reached its 10 min for the last of 3 times"),
        (subprocess.CalledProcessError(1, "scontrol"), "cannot be requeued"),
    ],
)
def test_without_another_turn_the_runs_are_out_of_time(
    tmp_path: Path, stopped: list[str], monkeypatch: Patch, answer: Exception, said: str
) -> None:
    submitits(answer)
    stopped.append(TIME_LIMIT)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    work(tmp_path, [tiny(0), tiny(1)], [tiny(2)])()
    assert states(tmp_path, tiny(0), tiny(1), tiny(2)) == ["done", "timeout", "timeout"]
    reason = Store(tmp_path).status(tiny(1).run_id).reason
    assert said in reason
    assert "bandwise sweep tiny --retry timeout" in reason


def test_the_signals_of_slurm_raise_the_flag(tmp_path: Path, monkeypatch: Patch) -> None:
    seen: list[str | None] = []

    def look(group: list[RunSpec], store: Store, *, interruption: Interruption, **rest: Any) -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        seen.append(interruption.requested)
        yield from ()

    monkeypatch.setattr(executing, "execute", look)
    work(tmp_path, [tiny(0)], [tiny(1)])()
    assert seen == [TOLD_TO_STOP], "the second group is not begun"


def test_a_job_started_too_often_ends_its_own_runs(tmp_path: Path, monkeypatch: Patch) -> None:
    store = Store(tmp_path)
    store.begin(tiny(0), owner="slurm 18_0")
    store.begin(tiny(1), owner=OWNER)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "3")
    work(tmp_path, [tiny(0), tiny(1)])()
    notes = [store.note(tiny(seed).run_id) for seed in (0, 1)]
    assert [note.state for note in notes if note] == ["running", "node_lost"]
    assert "lost with its node 3 times, and max_requeues is 2" in store.status(tiny(1).run_id).reason


def test_a_fault_ends_its_group_alone(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    def faulty(group: list[RunSpec], store: Store, **rest: Any) -> Iterator[Any]:
        if group[0].seed == 0:
            raise KeyError("fault")
        yield from execute(group, store)

    monkeypatch.setattr(executing, "execute", faulty)
    work(tmp_path, [tiny(0)], [tiny(1)])()
    assert states(tmp_path, tiny(0), tiny(1)) == ["error", "done"]
    assert "job 17_3: KeyError: 'fault'" in Store(tmp_path).status(tiny(0).run_id).reason
    assert "Traceback" in capsys.readouterr().err, "the log has the rest"


def test_among_several_tasks_a_fault_ends_them_all(tmp_path: Path, monkeypatch: Patch) -> None:
    def faulty(group: list[RunSpec], store: Store, **rest: Any) -> Iterator[Any]:
        raise KeyError("fault")
        yield

    monkeypatch.setattr(executing, "execute", faulty)
    monkeypatch.setenv("SLURM_NTASKS", "2")
    for rank, state in [(1, "missing"), (0, "error")]:
        monkeypatch.setenv("SLURM_PROCID", str(rank))
        with pytest.raises(KeyError, match="fault"):
            work(tmp_path, [tiny(0)], [tiny(1)])()
        assert states(tmp_path, tiny(0)) == [state]
