"""Fixtures of the Slurm tests: one development cluster a test module, found through the environment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.devcluster import Cluster, cluster
from tests.support import require_system


@pytest.fixture(scope="module")
def dev_cluster() -> Iterator[Cluster]:
    """Two nodes of one CPU; an array has at most two members. Clients of this process find it."""
    yield from _found(max_array_size=2)


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Cluster]:
    """The same with arrays as large as Slurm's default."""
    yield from _found()


def _found(**settings: int) -> Iterator[Cluster]:
    require_system("munged", "slurmctld", "slurmd", "sbatch")
    with cluster(2, **settings) as slurm, pytest.MonkeyPatch.context() as patch:
        for key, value in slurm.env.items():
            patch.setenv(key, value)
        yield slurm
