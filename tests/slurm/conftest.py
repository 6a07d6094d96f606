"""Fixtures of the Slurm tests: one development cluster a test module, found through the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from slurm import scheduler
from tests.slurm.devcluster import Cluster, cluster
from tests.slurm.specs import found_by_clients
from tests.support import require_system


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for jobs looks five times a second."""
    monkeypatch.setattr(scheduler, "POLL_S", 0.2)


@pytest.fixture(scope="module")
def dev_cluster() -> Iterator[Cluster]:
    """Two nodes of one CPU; an array has at most two members. Clients of this process find it."""
    require_system("munged", "slurmctld", "slurmd", "sbatch")
    with cluster(2, max_array_size=2) as slurm, found_by_clients(slurm):
        yield slurm
