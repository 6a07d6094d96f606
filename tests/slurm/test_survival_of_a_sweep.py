"""A sweep on a real Slurm, of forty runs or a few: its submitter is killed, a task is killed, a node is lost. Nothing is lost."""

from __future__ import annotations

import itertools
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

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """Three nodes behind wires, with room beside jobs that wait in vain for a killed submitter; arrays of two members."""
    require_links()
    with cluster(Link.parse(3, "1gbit"), max_array_size=2, cpus_per_node=4) as made, found_by_clients(made):
        yield made


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


@pytest.mark.parametrize(
    ("arms", "seeds", "steps"),
    [
        pytest.param(2, 4, 150, id="8"),
        pytest.param(4, 10, 100, id="40", marks=pytest.mark.full),  # the acceptance test of sweeps: minutes
    ],
)
def test_runs_survive_a_killed_submitter_a_killed_task_and_a_lost_node(
    slurm: Cluster, tmp_path: Path, arms: int, seeds: int, steps: int
) -> None:
    started = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - started:5.0f} s  {text}\n")

    study = Study(
        tmp_path / "s", "forty", dict(itertools.islice(ARMS.items(), arms)), steps=steps,
        seeds=seeds, pace_s=0.04, profile={"array_parallelism": 12, "timeout_min": 5},
    )  # fmt: skip
    assert len(study.specs) == arms * seeds

    environment = {**os.environ, "PYTHONPATH": f"{study.folder / 'plugin'}:{ROOT}"}
    command = [sys.executable, "-m", "bandwise", "sweep", str(study.sweep), "--on", study.site]
    submitter = subprocess.Popen([*command, "--results", str(study.store.root)], env=environment, cwd=ROOT)
    assert eventually(lambda: bool(records(study.store.root)), 90)
    submitter.kill()
    submitter.wait()
    (first,) = records(study.store.root)
    held = sum(map(len, first.jobs.values()))
    assert 0 < held < len(study.specs), "the submitter was killed half-way"
    say(f"submitter killed: {len(first.jobs)} jobs on record hold {held} runs")

    sent = study.verb("sweep", "--on", study.site)
    say(f"submitted again: {sent['runs']} runs in {sent['members']} jobs")
    assert sent["runs"] == len(study.specs) - held, "what was lost with the submitter, and nothing besides"
    assert study.verb("sweep", "--on", study.site)["runs"] == 0, "all that is missing waits or runs"

    assert eventually(lambda: bool(study.states().get("done")), 120)
    kept = {spec.run_id: lasting(study.store, spec) for spec in study.specs if study.done(spec)}
    assert eventually(lambda: holding(slurm, study) is not None, 120)
    found_task = holding(slurm, study)
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
