"""The same where Slurm keeps accounts: a QoS takes nodes away, and sacct knows what the controller has forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm import scheduler
from suite.links.link import Link
from tests.slurm.devcluster import Cluster, cluster
from tests.slurm.devcluster.config import ACCOUNTING, ACCOUNTING_PACKAGES, URGENT_QOS, find_file
from tests.slurm.survival_support import Study, found_by_clients, taken_and_given_back
from tests.slurm.test_linked_cluster import require_links
from tests.support import eventually

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(150),
    pytest.mark.skipif(
        any(find_file(name) is None for name in ACCOUNTING),
        reason=f"accounting needs slurmdbd and MariaDB: `apt-get install {ACCOUNTING_PACKAGES}`",
    ),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """Two nodes of four CPUs at 1 Gbit/s; the controller forgets a job soon after its end."""
    require_links()
    with (
        cluster(
            Link.parse(2, "1gbit"),
            accounting=True,
            preempt="qos",
            cpus_per_node=4,
            memory_poll_s=1,
            extra_lines=("MinJobAge=2",),
        ) as made,
        found_by_clients(made),
    ):
        yield made


def test_a_job_of_a_higher_qos_takes_the_node_and_the_run_goes_on_afterwards(
    slurm: Cluster, tmp_path: Path
) -> None:
    taken_and_given_back(tmp_path, {"qos": URGENT_QOS})


def test_a_run_out_of_memory_is_told_when_the_controller_has_forgotten_its_job(
    slurm: Cluster, tmp_path: Path
) -> None:
    study = Study(
        tmp_path / "s", "greedy", {"modest": {}, "greedy": {"greed_mib": 700}}, steps=300, pace_s=0.01
    )
    ids = study.submit()
    study.drained(60)
    assert eventually(lambda: not [job for job in scheduler.jobs() if job.id.partition("_")[0] in ids], 60)
    assert study.states() == {"done": 1, "oom": 1}
    ((_, reason),) = study.failures().values()
    assert "ended as FAILED" in reason, "as sacct has it"
    assert "exceeded memory limit" in reason
