"""Runs that are taken away in the middle, on a real Slurm behind shaped links: every result once, and to the bit."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.scheduler import without_slurm
from slurm.states import records
from suite.links.link import Link
from tests.slurm.devcluster import Cluster, cluster
from tests.slurm.devcluster.cluster import free_ports
from tests.slurm.survival_support import (
    Study,
    fill,
    found_by_clients,
    lasting,
    ranks,
    small_disk,
)
from tests.slurm.test_linked_cluster import NODE_LOST_LIMIT_S, require_links
from tests.suite.links.tour import Process
from tests.support import ROOT, eventually

pytestmark = pytest.mark.slurm

STOPPED_S = 30.0
"""Everything has left the queue so soon after one rank was killed."""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """Four nodes of four CPUs at 1 Gbit/s, without accounting; an array has at most two members."""
    require_links()
    settings = {"cpus_per_node": 4, "max_array_size": 2}
    with cluster(Link.parse(4, "1gbit"), **settings) as made, found_by_clients(made):
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


def holding(slurm: Cluster, study: Study) -> tuple[str, Process] | None:
    """A node and the process of a task there which is at a run."""
    notes = [study.store.note(spec.run_id) for spec in study.specs]
    owners = {note.owner for note in notes if note and note.state == "running"}
    for (node, _), process in ranks(slurm).items():
        try:
            text = Path(f"/proc/{process.pid}/environ").read_bytes().decode()
        except OSError:
            continue
        own = dict(word.partition("=")[::2] for word in text.split("\0"))
        if f"slurm {own.get('SLURM_ARRAY_JOB_ID')}_{own.get('SLURM_ARRAY_TASK_ID')}" in owners:
            return node, process
    return None


ARMS: dict[str, dict[str, int]] = {"a": {}, "b": {"period": 1}, "c": {"period": 2}, "d": {"period": 4}}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arms", "seeds", "steps"),
    [
        pytest.param(2, 4, 150, id="8"),
        pytest.param(4, 10, 100, id="40", marks=pytest.mark.full),  # the acceptance test of sweeps: minutes
    ],
)
def test_a_sweep_survives_a_killed_submitter_a_killed_task_and_a_lost_node(
    slurm: Cluster, tmp_path: Path, arms: int, seeds: int, steps: int
) -> None:
    """The last test of this cluster, of which it takes a node away."""
    study = Study(
        tmp_path / "s", "forty", dict(itertools.islice(ARMS.items(), arms)), steps=steps,
        seeds=seeds, pace_s=0.04, profile={"array_parallelism": 12, "timeout_min": 5},
    )  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{study.folder / 'plugin'}:{ROOT}"}
    command = [sys.executable, "-m", "bandwise", "sweep", str(study.sweep), "--on", study.site]
    submitter = subprocess.Popen([*command, "--results", str(study.store.root)], env=environment, cwd=ROOT)
    assert eventually(lambda: bool(records(study.store.root)), 90)
    submitter.kill()
    submitter.wait()
    (first,) = records(study.store.root)
    held = sum(map(len, first.jobs.values()))
    assert 0 < held < len(study.specs), "the submitter was killed half-way"
    sent = study.verb("sweep", "--on", study.site)
    assert sent["runs"] == len(study.specs) - held, "what was lost with the submitter, and nothing besides"
    assert study.verb("sweep", "--on", study.site)["runs"] == 0, "all that is missing waits or runs"

    assert eventually(lambda: bool(study.states().get("done")), 120)
    kept = {spec.run_id: lasting(study.store, spec) for spec in study.specs if study.done(spec)}
    assert eventually(lambda: holding(slurm, study) is not None, 120)
    found_task = holding(slurm, study)
    assert found_task is not None
    task_node, task = found_task
    task.signal(signal.SIGKILL)
    assert eventually(lambda: any(node != task_node for node, _ in ranks(slurm)), 60)
    slurm.kill_node(next(node for node, _ in ranks(slurm) if node != task_node))
    study.drained(420 + NODE_LOST_LIMIT_S)
    assert study.states().get("error", 0) > 0, "those of the killed task"
    study.verb("sweep", "--on", study.site)
    study.finishes(180)
    again = {spec.run_id: lasting(study.store, spec) for spec in study.specs if spec.run_id in kept}
    assert again == kept
    study.equals_undisturbed()
