"""A tiny sweep on a real Slurm: the same bits as here, arrays within the limit, failures kept, others done."""

from __future__ import annotations

import json
import pickletools
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from slurm.devcluster import Cluster
from slurm.profile import Profile
from slurm.scheduler import SlurmError, max_array_size, unfinished
from slurm.submit import Submission, submit_groups, wait
from suite.runs.execute import execute
from suite.runs.plan import make_plan, statuses
from suite.runs.store import Store
from suite.runs.sweep import load_sweep
from tests.slurm.specs import broken, tiny

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]

PROFILE = Profile("test", timeout_min=5, mem="1G", array_parallelism=4)
GROUPS = [[tiny(0), broken(1), tiny(2)], [tiny(0, "local-sgd")], [tiny(1, steps=6)]]
RUNS = [spec for group in GROUPS for spec in group]

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


@dataclass(frozen=True)
class Swept:
    """A sweep that was submitted and waited for, and how long the submission took."""

    submission: Submission
    store: Store
    submit_s: float
    left: list[int]


@pytest.fixture(scope="module")
def swept(dev_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Swept:
    root = tmp_path_factory.mktemp("results")
    started = time.monotonic()
    submission = submit_groups(GROUPS, PROFILE, root, sweep="tiny", command="bandwise sweep tiny --on slurm")
    submit_s = time.monotonic() - started
    left: list[int] = []
    wait(submission.job_ids, left.append, poll_s=0.5)
    return Swept(submission, Store(root), submit_s, left)


def test_results_are_those_of_this_machine_to_the_bit(swept: Swept, tmp_path: Path) -> None:
    local = Store(tmp_path)
    for group in GROUPS:
        for _ in execute(group, local):
            pass
    assert swept.store.run_ids() == sorted(spec.run_id for spec in RUNS)
    for spec in RUNS:
        there, here = swept.store.result(spec.run_id), local.result(spec.run_id)
        assert there is not None
        assert here is not None
        assert without_time(there) == without_time(here)
        assert swept.store.metrics(spec.run_id) == local.metrics(spec.run_id)


def without_time(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what differs from one process to the next."""
    return {key: value for key, value in result.items() if key not in {"train_s", "provenance"}}


def test_one_failure_ends_alone(swept: Swept) -> None:
    states = {spec.run_id: swept.store.status(spec.run_id) for spec in RUNS}
    failed = broken(1).run_id
    assert states.pop(failed).state == "error"
    assert "no_such_option" in swept.store.status(failed).reason
    assert {status.state for status in states.values()} == {"done"}


def test_a_sweep_above_the_limit_becomes_several_arrays(swept: Swept) -> None:
    assert max_array_size() == 2 < len(GROUPS)
    assert [(job.first, job.members) for job in swept.submission.jobs] == [(0, 2), (2, 1)]
    assert len(set(swept.submission.job_ids)) == 2


def test_submission_returns_long_before_the_runs_end(swept: Swept) -> None:
    assert swept.submit_s < 5
    assert swept.left[0] == 2, "both arrays were still in the queue when the call returned"
    assert swept.left[-1] == 0
    assert not unfinished(swept.submission.job_ids)


def test_the_record_says_what_was_submitted(swept: Swept) -> None:
    record = json.loads(swept.submission.record.read_text())
    assert swept.submission.record == swept.store.root / "sweeps" / "tiny" / "submission-1.json"
    assert record["command"] == "bandwise sweep tiny --on slurm"
    assert record["groups"] == [[spec.run_id for spec in group] for group in GROUPS]
    assert tuple(job["job_id"] for job in record["jobs"]) == swept.submission.job_ids
    assert record["profile"]["timeout_min"] == 5


def test_the_script_of_a_dry_run_is_the_one_that_was_sent(swept: Swept) -> None:
    logs = swept.submission.record.with_name("slurm-1")
    for job_id, script in zip(swept.submission.job_ids, swept.submission.scripts, strict=True):
        assert (logs / f"{job_id}_submission.sh").read_text() == script


def test_only_plain_data_crosses_to_the_node(swept: Swept) -> None:
    pickles = sorted(swept.submission.record.with_name("slurm-1").glob("*_submitted.pkl"))
    assert len(pickles) == len(GROUPS)
    for path in pickles:
        operations = list(pickletools.genops(path.read_bytes()))
        text = [str(value) for op, value, _ in operations if "UNICODE" in op.name]
        modules = {
            word
            for word in text
            if word.startswith(("slurm.", "suite.", "reference_impls", "torch", "numpy"))
        }
        assert modules == {"slurm.member"}


def test_the_command_line_submits_what_is_missing(
    dev_cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sweep, profile, root = tmp_path / "small.yaml", tmp_path / "site.yaml", tmp_path / "results"
    sweep.write_text(SWEEP, encoding="utf-8")
    profile.write_text("timeout_min: 5\n", encoding="utf-8")
    command = ["sweep", str(sweep), "--on", f"slurm:{profile}", "--results", str(root), "--json"]
    monkeypatch.setattr(sys, "argv", ["bandwise", *command])

    def submit(*options: str) -> dict[str, Any]:
        assert main([*command, *options]) == 0
        return dict(json.loads(capsys.readouterr().out))

    plan, store = make_plan(load_sweep(str(sweep))), Store(root)
    done, missing = plan.specs
    for _ in execute([done], store):
        pass
    sent = submit("--wait")
    assert sent["states"] == {"done": 2}
    assert {status.state for status in statuses(plan, store).values()} == {"done"}
    record = json.loads(Path(sent["record"]).read_text())
    assert record["groups"] == [[missing.run_id]]
    assert record["command"] == shlex.join(["bandwise", *command])
    assert submit()["jobs"] == [], "all is done, so nothing is sent"


def test_a_warned_member_notes_its_runs(dev_cluster: Cluster, tmp_path: Path) -> None:
    endless = tiny(3, steps=10_000_000)
    submission = submit_groups([[endless]], PROFILE, tmp_path, sweep="endless")
    store = Store(tmp_path)
    assert eventually(lambda: store.status(endless.run_id).state == "running")
    slurm_client("scancel", "--signal=USR2", *submission.job_ids)
    wait(submission.job_ids, poll_s=0.2)
    assert store.status(endless.run_id).state == "preempted"
    assert submission.job_ids[0] in store.status(endless.run_id).reason


def test_what_slurm_refuses_is_reported_with_its_reason(dev_cluster: Cluster, tmp_path: Path) -> None:
    profile = Profile("nowhere", timeout_min=5, partition="no-such-partition")
    with pytest.raises(SlurmError, match=r"profile 'nowhere'.*(?s:.*)[Ii]nvalid partition"):
        submit_groups([[tiny(0)]], profile, tmp_path, sweep="tiny")
    assert not list(tmp_path.glob("sweeps/tiny/submission-*.json"))


def eventually(condition: Callable[[], bool], timeout_s: float = 60.0) -> bool:
    """Whether the condition comes true within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def slurm_client(*command: str) -> None:
    """Run one of Slurm's commands against the cluster of the environment."""
    subprocess.run(command, check=True, timeout=60)
