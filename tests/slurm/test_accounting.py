"""A cluster with accounting: sacct tells how jobs ended, and a QoS takes nodes away. Needs slurmdbd and MariaDB."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.devcluster import Cluster, DevClusterError, cluster
from tests.slurm.devcluster.config import ACCOUNT, ACCOUNTING, ACCOUNTING_PACKAGES, URGENT_QOS, find_file
from tests.slurm.jobs import detail, ends, seconds_until, state, submit

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        any(find_file(name) is None for name in ACCOUNTING),
        reason=f"accounting needs slurmdbd and MariaDB: `apt-get install {ACCOUNTING_PACKAGES}`",
    ),
]

TIME_LIMIT_S = 60
"""The shortest that Slurm has; it looks twice a minute."""


@dataclass(frozen=True)
class Accounted:
    """The cluster and a job that was submitted at its start, to run into its time limit."""

    slurm: Cluster
    overdue: str


@pytest.fixture(scope="module")
def accounted() -> Iterator[Accounted]:
    """One node of three CPUs."""
    with cluster(1, accounting=True, preempt="qos", cpus_per_node=3) as made:
        yield Accounted(made, submit(made, "sleep 600", "--time=1", f"--qos={URGENT_QOS}"))


def accounted_state(slurm: Cluster, job: str) -> str:
    """The state of a job as sacct has it, or nothing while it does not know the job."""
    told = slurm.ask("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=State")
    return told.split("\n")[0].split(" ")[0]


def test_sacct_tells_how_jobs_ended(accounted: Accounted) -> None:
    slurm = accounted.slurm
    jobs = {submit(slurm, "true"): "COMPLETED", submit(slurm, "exit 3"): "FAILED"}
    cancelled = submit(slurm, "sleep 600")
    seconds_until(lambda: state(slurm, cancelled) == "RUNNING")
    slurm.ask("scancel", cancelled)
    jobs[cancelled] = "CANCELLED"
    seconds_until(lambda: {job: accounted_state(slurm, job) for job in jobs} == jobs, 30)
    told = slurm.ask(
        *("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(jobs)}"),
        "--format=Account,ExitCode",
    )
    assert {line.split("|")[0] for line in told.splitlines()} == {ACCOUNT}
    assert "3:0" in told


def test_a_qos_takes_nodes_away_and_gives_them_back(accounted: Accounted, tmp_path: Path) -> None:
    slurm = accounted.slurm
    low = submit(slurm, "sleep 600", "--cpus-per-task=2")
    seconds_until(lambda: state(slurm, low) == "RUNNING")
    high = submit(slurm, "true", "--cpus-per-task=2", f"--qos={URGENT_QOS}")
    assert ends(slurm, high) == "COMPLETED"
    seconds_until(lambda: state(slurm, low) == "RUNNING", 25)
    assert detail(slurm, low, "Restarts") == "1"
    slurm.ask("scancel", low)
    ends(slurm, low)


def test_an_account_that_is_not_there_is_refused(accounted: Accounted) -> None:
    with pytest.raises(DevClusterError, match=r"[Ii]nvalid account"):
        submit(accounted.slurm, "true", "--account=nobody")


def test_sacct_tells_of_a_time_limit(accounted: Accounted) -> None:
    started = time.monotonic()
    assert ends(accounted.slurm, accounted.overdue, 150) == "TIMEOUT"
    assert time.monotonic() - started < 2 * TIME_LIMIT_S
    seconds_until(lambda: accounted_state(accounted.slurm, accounted.overdue) == "TIMEOUT", 30)
