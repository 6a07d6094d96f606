"""Runs that are taken away in the middle, on a real Slurm behind shaped links: every result once, and to the bit."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.devcluster import Cluster, cluster
from slurm.devcluster.config import HIGH_PARTITION
from suite.links.link import Link
from tests.slurm.survival_support import Study, found_by_clients, ranks
from tests.slurm.test_linked_cluster import NODE_LOST_LIMIT_S, require_links
from tests.support import eventually

pytestmark = pytest.mark.slurm

STOPPED_S = 30.0
"""Everything has left the queue so soon after one rank was killed."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """Four nodes of four CPUs at 1 Gbit/s, without accounting."""
    require_links()
    with cluster(Link.parse(4, "1gbit"), cpus_per_node=4, memory_poll_s=1) as made, found_by_clients(made):
        yield made


@pytest.mark.timeout(90)
def test_two_tasks_on_two_nodes_train_what_the_simulation_trains(slurm: Cluster, tmp_path: Path) -> None:
    study = Study(
        tmp_path / "s", "linked", {"a": {}, "b": {"period": 1}}, steps=60, backend="gloo", workload="digits-mlp",
        profile={"tasks_per_node": 1},
    )  # fmt: skip
    study.submit()
    study.finishes(60)
    assert study.attempts() == [1, 1]
    study.equals_undisturbed()


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


@pytest.mark.timeout(120)
def test_a_job_of_the_high_partition_takes_the_node_and_the_run_goes_on_afterwards(
    slurm: Cluster, tmp_path: Path
) -> None:
    whole = {"cpus_per_task": 4, "additional_parameters": {"nodelist": "node-0"}}
    low = Study(tmp_path / "l", "low", {"a": {}}, steps=700, pace_s=0.01, profile=whole)
    high = Study(tmp_path / "h", "high", {"b": {}}, profile={**whole, "partition": HIGH_PARTITION})
    low.submit()
    assert eventually(lambda: low.checkpointed() > 0, 40)
    high.submit()
    high.finishes(40)
    low.finishes(60)
    assert (low.attempts(), high.attempts()) == ([2], [1])
    for study in (low, high):
        study.equals_undisturbed()


@pytest.mark.timeout(150)
def test_one_rank_is_killed_the_other_is_stopped_and_a_retry_goes_on(slurm: Cluster, tmp_path: Path) -> None:
    study = Study(
        tmp_path / "s", "killed", {"a": {}}, steps=600, pace_s=0.02, backend="gloo",
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
    assert f"`bandwise retry {study.sweep} --status error`" in reason
    study.retry("error")
    study.finishes(60)
    assert study.attempts() == [2]
    study.equals_undisturbed()


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
    assert f"`bandwise retry {lost.sweep} --status node_lost`" in reason
    slurm_says = lost.retry("node_lost", "--on", lost.other_site("elsewhere", additional_parameters={}))
    assert len(slurm_says) == 1
    for study in (back, lost):
        study.finishes(60)
        assert study.attempts() == [2]
        study.equals_undisturbed()
    slurm.start_slurmd(node)
    assert eventually(lambda: slurm.states()[node] == "idle", 20)


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
    assert f"`bandwise retry {study.sweep} --status oom`" in reason
    page = study.page()
    assert "exceeded memory limit" in page
    assert "--status oom" in page
    study.retry("oom", "--on", study.other_site("large", mem="3G"))
    study.finishes(40)
    assert sorted(study.attempts()) == [1, 2]
    study.equals_undisturbed()
