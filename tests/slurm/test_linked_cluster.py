"""Slurm on an emulated cluster leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from suite.links import doctor
from suite.links.link import Link
from tests.slurm.devcluster import attach, cluster, down, status
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
import os, sys, time
from tests.slurm.devcluster import up
from suite.links.link import Link
from tests.suite.links.tour import namespace
made = up(Link.parse(2, "1gbit"))
made.ask("sbatch", "--output=/dev/null", "--wrap=sleep 600")
print(made.state_dir, *(namespace(made.links.enter(rank)) for rank in (0, 1, None)), flush=True)
if sys.argv[1] == "down":
    sys.stdin.readline()
    made.down()
    sys.exit()
time.sleep(600)
"""


@pytest.mark.parametrize("end", ["down", "killed"])
def test_nothing_is_left(end: str) -> None:
    require_links()
    before = interfaces()
    with tempfile.TemporaryDirectory(prefix="bandwise-test-") as folder:
        Path(folder).chmod(0o755)  # munge insists
        with subprocess.Popen(
            [sys.executable, "-c", OWNER, end],
            cwd=ROOT, env={**os.environ, "TMPDIR": folder}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as owner:  # fmt: skip
            assert owner.stdin is not None
            assert owner.stdout is not None
            first, *namespaces = owner.stdout.readline().split()
            state_dir = Path(first)
            assert status(state_dir)["state"] == "up"
            made = attach(state_dir)
            inside = _inside(set(namespaces))
            assert len(inside) >= 4  # the switch, slurmctld, two slurmd
            if end == "down":
                owner.communicate("now\n", timeout=60)
                assert owner.returncode == 0
            else:
                owner.kill()
        assert eventually(lambda: not list(Path(folder).iterdir()))
        assert eventually(lambda: not [process for process in [made.keeper, *inside] if process.alive()])
        assert eventually(lambda: not set(namespaces) & held_namespaces())
        down(state_dir)  # once more is harmless
    assert interfaces() == before


def test_a_cluster_whose_keeper_was_killed_loses_its_links_and_can_be_taken_down() -> None:
    require_links()
    with cluster(Link.parse(2, "1gbit")) as made:
        made.ask("sbatch", "--output=/dev/null", "--wrap=sleep 600")
        assert eventually(lambda: "RUNNING" in made.ask("squeue", "--noheader", "--format=%T"), 60)
        running = [process for node in made.nodes for process in made.processes(node)]
        made.keeper.signal(signal.SIGKILL)
        assert made.keeper.wait_s(5)
        assert status(made.state_dir)["state"] == "broken"
        made.down()
        assert not [process for process in running if process.alive()]
        assert not made.state_dir.exists()


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
