"""Runs that are taken away in the middle, on a real Slurm behind shaped links: every result once, and to the bit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.scheduler import without_slurm
from suite.links.link import Link
from tests.slurm.devcluster import Cluster, cluster
from tests.slurm.devcluster.cluster import free_ports
from tests.slurm.devcluster.config import HIGH_PARTITION
from tests.slurm.survival_support import (
    Study,
    fill,
    found_by_clients,
    lasting,
    ranks,
    small_disk,
    taken_and_given_back,
)
from tests.slurm.test_linked_cluster import NODE_LOST_LIMIT_S, require_links
from tests.support import eventually

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).resolve().parents[2]
STOPPED_S = 30.0
"""Everything has left the queue so soon after one rank was killed."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """Four nodes of four CPUs at 1 Gbit/s, without accounting."""
    require_links()
    with cluster(Link.parse(4, "1gbit"), cpus_per_node=4, memory_poll_s=1) as made, found_by_clients(made):
        yield made


@pytest.mark.full  # Slurm's time limits are whole minutes
@pytest.mark.timeout(240)
def test_a_real_time_limit_is_survived_as_often_as_it_comes(slurm: Cluster, tmp_path: Path) -> None:
    """A minute at most, of which the last seconds are the warning's; nobody but Slurm sends it."""
    limited = {"timeout_min": 1, "checkpoint_s": 60}
    alone = Study(tmp_path / "a", "alone", {"a": {}}, steps=1300, pace_s=0.02, profile=limited)
    ranks = Study(
        tmp_path / "r", "ranks", {"a": {}}, steps=1300, pace_s=0.04, backend="gloo",
        profile={**limited, "tasks_per_node": 1},
    )  # fmt: skip
    for study in (alone, ranks):
        study.submit()
    for study in (alone, ranks):
        study.finishes(200)
        assert 2 <= study.attempts()[0] <= 4
        study.equals_undisturbed()


@pytest.mark.full  # a preempted job is held back, and the survival test has a requeue
@pytest.mark.timeout(120)
def test_a_job_of_the_high_partition_takes_the_node_and_the_run_goes_on_afterwards(
    slurm: Cluster, tmp_path: Path
) -> None:
    taken_and_given_back(tmp_path, {"partition": HIGH_PARTITION})


@pytest.mark.timeout(150)
def test_one_rank_is_killed_the_other_is_stopped_and_a_retry_goes_on(slurm: Cluster, tmp_path: Path) -> None:
    """Two tasks on two nodes; in the end they have trained what the simulation trains."""
    study = Study(
        tmp_path / "s", "killed", {"a": {}}, steps=150, pace_s=0.04, backend="gloo", workload="digits-mlp",
        profile={"tasks_per_node": 1},
    )  # fmt: skip
    study.submit()
    assert eventually(lambda: study.checkpointed() > 0, 40)
    found = ranks(slurm)
    (victim,) = (process for (_, rank), process in found.items() if rank == 1)
    victim.signal(signal.SIGKILL)
    study.drained(STOPPED_S)
    assert not [process for process in found.values() if process.alive()]
    (state, reason) = study.failures()["a 0"]
    assert state == "error"
    assert re.search("task 1: Killed", reason), (reason, study.logs())
    assert f"`bandwise sweep {study.sweep} --retry error`" in reason
    study.retry("error")
    study.finishes(60)
    assert study.attempts() == [2]
    study.equals_undisturbed()


@pytest.mark.full  # Slurm's word on a node that may not be requeued; the survival test loses a node too
@pytest.mark.timeout(180)
def test_a_node_is_lost_and_its_runs_go_on_elsewhere(slurm: Cluster, tmp_path: Path) -> None:
    """All that runs there is killed at once. What may be requeued comes back by itself, the rest when it is retried."""
    back = Study(tmp_path / "b", "back", {"a": {}}, steps=600, pace_s=0.02)
    back.submit()
    assert eventually(lambda: back.checkpointed() > 0, 40)
    ((node, _),) = ranks(slurm)
    lost = Study(
        tmp_path / "l", "lost", {"b": {}}, steps=600, pace_s=0.02,
        profile={"max_requeues": 0, "additional_parameters": {"nodelist": node}},
    )  # fmt: skip
    lost.submit()
    assert eventually(lambda: lost.checkpointed() > 0, 40)
    slurm.kill_node(node)
    lost.drained(NODE_LOST_LIMIT_S)
    (state, reason) = lost.failures()["b 0"]
    assert state == "node_lost", (reason, lost.logs())
    assert "NODE_FAIL" in reason
    assert f"`bandwise sweep {lost.sweep} --retry node_lost`" in reason
    slurm_says = lost.retry("node_lost", "--on", lost.other_site("elsewhere", additional_parameters={}))
    assert len(slurm_says) == 1
    for study in (back, lost):
        study.finishes(60)
        assert study.attempts() == [2]
        study.equals_undisturbed()


@pytest.mark.full  # two trainings of which one is killed by Slurm's slow look at memory
@pytest.mark.timeout(120)
def test_a_run_out_of_memory_is_told_from_the_others(slurm: Cluster, tmp_path: Path) -> None:
    study = Study(
        tmp_path / "s", "greedy", {"modest": {}, "greedy": {"greed_mib": 700}}, steps=300, pace_s=0.01
    )
    study.submit()
    study.drained(60)
    assert study.states() == {"done": 1, "oom": 1}
    (reason,) = (reason for state, reason in study.failures().values())
    assert "exceeded memory limit" in reason
    assert f"`bandwise sweep {study.sweep} --retry oom`" in reason
    study.retry("oom", "--on", study.other_site("large", mem="3G"))
    study.finishes(40)
    assert sorted(study.attempts()) == [1, 2]
    study.equals_undisturbed()


@pytest.mark.full  # three trainings, of which two are done twice
@pytest.mark.timeout(150)
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_is_named_and_the_same_command_goes_on(slurm: Cluster, tmp_path: Path) -> None:
    """The first run has ended when the disk fills up; the second meets the full disk, the third never begins."""
    with small_disk(tmp_path / "disk", "24M") as disk:
        study = Study(
            tmp_path / "s", "full", {"a": {}, "b": {"period": 2}, "c": {"period": 1}}, steps=300, pace_s=0.01,
            profile={"pack_s": 200}, results=disk / "results",
        )  # fmt: skip
        study.submit()
        assert eventually(lambda: study.states().get("done") == 1, 60)
        kept = {spec.run_id: lasting(study.store, spec) for spec in study.specs if study.done(spec)}
        ballast = fill(disk)
        study.drained(60)
        failures = study.failures()
        assert {state for state, _ in failures.values()} == {"error"}
        assert any("no space left" in reason for _, reason in failures.values()), failures
        assert {
            run_id: lasting(study.store, spec) for spec in study.specs if (run_id := spec.run_id) in kept
        } == kept
        ballast.unlink()
        study.submit()
        study.finishes(60)
        assert all(attempts <= 2 for attempts in study.attempts())
        study.equals_undisturbed()


@pytest.mark.full  # torchrun and its agents start six processes with torch
@pytest.mark.timeout(120)
def test_two_tasks_under_torchrun_without_slurm_and_in_the_local_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two agents on loopback, a rank each; the same run in the pool, whose ranks are children of a worker."""
    monkeypatch.setenv("BANDWISE_COMPILE", "0")
    study = Study(tmp_path / "s", "torchrun", {"a": {}}, steps=60, backend="gloo", workload="digits-mlp")
    pool = Study(tmp_path / "p", "pool", {"a": {}}, steps=60, backend="gloo", workload="digits-mlp")
    (spec,) = study.specs
    study.store.put_spec(spec)
    (port,) = free_ports(1)
    agents = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"),
                *(f"--node-rank={node}", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-backend=c10d"),
                *("--rdzv-id=test", f"--log-dir={tmp_path / 'logs'}", "-m", "bandwise.cli", "run", spec.run_id),
                *("--results", str(study.store.root)),
            ],
            cwd=ROOT,
            env=without_slurm(os.environ)
            | {"BANDWISE_COMPILE": "0", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(study.folder / "plugin")},
        )
        for node in range(2)
    ]  # fmt: skip
    assert [agent.wait(90) for agent in agents] == [0, 0]
    study.equals_undisturbed()
    monkeypatch.syspath_prepend(str(pool.folder / "plugin"))
    assert pool.verb("sweep")["states"] == {"done": 1}
    pool.equals_undisturbed()
    assert (study.attempts(), pool.attempts()) == ([1], [1])
