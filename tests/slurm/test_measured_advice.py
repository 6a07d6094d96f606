"""``bandwise advise --measure`` under srun, on four nodes behind shaped links: it finds the links' rate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from suite.links.link import Link
from tests.slurm.devcluster import cluster
from tests.slurm.test_linked_cluster import require_links

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
RATE_BPS = 200e6


def test_four_tasks_find_the_rate_of_their_links(tmp_path: Path) -> None:
    require_links()
    with cluster(Link.parse(4, "200mbit")) as slurm:
        done = subprocess.run(
            [
                *("srun", "--nodes=4", "--ntasks=4", "--kill-on-bad-exit=1", sys.executable, "-m", "bandwise.cli"),
                *("advise", "--json", "--measure", "--params", "11e6", "--compute-ms", "100"),
            ],
            cwd=ROOT, env={**slurm.environ(), "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, check=False, timeout=150,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["workers"] == 4
    assert 0.80 * RATE_BPS < found["rate_bps"] < 1.02 * RATE_BPS, "less than 0.95 only on a busy machine"
