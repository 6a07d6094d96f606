"""Slot efficiency: its arithmetic, Slurm's times, and what it is for long runs alone and short ones packed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from bandwise.cli import main
from slurm.jobs import of_jobs, slot_efficiency
from slurm.profile import Profile
from slurm.records import ArrayJob, Record
from slurm.scheduler import Job, seconds
from slurm.submit import submit_members, wait
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.training.train import train_group
from tests.slurm.devcluster import Cluster
from tests.slurm.specs import tiny
from tests.suite.runs.project import ended

PROFILE = Profile(name="test", timeout_min=10, mem="500M", array_parallelism=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0:00", 0), ("1:05", 65), ("2:00:01", 7201), ("1-00:00:02", 86_402), ("INVALID", 0), ("", 0)],
)
def test_slurms_times(text: str, expected: int) -> None:
    assert seconds(text) == expected


def ran(store: Store, spec: RunSpec, owner: str, train_s: float, times: int = 1) -> None:
    """A run that its owner began so often and finished after training so long."""
    for _ in range(times):
        store.begin(spec, owner)
    outcome = ended(spec)
    store.finish(spec.run_id, outcome.status, {**outcome.result, "train_s": train_s}, outcome.metrics)


def test_its_arithmetic(tmp_path: Path) -> None:
    store, runs = Store(tmp_path), [tiny(seed) for seed in range(8)]
    arrays = (ArrayJob(0, 5, 1, "a", "17"), ArrayJob(5, 1, 4, "b", "18"), ArrayJob(6, 1, 1, "c", ""))
    members = [
        [[runs[0].run_id, runs[1].run_id]],
        *([[spec.run_id]] for spec in runs[2:6]),
        [[runs[6].run_id]],
        [[runs[7].run_id]],
    ]
    record = Record(
        tmp_path / "submission-1.json", {"members": members, "before": {runs[4].run_id: 3}}, arrays
    )
    ran(store, runs[0], "slurm 17_0", 30.0)
    ran(store, runs[1], "slurm 17_0", 50.0)
    ran(store, runs[2], "somebody else", 99.0)  # the job found it taken, and trained nothing
    ran(store, runs[3], "slurm 17_2", 99.0, times=2)  # started again
    ran(store, runs[4], "slurm 17_3", 5.0, times=4)  # three of them before this submission
    ran(store, runs[6], "slurm 18", 9.0)
    jobs = [
        Job("17_0", "a", "COMPLETED", "None", 100),
        Job("17_1", "a", "COMPLETED", "None", 10),
        Job("17_2", "a", "COMPLETED", "None", 50),
        Job("17_3", "a", "FAILED", "None", 10),
        Job("17_4", "a", "RUNNING", "None", 70),
        Job("18", "b", "COMPLETED", "None", 10),
    ]
    found = of_jobs([record], jobs, store)
    assert (found.training_s, found.allocated_s) == (30 + 50 + 5 + 4 * 9, 100 + 10 + 10 + 4 * 10)
    assert (found.jobs, found.left_out) == (4, 2)
    assert found.share == pytest.approx(121 / 160)
    assert str(found) == "slot efficiency 75.6%: 121 s of training in 160 s of 4 jobs; 2 jobs left out"
    assert of_jobs([record], [], store).share is None


SWEEP = """
workloads: [quadratic]
world_size: 2
steps: 4
batch_size: 4
seeds: 2
lr: {schedule: constant}
arms:
  sgd: {algorithm: allreduce-sgd, lr: 0.01}
"""


@pytest.mark.slurm
@pytest.mark.timeout(120)
def test_status_tells_it_of_a_sweep(
    two_nodes: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, profile = tmp_path / "small.yaml", tmp_path / "site.yaml"
    sweep.write_text(SWEEP, encoding="utf-8")
    profile.write_text("{timeout_min: 5, mem: 500M}\n", encoding="utf-8")
    where = ["--results", str(tmp_path / "r"), "--json"]
    assert main(["sweep", str(sweep), "--on", str(profile), "--wait", *where]) == 0
    capsys.readouterr()
    assert main(["status", str(sweep), "--efficiency", *where]) == 0
    told = json.loads(capsys.readouterr().out)["slot_efficiency"]
    assert told["jobs"] == 1
    assert 0 < told["training_s"] < told["allocated_s"]
    assert main(["watch", str(sweep), "--once", *where]) == 0
    assert json.loads(capsys.readouterr().out)["slot_efficiency"] == told


def lasting(wanted_s: float, count: int) -> list[RunSpec]:
    """Runs that each take about so many seconds of a core, so that what else runs here does not shorten them."""
    trial = tiny(0, steps=4000)
    list(train_group([tiny(1, steps=50)]))  # what is compiled at first does not count
    started = time.process_time()
    list(train_group([trial]))
    steps = round(trial.steps * wanted_s / (time.process_time() - started))
    return [tiny(seed, steps=steps) for seed in range(count)]


@pytest.mark.full
@pytest.mark.slurm
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("run_s", "runs", "a_member", "least"),
    [(30.0, 2, 1, 0.90), (10.0, 24, 12, 0.95)],
    ids=["fresh", "packed"],
)
def test_slots_are_used(
    two_nodes: Cluster, tmp_path: Path, run_s: float, runs: int, a_member: int, least: float
) -> None:
    """Runs of 30 s in a process each, and of 10 s packed a dozen to a process; two slots."""
    store, specs = Store(tmp_path), lasting(run_s, runs)
    members = [[[spec] for spec in specs[i : i + a_member]] for i in range(0, runs, a_member)]
    submission = submit_members(members, PROFILE, store.root, sweep="lasting")
    wait(submission.job_ids, poll_s=1.0)
    found = slot_efficiency("lasting", store)
    sys.stdout.write(f"\n{run_s:g} s runs, {a_member} to a process: {found}\n")
    assert found is not None
    assert found.jobs == len(members)
    assert found.share is not None
    assert found.share >= least
