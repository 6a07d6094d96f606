"""A tiny sweep on a real Slurm: the same bits as here, arrays within the limit, failures kept, others done."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bandwise.cli import main
from slurm.jobs import run_states
from slurm.profile import Profile, ProfileError
from slurm.records import records
from slurm.scheduler import SlurmError, max_array_size, sbatch_options, unfinished
from slurm.submit import Submission, submit_members, wait
from suite.runs.plan import make_plan, statuses
from suite.runs.store import Store
from suite.runs.sweep import load_sweep
from suite.training.execute import execute
from tests.slurm.devcluster import Cluster
from tests.slurm.specs import broken, tiny

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]

PROFILE = Profile(name="test", timeout_min=5, mem="1G", array_parallelism=4)
MEMBERS = [[[tiny(0), broken(1), tiny(2)]], [[tiny(0, "local-sgd")], [tiny(3)]], [[tiny(1, steps=6)]]]
RUNS = [spec for member in MEMBERS for group in member for spec in group]

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
    submission = submit_members(
        MEMBERS, PROFILE, root, sweep="tiny", command="bandwise sweep tiny --on slurm"
    )
    submit_s = time.monotonic() - started
    left: list[int] = []
    wait(submission.job_ids, left.append, poll_s=0.5)
    return Swept(submission, Store(root), submit_s, left)


def test_results_are_those_of_this_machine_to_the_bit(swept: Swept, tmp_path: Path) -> None:
    local = Store(tmp_path)
    for member in MEMBERS:
        for group in member:
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
    assert max_array_size() == 2 < len(MEMBERS)
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
    assert record["members"] == [[[s.run_id for s in group] for group in member] for member in MEMBERS]
    assert tuple(array["job_id"] for array in record["arrays"]) == swept.submission.job_ids
    assert record["profile"]["timeout_min"] == 5
    code = Path(record["code"]["path"])
    assert code.parent == swept.store.root / "code"
    assert (code / "slurm" / "member.py").is_file()
    assert "torch==" in Path(record["environment"]).read_text()
    for spec in RUNS:
        assert swept.store.result(spec.run_id)["provenance"]["commit"] == record["code"]["commit"]


def test_the_script_of_a_dry_run_is_the_one_that_was_sent(swept: Swept) -> None:
    logs = swept.submission.record.with_name("slurm-1")
    for k, script in enumerate(swept.submission.scripts):
        assert (logs / f"array-{k}.sh").read_text() == script


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
    assert record["members"] == [[[missing.run_id]]]
    assert record["command"] == shlex.join(["bandwise", *command])
    assert submit()["jobs"] == [], "all is done, so nothing is sent"


def test_what_slurm_refuses_is_reported_with_its_reason(dev_cluster: Cluster, tmp_path: Path) -> None:
    profile = Profile(name="nowhere", timeout_min=5, partition="no-such-partition")
    with pytest.raises(SlurmError, match=r"profile 'nowhere'.*(?s:.*)[Ii]nvalid partition"):
        submit_members([[[tiny(0)]]], profile, tmp_path, sweep="tiny")
    (record,) = records(tmp_path)
    assert "nvalid partition" in record.arrays[0].refused
    assert run_states([tiny(0)], Store(tmp_path)).statuses[tiny(0).run_id].state == "missing"


def test_an_option_that_sbatch_has_not_is_refused_before_anything_is_sent(
    dev_cluster: Cluster, tmp_path: Path
) -> None:
    profile = Profile(name="site", timeout_min=5, additional_parameters={"exclud": "node-0"})
    with pytest.raises(ProfileError, match="sbatch has no option 'exclud'; did you mean 'exclude'"):
        submit_members([[[tiny(0)]]], profile, tmp_path, sweep="tiny")
    assert not any(tmp_path.iterdir())
    assert {"exclude", "nice", "reservation", "exclusive"} <= sbatch_options()
