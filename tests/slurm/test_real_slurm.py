"""A tiny sweep on a real Slurm: the same bits as here, arrays within the limit, failures kept, others done."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm import scheduler
from slurm.profile import Profile
from slurm.scheduler import SlurmError, max_array_size
from slurm.states import records, run_states, wait
from slurm.submit import submit_runs
from suite.runs.plan import make_plan, statuses
from suite.runs.store import Store
from suite.runs.sweep import load_sweep
from suite.training.execute import execute
from tests.slurm.devcluster import Cluster
from tests.slurm.specs import answer, broken, tiny
from tests.suite.runs.project import kept
from tests.support import eventually

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]

PROFILE = Profile(name="test", timeout_min=5, mem="1G", array_parallelism=4, pack_s=0)
RUNS = [tiny(0), broken(1), tiny(2), tiny(0, "local-sgd"), tiny(1, steps=6)]

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


def test_a_sweep_above_the_limit_is_several_arrays_and_its_results_are_those_of_this_machine_to_the_bit(
    dev_cluster: Cluster, tmp_path: Path
) -> None:
    """And the run that fails ends alone."""
    store, local, live = Store(tmp_path / "results"), Store(tmp_path / "local"), []
    sent = submit_runs(RUNS, PROFILE, store.root, sweep="tiny")
    wait(RUNS, store, lambda found: live.append(len(found.jobs)))
    assert live[0] > 0, "jobs were in the queue when the call returned"
    assert live[-1] == 0
    assert max_array_size() == 2 < sent.members
    assert len(set(sent.jobs)) == len(sent.scripts) == -(-sent.members // 2)
    assert sent.folder is not None
    for job, script in zip(sent.jobs, sent.scripts, strict=True):
        assert (sent.folder / f"{job}_submission.sh").read_text() == script, "that of a dry run"
    assert store.run_ids() == sorted(spec.run_id for spec in RUNS)
    assert [store.status(spec.run_id).state for spec in RUNS] == ["done", "error", "done", "done", "done"]
    assert "no_such_option" in store.status(broken(1).run_id).reason
    for spec in RUNS:
        list(execute([spec], local))
        assert kept(store, spec.run_id) == kept(local, spec.run_id)


def test_two_sweeps_at_once_do_the_runs_they_share_once(dev_cluster: Cluster, tmp_path: Path) -> None:
    shared, store = [tiny(10), tiny(11)], Store(tmp_path / "r")
    first = submit_runs(shared, PROFILE, store.root, sweep="one")
    second = submit_runs([*shared, tiny(12)], PROFILE, store.root, sweep="two")
    assert (first.runs, second.runs) == (2, 1), "what waits in a job of the other sweep is left to it"
    (record,) = records(store.root, "one")
    (record.folder / "jobs.json").unlink()  # as a submitter leaves it that was killed before it could write
    third = submit_runs(shared, PROFILE, store.root, sweep="one")
    assert third.runs == 2
    specs = [*shared, tiny(12)]
    assert eventually(lambda: all(job.ended for job in scheduler.jobs()), 120)
    assert {status.state for status in run_states(specs, store).statuses.values()} == {"done"}
    assert [note.attempt for spec in specs if (note := store.note(spec.run_id))] == [1, 1, 1]


def test_the_verbs_follow_and_retry_a_sweep(dev_cluster: Cluster, tmp_path: Path) -> None:
    sweep, profile, root = tmp_path / "long.yaml", tmp_path / "site.yaml", tmp_path / "results"
    sweep.write_text(SWEEP.replace("steps: 4", "steps: 10000000"), encoding="utf-8")
    profile.write_text("{timeout_min: 5, pack_s: 0, array_parallelism: 15, mem: 800M}\n", encoding="utf-8")

    def says(verb: str, *options: str) -> dict[str, Any]:
        return answer(verb, str(sweep), *options, "--results", str(root))

    says("sweep", "--on", str(profile))
    assert eventually(lambda: says("status")["states"].get("running") == 2, 60)
    assert says("status")["jobs"] == 2
    subprocess.run(["scancel", "--me", "--name=bandwise-long"], check=True)
    assert eventually(lambda: all(job.ended for job in scheduler.jobs()), 60)
    seen = says("status")
    assert seen["states"] == {"cancelled": 2}
    assert all("ended as CANCELLED" in row["reason"] for row in seen["not_done"])
    assert says("sweep", "--retry", "oom,node_lost")["jobs"] == []
    assert says("sweep", "--retry", "cancelled")["runs"] == 2
    assert records(root)[-1].profile["name"] == "site", "as it was submitted"
    assert set(says("status")["states"]) <= {"queued", "running"}
    subprocess.run(["scancel", "--me", "--name=bandwise-long"], check=True)
    assert eventually(lambda: all(job.ended for job in scheduler.jobs()), 60)


def test_the_verb_submits_what_is_missing(dev_cluster: Cluster, tmp_path: Path) -> None:
    sweep, profile, root = tmp_path / "small.yaml", tmp_path / "site.yaml", tmp_path / "results"
    sweep.write_text(SWEEP, encoding="utf-8")
    profile.write_text("timeout_min: 5\n", encoding="utf-8")

    def submit(*options: str) -> dict[str, Any]:
        return answer("sweep", str(sweep), "--on", f"slurm:{profile}", "--results", str(root), *options)

    plan, store = make_plan(load_sweep(str(sweep))), Store(root)
    done, missing = plan.specs
    list(execute([done], store))
    assert submit("--wait")["states"] == {"done": 2}
    assert {status.state for status in statuses(plan, store).values()} == {"done"}
    (record,) = records(root)
    assert list(record.jobs.values()) == [[missing.run_id]]
    assert submit()["jobs"] == [], "all is done, so nothing is sent"


def test_what_slurm_refuses_is_reported_with_its_reason(dev_cluster: Cluster, tmp_path: Path) -> None:
    profile = Profile(name="nowhere", timeout_min=5, additional_parameters={"nodelits": "node-0"})
    with pytest.raises(SlurmError, match=r"(?s)profile 'nowhere'.*unrecognized option.*nodelits"):
        submit_runs([tiny(0)], profile, tmp_path, sweep="tiny")
    assert records(tmp_path) == []
    assert run_states([tiny(0)], Store(tmp_path)).statuses[tiny(0).run_id].state == "missing"
