"""Slurm on an emulated cluster leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from suite.links import doctor
from tests.slurm.devcluster import attach, down
from tests.slurm.devcluster.config import ClusterConfig
from tests.suite.links.tour import Process, held_namespaces, interfaces
from tests.support import eventually, skip_or_fail

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
NODE_LOST_LIMIT_S = 3 * ClusterConfig.slurmd_timeout_s
"""Seen: 12 to 16 s on a quiet machine, 21 s where each core had four programs to run."""


def require_links() -> None:
    """Skip (with ``CI=true``: fail) where no emulated cluster can be made."""
    finding = doctor.obstacle()
    if finding is not None:
        skip_or_fail(f"{finding.name}: {finding.detail}. {finding.fix}")


OWNER = """
import time
from tests.slurm.devcluster import up
from suite.links.link import Link
from tests.suite.links.tour import namespace
made = up(Link.parse(2, "1gbit"))
made.ask("sbatch", "--output=/dev/null", "--wrap=sleep 600")
print(made.state_dir, *(namespace(made.links.enter(rank)) for rank in (0, 1, None)), flush=True)
time.sleep(600)
"""


def test_nothing_is_left_of_a_cluster_whose_owner_was_killed() -> None:
    require_links()
    before = interfaces()
    with tempfile.TemporaryDirectory(prefix="bandwise-test-") as folder:
        Path(folder).chmod(0o755)  # munge insists
        with subprocess.Popen(
            [sys.executable, "-c", OWNER],
            cwd=ROOT, env={**os.environ, "TMPDIR": folder}, stdout=subprocess.PIPE, text=True,
        ) as owner:  # fmt: skip
            assert owner.stdout is not None
            first, *namespaces = owner.stdout.readline().split()
            made = attach(Path(first))
            inside = _inside(set(namespaces))
            assert len(inside) >= 4  # the switch, slurmctld, two slurmd
            owner.kill()
        assert eventually(lambda: not list(Path(folder).iterdir()))
        assert eventually(lambda: not [process for process in [made.keeper, *inside] if process.alive()])
        assert eventually(lambda: not set(namespaces) & held_namespaces())
        down(Path(first))  # once more is harmless
    assert interfaces() == before


def _inside(namespaces: set[str]) -> list[Process]:
    """Processes in these network namespaces."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.readlink(entry / "ns" / "net") in namespaces:
                    found.append(Process.of(int(entry.name)))
            except OSError:
                continue
    return found
