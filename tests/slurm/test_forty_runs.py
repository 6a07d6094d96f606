"""A sweep of forty runs on a real Slurm: its submitter is killed, a task is killed, a node is lost. Nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.states import records
from suite.links.link import Link
from tests.slurm.devcluster import Cluster, cluster
from tests.slurm.survival_support import Study, found_by_clients, lasting, ranks
from tests.slurm.test_linked_cluster import NODE_LOST_LIMIT_S, require_links
from tests.suite.links.tour import Process
from tests.support import ROOT, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """Three nodes of one CPU behind wires; an array has at most three members, so that ten members are four arrays."""
    require_links()
    with cluster(Link.parse(3, "1gbit"), max_array_size=3) as made, found_by_clients(made):
        yield made


def holding(slurm: Cluster, known: set[str]) -> tuple[str, Process] | None:
    """A node and the process of a task there that has run for three seconds, of a job on record.

    Where a submitter was killed after sbatch, a job that is on no record waits in vain for what it is to do.
    """
    for (node, _), process in ranks(slurm).items():
        try:
            text = Path(f"/proc/{process.pid}/environ").read_bytes().decode()
            age_s = time.time() - Path(f"/proc/{process.pid}").stat().st_mtime
        except OSError:
            continue
        own = dict(word.partition("=")[::2] for word in text.split("\0"))
        job = f"{own.get('SLURM_ARRAY_JOB_ID')}_{own.get('SLURM_ARRAY_TASK_ID')}"
        if age_s > 3 and job in known:
            return node, process
    return None


def test_forty_runs_survive_a_killed_submitter_a_killed_task_and_a_lost_node(
    slurm: Cluster, tmp_path: Path
) -> None:
    started = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - started:5.0f} s  {text}\n")

    study = Study(
        tmp_path / "s", "forty", {"a": {}, "b": {"period": 1}, "c": {"period": 2}, "d": {"period": 4}}, steps=100,
        seeds=10, pace_s=0.04, profile={"array_parallelism": 12, "timeout_min": 5},
    )  # fmt: skip
    assert len(study.specs) == 40

    environment = {**os.environ, "PYTHONPATH": f"{study.folder / 'plugin'}:{ROOT}"}
    command = [sys.executable, "-m", "bandwise", "sweep", str(study.sweep), "--on", study.site]
    submitter = subprocess.Popen([*command, "--results", str(study.store.root)], env=environment, cwd=ROOT)
    assert eventually(lambda: bool(records(study.store.root)), 90)
    submitter.kill()
    submitter.wait()
    (first,) = records(study.store.root)
    held = sum(map(len, first.jobs.values()))
    assert 0 < held < 40, "the submitter was killed half-way"
    say(f"submitter killed: {len(first.jobs)} jobs on record hold {held} runs")

    sent = study.verb("sweep", "--on", study.site)
    say(f"submitted again: {sent['runs']} runs in {sent['members']} jobs")
    assert sent["runs"] == 40 - held, "what was lost with the submitter, and nothing besides"
    assert study.verb("sweep", "--on", study.site)["runs"] == 0, "all that is missing waits or runs"

    assert eventually(lambda: bool(study.states().get("done")), 120)
    kept = {spec.run_id: lasting(study.store, spec) for spec in study.specs if study.done(spec)}
    known = {job for record in records(study.store.root) for job in record.jobs}
    assert eventually(lambda: holding(slurm, known) is not None, 120), (
        "a task that holds runs, and has begun one"
    )
    found_task = holding(slurm, known)
    assert found_task is not None
    task_node, task = found_task
    task.signal(signal.SIGKILL)
    say(f"a task on {task_node} killed; {len(kept)} runs done")
    assert eventually(lambda: any(node != task_node for node, _ in ranks(slurm)), 60)
    node = next(node for node, _ in ranks(slurm) if node != task_node)
    slurm.kill_node(node)
    say(f"{node} lost; runs: {study.states()}")

    study.drained(420 + NODE_LOST_LIMIT_S)
    found = study.states()
    say(
        f"queue empty; runs: {found}; ends: {Counter(reason.partition(';')[0] for _, reason in study.failures().values())}"
    )
    assert found.get("error", 0) > 0, "those of the killed task"
    sent = study.verb("sweep", "--on", study.site)
    say(f"submitted again: {sent['runs']} runs")
    study.finishes(180)
    say(f"runs: {study.states()}; begun so often: {dict(Counter(study.attempts()))}")

    assert {
        run_id: lasting(study.store, spec) for spec in study.specs if (run_id := spec.run_id) in kept
    } == kept
    study.equals_undisturbed()
    say("every result and curve equals the undisturbed run's to the bit")
