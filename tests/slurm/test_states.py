"""How runs stand by what Slurm says of their jobs. Slurm's answers are given here; real ones are in `test_real_slurm.py`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm import scheduler
from slurm.scheduler import Job, SlurmError
from slurm.states import BEGUN, WORDS, Record, RunStates, last_words, note_ends, records, run_states, settle
from suite.runs.files import StoreError
from suite.runs.store import Status, Store, failed, take_lease
from suite.runs.sweep import UnknownSweepError, load_sweep
from tests.slurm.specs import tiny
from tests.support import Patch

NAME = "bandwise-tiny"
SPECS = [tiny(seed) for seed in range(4)]


def submitted(store: Store, number: str = "17", created_s: float = 1.0) -> Record:
    """A submission of two members of two runs each."""
    ids = [spec.run_id for spec in SPECS]
    folder = store.root / "sweeps" / "tiny" / f"slurm-{number}"
    record = Record(folder, "tiny", created_s, {}, {f"{number}_0": ids[:2], f"{number}_1": ids[2:]})
    record.folder.mkdir(parents=True)
    record.save()
    return record


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def says(monkeypatch: Patch) -> dict[str, list[Job]]:
    """What squeue and sacct answer."""
    answers: dict[str, list[Job]] = {"squeue": [], "sacct": []}
    monkeypatch.setattr(scheduler, "jobs", lambda: answers["squeue"])
    monkeypatch.setattr(scheduler, "accounted", lambda job_ids: answers["sacct"])
    return answers


def job(index: int, state: str, reason: str = "None", number: str = "17") -> Job:
    return Job(f"{number}_{index}", NAME, state, reason)


def states(found: RunStates) -> list[str]:
    return [found.statuses[spec.run_id].state for spec in SPECS]


def test_without_a_submission_slurm_is_not_asked(store: Store, monkeypatch: Patch) -> None:
    monkeypatch.setattr(scheduler, "jobs", lambda: pytest.fail("asked"))
    assert states(run_states(SPECS, store)) == ["missing"] * 4
    submitted(store)
    for spec in SPECS:
        failed(spec, Status("diverged", "inf")).save(store)
    assert states(run_states(SPECS, store)) == ["diverged"] * 4


def test_a_waiting_job_says_why(store: Store, says: dict[str, list[Job]]) -> None:
    submitted(store)
    store.begin(SPECS[2])
    says["squeue"] = [job(0, "PENDING", "QOSMaxJobsPerUserLimit"), job(1, "RUNNING")]
    found = run_states(SPECS, store)
    assert states(found) == ["queued", "queued", "running", "queued"]
    assert found.statuses[SPECS[0].run_id].reason == "Slurm job 17_0 waits: QOSMaxJobsPerUserLimit"
    assert "its turn comes in Slurm job 17_1" in found.statuses[SPECS[3].run_id].reason
    assert not found.gone
    assert not found.stuck
    says["squeue"] = [job(0, "PENDING", "DependencyNeverSatisfied"), job(1, "PENDING", "JobHeldUser")]
    assert run_states(SPECS, store).stuck


ENDS = {
    "NODE_FAIL": "node_lost",
    "OUT_OF_MEMORY": "oom",
    "CANCELLED": "cancelled",
    "TIMEOUT": "timeout",
    "PREEMPTED": "preempted",
    "FAILED": "error",
}


@pytest.mark.parametrize(("slurms", "ours"), ENDS.items())
def test_a_run_whose_job_has_gone_ends_as_the_job_did(
    store: Store, says: dict[str, list[Job]], slurms: str, ours: str
) -> None:
    record = submitted(store)
    store.begin(SPECS[0])
    failed(SPECS[1], Status("diverged", "inf")).save(store)
    (record.folder / "17_0_0_log.err").write_text("far above\n" * 9 + "srun: error: task 0: Killed\n\n")
    says["squeue"] = [job(0, slurms), job(1, "RUNNING")]
    settle(run_states(SPECS, store), store)
    found = run_states(SPECS, store)
    assert states(found) == [ours, "diverged", "queued", "queued"]
    reason = store.status(SPECS[0].run_id).reason
    assert f"Slurm job 17_0 ended as {slurms}" in reason
    assert "srun: error: task 0: Killed" in reason
    assert f"`bandwise sweep tiny --retry {ours}`" in reason


@pytest.mark.parametrize(
    ("squeue", "sacct", "wanted"),
    [
        (
            [job(0, "RUNNING"), Job("17", NAME, "CANCELLED", "Resources")],
            [],
            ["queued", "queued", "cancelled", "cancelled"],
        ),
        ([job(0, "COMPLETED"), job(1, "COMPLETED")], [], ["missing"] * 4),
        (
            [],
            [job(0, "NODE_FAIL"), job(1, "CANCELLED")],
            ["node_lost", "node_lost", "cancelled", "cancelled"],
        ),
    ],
    ids=["cancelled before they began, as their array", "completed, and open", "forgotten, with accounting"],
)
def test_runs_stand_as_their_members(
    store: Store, says: dict[str, list[Job]], squeue: list[Job], sacct: list[Job], wanted: list[str]
) -> None:
    submitted(store)
    says |= {"squeue": squeue, "sacct": sacct}
    assert states(run_states(SPECS, store)) == wanted


def test_without_accounting_the_log_tells_of_a_gone_job(store: Store, says: dict[str, list[Job]]) -> None:
    log = submitted(store).folder / "17_0_0_log.err"
    for written, ours in {
        "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0.": "oom",
        "": "error",
    }.items():
        log.write_text(written)
        found = run_states(SPECS, store)
        assert states(found) == [ours, ours, "error", "error"]
        assert "has gone and Slurm no longer says how" in found.statuses[SPECS[0].run_id].reason


def test_an_old_failure_does_not_count_in_a_new_try(store: Store, says: dict[str, list[Job]]) -> None:
    submitted(store)
    store.begin(SPECS[0])
    failed(SPECS[0], Status("oom", "too large")).save(store)
    says["squeue"] = [job(0, "OUT_OF_MEMORY", number="17"), job(1, "COMPLETED")]
    assert states(run_states(SPECS[:1] + SPECS, store))[0] == "oom"
    submitted(store, "18", created_s=time.time() + 0.01)
    time.sleep(0.02)
    says["squeue"] += [job(0, "RUNNING", number="18"), job(1, "PENDING", "Resources", "18")]
    assert states(run_states(SPECS, store))[0] == "queued"
    store.begin(SPECS[0])
    failed(SPECS[0], Status("oom", "still too large")).save(store)
    assert states(run_states(SPECS, store))[0] == "oom", "what the new job found counts"


def test_a_silent_run_is_not_sent_again_while_its_job_lives(store: Store, says: dict[str, list[Job]]) -> None:
    """It compiles, say. One that a killed process of another place had left waits for its turn in the job."""
    submitted(store)
    says["squeue"] = [job(0, "RUNNING"), job(1, "RUNNING")]
    for spec, owner in zip(SPECS[:2], ("slurm 17_0", "elsewhere"), strict=True):
        take_lease(store.folder(spec.run_id), owner)
        store.begin(spec, owner)
        os.utime(store.folder(spec.run_id) / "status.json", (1.0, 1.0))
    found = run_states(SPECS, store)
    assert states(found) == ["running", "queued", "queued", "queued"]
    assert found.statuses[SPECS[0].run_id].reason.startswith("Slurm job 17_0 lives; no sign of life for ")


def test_a_run_that_somebody_else_took_since_does_not_end_as_its_old_job(
    store: Store, says: dict[str, list[Job]]
) -> None:
    submitted(store)
    says["squeue"] = [job(0, "CANCELLED"), job(1, "CANCELLED")]
    for spec, owner in zip(SPECS[:2], ("here", "slurm 17_0"), strict=True):
        store.begin(spec, owner)
        store.saved(spec.run_id, 10)
        store.interrupt(spec.run_id, "interrupted")
    assert states(run_states(SPECS, store)) == ["interrupted", "cancelled", "cancelled", "cancelled"]


def test_a_sweep_that_has_gone_keeps_no_other_from_its_ends(
    store: Store, says: dict[str, list[Job]], monkeypatch: Patch
) -> None:
    submitted(store)
    says["squeue"] = [job(0, "FAILED"), job(1, "FAILED")]
    with pytest.raises(UnknownSweepError, match="no sweep 'tiny'"):
        note_ends(store, "tiny")
    Record(store.root / "sweeps" / "a" / "slurm-1", "there", 1.0, {}, {"18": [SPECS[0].run_id]}).save()

    def load(name: str) -> SimpleNamespace:
        return SimpleNamespace(specs=SPECS) if name == "there" else load_sweep(name)

    monkeypatch.setattr("slurm.states.load_sweep", load)
    monkeypatch.setattr("slurm.states.make_plan", lambda sweep: sweep)
    assert note_ends(store).startswith("of tiny, no sweep 'tiny'")
    assert store.status(SPECS[1].run_id).state == "error"


def test_an_end_found_meanwhile_is_not_written_over(store: Store, says: dict[str, list[Job]]) -> None:
    submitted(store)
    says["squeue"] = [job(0, "FAILED"), job(1, "FAILED")]
    found = run_states(SPECS, store)
    failed(SPECS[0], Status("diverged", "inf")).save(store)
    settle(found, store)
    assert [store.status(s.run_id).state for s in SPECS] == ["diverged", "error", "error", "error"]


def test_a_silent_slurm_leaves_everything_as_it_is(store: Store, monkeypatch: Patch) -> None:
    def silent() -> list[Job]:
        raise SlurmError("no answer")

    monkeypatch.setattr(scheduler, "jobs", silent)
    submitted(store)
    found = run_states(SPECS, store)
    assert (found.unanswered, found.gone, states(found)) == ("no answer", {}, ["missing"] * 4)


def test_records_are_read_back_in_order(store: Store) -> None:
    second, first = submitted(store, "18", created_s=2.0), submitted(store)
    assert records(store.root) == [first, second]
    assert records(store.root, "other") == []


@pytest.mark.parametrize("content", ["{}", "[]", "[1]", '{"jobs": {}, "more": 1}'])
def test_what_is_no_record_is_named(content: str, store: Store) -> None:
    (submitted(store).folder / "jobs.json").write_text(content)
    with pytest.raises(StoreError, match=r"jobs\.json is no record of a submission"):
        records(store.root)


KILLED = """
[W1122 09:35:30.32 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3
srun: error: node-1: task 1: Killed
srun: launch/slurm: _step_signal: Terminating StepId=1.0
slurmstepd-node-0: error: *** STEP 1.0 ON node-0 CANCELLED AT 2026-11-22T09:35:34 ***
srun: error: node-0: task 0: Killed
srun: Force Terminated StepId=1.0
"""
GREEDY = """
slurmstepd-node-0: error: StepId=2.0 exceeded memory limit (960495616 > 838860800), being killed
slurmstepd-node-0: error: Exceeded job memory limit
srun: Job step aborted: Waiting up to 4 seconds for job step to finish.
slurmstepd-node-0: error: *** STEP 2.0 ON node-0 CANCELLED AT 2026-11-22T09:35:48 ***
srun: error: node-0: task 0: Killed
"""
CANCELLED = "slurmstepd-node-0: error: *** STEP 3.0 ON node-0 CANCELLED AT 2026-11-22T09:35:48 ***"
LIMIT = (
    "slurmstepd-node-0: error: *** STEP 3.0 ON node-0 CANCELLED AT 2026-11-22T09:35:48 DUE TO TIME LIMIT ***"
)


@pytest.mark.parametrize(
    ("written", "state", "told"),
    [
        (KILLED, "error", "srun: error: node-1: task 1: Killed"),
        (
            GREEDY,
            "oom",
            "slurmstepd-node-0: error: StepId=2.0 exceeded memory limit (960495616 > 838860800), being killed",
        ),
        (CANCELLED, "cancelled", CANCELLED),
        (LIMIT, "timeout", LIMIT),
        (
            f"{LIMIT}\n{BEGUN} 17, turn 2: 1 groups of runs\nTraceback\nKeyError: 'a'\n",
            "error",
            "KeyError: 'a'",
        ),
        ("", "error", ""),
    ],
)
def test_a_log_tells_most_of_the_last_turn(written: str, state: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "17_0_log.err").write_text(written)
    (tmp_path / "170_0_log.err").write_text("of another\n")
    words = last_words(tmp_path, "17")
    assert words == told
    assert next((word for pattern, word in WORDS if pattern.search(words)), "error") == state
