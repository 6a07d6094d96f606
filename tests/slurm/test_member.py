"""A member of an array, in this process: whatever happens to it, no run is left without an end or a next turn."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import slurm.scheduler
from slurm.member import FAULT, REASONS, TIME_LIMIT, TOLD_TO_STOP, Seat, Work, listen, train
from slurm.scheduler import SlurmError
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.training import execute as executing
from suite.training.checkpoint import Interrupted, Interruption
from suite.training.execute import execute
from tests.slurm.specs import broken, tiny

SEAT = Seat("17_3", index=3, rank=0, tasks=1, restarts=0)


def work(root: Path, *groups: list[RunSpec], max_requeues: int = 2) -> Work:
    plain = [[spec.as_dict() for spec in group] for group in groups]
    return Work("tiny", str(root), 10, max_requeues, 60.0, plain)


@pytest.fixture
def requeued(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the jobs for which Slurm was asked to start them again."""
    asked: list[str] = []
    monkeypatch.setattr(slurm.scheduler, "requeue", asked.append)
    return asked


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Interruption]:
    """A flag that is raised once the first run of a group has ended."""
    flag = Interruption()

    def one_run(group: list[RunSpec], store: Store, **rest: Any) -> Iterator[Any]:
        yield from execute(group[:1], store)
        if flag.requested:
            raise Interrupted(flag.requested, [spec.run_id for spec in group[1:]])

    monkeypatch.setattr(executing, "execute", one_run)
    return flag


def test_a_member_does_what_the_local_pool_does(tmp_path: Path) -> None:
    specs = [tiny(0), broken(1), tiny(2)]
    assert train(work(tmp_path / "member", specs[:2], specs[2:]), SEAT, Interruption()) == 0
    for _ in execute(specs, Store(tmp_path / "local")):
        pass
    member, local = Store(tmp_path / "member"), Store(tmp_path / "local")
    assert [member.status(spec.run_id).state for spec in specs] == ["done", "error", "done"]
    for spec in specs:
        assert member.metrics(spec.run_id) == local.metrics(spec.run_id)


def test_near_its_limit_a_member_asks_for_another_turn(
    tmp_path: Path, interrupting: Interruption, requeued: list[str]
) -> None:
    interrupting.request(TIME_LIMIT)
    assert train(work(tmp_path, [tiny(0)], [tiny(1)]), SEAT, interrupting) == 0
    assert requeued == ["17_3"]
    assert Store(tmp_path).status(tiny(0).run_id).state == "missing", "it has another turn"


def test_after_its_last_turn_the_runs_are_out_of_time(
    tmp_path: Path, requeued: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = Interruption()

    def out_of_time(group: list[RunSpec], store: Store, **rest: Any) -> Iterator[Any]:
        yield from execute(group[:1], store)
        raise Interrupted(TIME_LIMIT, [group[1].run_id])

    monkeypatch.setattr(executing, "execute", out_of_time)
    store, specs = Store(tmp_path), [tiny(0), tiny(1), tiny(2)]
    train(work(tmp_path, specs[:2], specs[2:]), replace(SEAT, restarts=2), flag)
    assert requeued == []
    assert [store.status(spec.run_id).state for spec in specs] == ["done", "timeout", "timeout"]
    reason = store.status(specs[1].run_id).reason
    assert "job 17_3 reached its 10 min for the last of 3 times" in reason
    assert "bandwise retry tiny --status timeout" in reason


def test_a_site_that_does_not_requeue_is_no_silence(
    tmp_path: Path, interrupting: Interruption, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(job_id: str) -> None:
        raise SlurmError("requeue is disabled")

    monkeypatch.setattr(slurm.scheduler, "requeue", refuse)
    interrupting.request(TIME_LIMIT)
    train(work(tmp_path, [tiny(0)]), SEAT, interrupting)
    status = Store(tmp_path).status(tiny(0).run_id)
    assert status.state == "timeout"
    assert "cannot be requeued (requeue is disabled)" in status.reason


def test_told_to_stop_a_member_leaves_the_rest_to_slurm(
    tmp_path: Path, interrupting: Interruption, requeued: list[str]
) -> None:
    interrupting.request(TOLD_TO_STOP)
    assert train(work(tmp_path, [tiny(0)], [tiny(1)]), SEAT, interrupting) == 0
    assert requeued == []
    assert Store(tmp_path).status(tiny(1).run_id).state == "missing"


def test_a_job_started_too_often_ends_its_runs(tmp_path: Path) -> None:
    train(work(tmp_path, [tiny(0)]), replace(SEAT, restarts=3), Interruption())
    status = Store(tmp_path).status(tiny(0).run_id)
    assert status.state == "node_lost"
    assert "lost with its node 3 times, and max_requeues is 2" in status.reason


def test_a_run_that_another_job_is_at_is_not_ended(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.begin(tiny(0), owner="slurm:18_0")
    store.begin(tiny(1), owner=SEAT.owner)
    train(work(tmp_path, [tiny(0), tiny(1)]), replace(SEAT, restarts=3), Interruption())
    notes = [store.note(tiny(seed).run_id) for seed in (0, 1)]
    assert [note.state for note in notes if note] == ["running", "node_lost"]


def test_a_fault_of_the_program_ends_its_group_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(group: list[RunSpec], store: Store, **rest: Any) -> Iterator[Any]:
        if group[0].seed == 0:
            raise KeyError("fault")
        yield from execute(group, store)

    monkeypatch.setattr(executing, "execute", faulty)
    assert train(work(tmp_path, [tiny(0)], [tiny(1)]), SEAT, Interruption()) == FAULT
    store = Store(tmp_path)
    status = store.status(tiny(0).run_id)
    assert status.state == "error"
    assert "job 17_3: KeyError: 'fault'" in status.reason
    assert store.status(tiny(1).run_id).state == "done"
    assert "Traceback" in capsys.readouterr().err, "the log has the rest"


def test_among_several_tasks_a_fault_ends_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(group: list[RunSpec], store: Store, **rest: Any) -> Iterator[Any]:
        raise KeyError("fault")
        yield

    monkeypatch.setattr(executing, "execute", faulty)
    for rank, state in [(1, "missing"), (0, "error")]:
        with pytest.raises(KeyError, match="fault"):
            train(work(tmp_path, [tiny(0)], [tiny(1)]), replace(SEAT, rank=rank, tasks=2), Interruption())
        assert Store(tmp_path).status(tiny(0).run_id).state == state


def test_the_signals_of_slurm_raise_the_flag() -> None:
    before = {number: signal.getsignal(number) for number in REASONS}
    try:
        for number, reason in REASONS.items():
            flag = Interruption()
            listen(flag)
            os.kill(os.getpid(), number)
            assert flag.requested == reason
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_seat_is_read_from_slurms_variables() -> None:
    assert Seat.of({}) == Seat("unknown", 0, 0, 1, 0)
    array = {"SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ID": "20"}
    place = {"SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_RESTART_COUNT": "2"}
    assert Seat.of({**array, **place}) == Seat("17_3", 3, 1, 4, 2)
    assert Seat.of({"SLURM_JOB_ID": "18"}).job_id == "18"


def test_a_member_reads_its_own_work(tmp_path: Path) -> None:
    noted = {
        "schema_version": 1, "sweep": "tiny", "results_root": "/r", "timeout_min": 5, "max_requeues": 1,
        "checkpoint_s": 30, "members": [[["a"]], [["b"], ["c"]]],
    }  # fmt: skip
    (tmp_path / "work-0.json").write_text(json.dumps(noted))
    assert Work.read(tmp_path / "work-0.json", 1) == Work("tiny", "/r", 5, 1, 30, [["b"], ["c"]])
