"""Runs that are taken away in the middle, on a real Slurm behind shaped links: every result once, and to the bit."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from slurm import scheduler
from slurm.states import records
from suite.links.link import Link
from suite.runs.plan import make_plan
from suite.runs.spec import RunSpec
from suite.runs.store import Store
from suite.runs.sweep import load_sweep
from suite.training.execute import execute
from tests.processes import Process
from tests.slurm.devcluster import SLURMD_TIMEOUT_S, Cluster, cluster
from tests.slurm.paced import GO, HOLD, NAME, PACE_S, install
from tests.slurm.specs import answer, found_by_clients
from tests.suite.runs.project import kept
from tests.support import ROOT, eventually

pytestmark = pytest.mark.slurm

STOPPED_S = 30.0
"""Everything has left the queue so soon after one rank was killed."""


SWEEP = """
workloads: [{workload}]
world_size: 2
steps: {steps}
batch_size: 4
seeds: {seeds}
lr: {{schedule: cosine, warmup: 2, min_ratio: 0.1}}
backend: {backend}
arms:
{arms}
"""
NODE_LOST_LIMIT_S = 3 * SLURMD_TIMEOUT_S
"""Seen: 12 to 16 s on a quiet machine, 21 s where each core had four programs to run."""
IDENTITY = frozenset({"run_id", "spec"})
"""What of a result tells apart a run on real processes and the simulated one."""
PROFILE = {"timeout_min": 5, "mem": "800M", "pack_s": 0, "checkpoint_s": 1, "interface": "eth0"}


@dataclass
class Study:
    """A sweep file, a profile and a results folder of its own below `folder`.

    arms: label -> options of the method. pace_s: rest of a worker before each step. profile: keys besides `PROFILE`.
    """

    folder: Path
    name: str
    arms: dict[str, dict[str, Any]]
    steps: int = 400
    seeds: int = 1
    pace_s: float = 0.0
    backend: str = "simulated"
    workload: str = "quadratic"
    profile: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        path = install(self.folder / "plugin")
        self.store = Store(self.folder / "results")
        lines = [
            f"  {label}: {{algorithm: {NAME}, lr: 0.01, options: {json.dumps(options)}}}"
            for label, options in self.arms.items()
        ]
        self.sweep = self.folder / f"{self.name}.yaml"
        self.sweep.write_text(
            SWEEP.format(
                workload=self.workload, steps=self.steps, seeds=self.seeds, backend=self.backend,
                arms="\n".join(lines),
            ),
            encoding="utf-8",
        )  # fmt: skip
        environment = {"BANDWISE_COMPILE": 0, PACE_S: self.pace_s, **self.profile.pop("environment", {})}
        keys = {"environment": environment, "setup": [f"export PYTHONPATH={path}:{ROOT}"], **self.profile}
        self.site = str(self.folder / "site.yaml")
        Path(self.site).write_text(json.dumps({**PROFILE, **keys}), encoding="utf-8")  # JSON is YAML
        self.specs = make_plan(load_sweep(str(self.sweep))).specs

    def verb(self, name: str, *arguments: str) -> dict[str, Any]:
        """What a verb says of this study."""
        return answer(name, str(self.sweep), *arguments, "--results", str(self.store.root))

    def submit(self) -> dict[str, Any]:
        """Submit what is missing."""
        return self.verb("sweep", "--on", self.site)

    def states(self) -> dict[str, int]:
        """How many runs stand how, as `status` says."""
        return dict(self.verb("status")["states"])

    def failures(self) -> dict[str, tuple[str, str]]:
        """Arm and seed -> (state, reason) of the runs that did not end well, as `status` says."""
        rows = self.verb("status")["not_done"]
        return {f"{row['arm']} {row['seed']}": (row["state"], row["reason"]) for row in rows}

    def checkpointed(self) -> int:
        """Completed steps that every run has in a checkpoint."""
        notes = [self.store.note(spec.run_id) for spec in self.specs]
        return min(0 if note is None else note.step for note in notes)

    def attempts(self) -> list[int]:
        """How often each run was begun."""
        notes = [self.store.note(spec.run_id) for spec in self.specs]
        return [0 if note is None else note.attempt for note in notes]

    def finishes(self, limit_s: float) -> None:
        """Wait until all runs have ended well; the test fails where they have not within the limit."""
        assert eventually(lambda: all(map(self.done, self.specs)), limit_s), (
            self.states(),
            self.failures(),
            self.logs(),
        )

    def done(self, spec: RunSpec) -> bool:
        """Whether the run has ended well."""
        return self.store.status(spec.run_id).state == "done"

    def drained(self, limit_s: float) -> None:
        """Wait until no job of this study is left."""
        assert eventually(lambda: not self.live(), limit_s)

    def live(self) -> list[str]:
        """Ids of its jobs that have not ended."""
        ours = {job_id for record in records(self.store.root) for job_id in record.jobs}
        return sorted(job.id for job in scheduler.jobs() if job.id in ours and not job.ended)

    def logs(self) -> str:
        """Whatever the members wrote."""
        paths = sorted(self.store.root.glob("sweeps/*/slurm-*/*_log.*"))
        return "\n".join(f"{path.name}: {path.read_text()}" for path in paths)

    def equals_undisturbed(self) -> None:
        """Every result and curve is, to the bit, that of a simulated run here that nobody disturbs."""
        whole = Store(self.folder / "undisturbed")
        for spec in self.specs:
            simulated = replace(spec, backend="simulated")
            (outcome,) = execute([simulated], whole)
            assert outcome.status.state == "done", outcome.status.reason
            assert lasting(self.store, spec) == lasting(whole, simulated)


def lasting(store: Store, spec: RunSpec) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Result and curve, without what tells when, where and on which backend they were computed."""
    result, curve = kept(store, spec.run_id)
    return {k: v for k, v in result.items() if k not in IDENTITY}, curve


def ranks(slurm: Cluster) -> dict[tuple[str, int], Process]:
    """(node, rank) -> the process of a member's task there."""
    found = {}
    for node in slurm.nodes:
        for process in slurm.processes(node):
            try:
                words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
                variables = Path(f"/proc/{process.pid}/environ").read_bytes().decode().split("\0")
            except OSError:
                continue  # it has ended meanwhile
            if b"submitit.core._submit" in words and b"python" in words[0]:
                (rank,) = (text.partition("=")[2] for text in variables if text.startswith("SLURM_PROCID="))
                found[node, int(rank)] = process
    return found


@pytest.fixture(scope="module")
def slurm(possible: None) -> Iterator[Cluster]:
    """Four nodes of four CPUs at 1 Gbit/s, with memory for one job each, without accounting; an array has at most two members."""
    settings = {"cpus_per_node": 4, "memory_mib": 1000, "max_array_size": 2}
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


@pytest.mark.timeout(120)
def test_ranks_train_several_runs_one_after_the_other(slurm: Cluster, tmp_path: Path) -> None:
    """Three in one member, whose ranks meet once."""
    study = Study(
        tmp_path / "s", "several", {"a": {}}, steps=20, seeds=3, backend="gloo", workload="digits-mlp",
        profile={"tasks_per_node": 1, "pack_s": 200},
    )  # fmt: skip
    assert len(study.submit()["jobs"]) == 1
    study.finishes(80)
    assert study.attempts() == [1, 1, 1]
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
    study.verb("sweep", "--retry", "error")
    study.finishes(60)
    assert study.attempts() == [2]
    study.equals_undisturbed()


def waiting(slurm: Cluster, held: Path) -> list[tuple[str, Process]]:
    """Nodes and processes of the tasks that are held."""
    return [(node, process) for (node, _), process in ranks(slurm).items() if (held / node).exists()]


def sent_once(folder: Path) -> Path:
    """Make a folder whose `sbatch` submits once, and is as one that does not answer from then on; returns it."""
    folder.mkdir()
    sbatch = folder / "sbatch"
    sbatch.write_text(f'#!/bin/sh\nmkdir "$0.sent" || exec sleep 60\nexec {shutil.which("sbatch")} "$@"\n')
    sbatch.chmod(0o755)
    return folder


ARMS: dict[str, dict[str, int]] = {"a": {}, "b": {"period": 1}, "c": {"period": 2}, "d": {"period": 4}}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("arms", "seeds", "at_once"),
    [pytest.param(2, 4, 3, id="8"), pytest.param(4, 10, 12, id="40", marks=pytest.mark.full)],
)
def test_a_sweep_survives_a_killed_submitter_a_killed_task_and_a_lost_node(
    slurm: Cluster, tmp_path: Path, arms: int, seeds: int, at_once: int
) -> None:
    """The acceptance test of sweeps, and the last of this cluster, of which it takes a node away: one job ends, others are held.

    What is held is killed where it stands, however fast the machine is.
    """
    held = tmp_path / "held"
    held.mkdir()
    study = Study(
        tmp_path / "s", "forty", dict(itertools.islice(ARMS.items(), arms)), steps=100, seeds=seeds, pace_s=0.04,
        profile={"array_parallelism": at_once, "timeout_min": 5, "environment": {HOLD: str(held)}},
    )  # fmt: skip
    once = sent_once(tmp_path / "once")
    environment = {
        **os.environ, "PYTHONPATH": f"{study.folder / 'plugin'}:{ROOT}", "PATH": f"{once}:{os.environ['PATH']}",
    }  # fmt: skip
    command = [sys.executable, "-m", "bandwise", "sweep", str(study.sweep), "--on", study.site]
    submitter = subprocess.Popen([*command, "--results", str(study.store.root)], env=environment, cwd=ROOT)
    assert eventually(lambda: bool(records(study.store.root)), 90)
    submitter.kill()
    submitter.wait()
    (first,) = records(study.store.root)
    before = sum(map(len, first.jobs.values()))
    assert 0 < before < len(study.specs), "the submitter was killed half-way"
    sent = study.submit()
    assert sent["runs"] == len(study.specs) - before, "what was lost with the submitter, and nothing besides"
    assert study.submit()["runs"] == 0, "all that is missing waits or runs"

    assert eventually(lambda: bool(study.states().get("done")), 120)
    kept = {spec.run_id: lasting(study.store, spec) for spec in study.specs if study.done(spec)}
    assert eventually(lambda: len(waiting(slurm, held)) > 1, 120)
    (_, task), (node, _) = waiting(slurm, held)[:2]
    task.signal(signal.SIGKILL)
    slurm.kill_node(node)
    (held / GO).touch()
    study.drained(420 + NODE_LOST_LIMIT_S)
    assert study.states().get("error", 0) > 0, "those of the killed task"
    study.submit()
    study.finishes(180)
    again = {spec.run_id: lasting(study.store, spec) for spec in study.specs if spec.run_id in kept}
    assert again == kept
    study.equals_undisturbed()
