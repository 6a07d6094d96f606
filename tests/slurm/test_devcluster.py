"""The development cluster: Slurm really runs in it, and nothing of it outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.slurm.devcluster import DevClusterError, Node, cluster, down, status, up
from tests.slurm.devcluster import config as devcluster_config
from tests.slurm.devcluster.cluster import free_ports
from tests.suite.links.tour import Process, children
from tests.support import eventually

ROOT = Path(__file__).resolve().parents[2]


def descendants(pid: int) -> Iterator[Process]:
    """Everything that descends from a process now."""
    for child in children(pid):
        yield Process.of(child)
        yield from descendants(child)


def nodes(state_dir: Path) -> dict[str, str]:
    """Slurm's word on each node."""
    return {worker["node"]: worker["slurm"] for worker in status(state_dir)["workers"]}


def test_a_process_is_not_taken_for_another_with_its_pid() -> None:
    own = Process.of(os.getpid())
    assert own.alive()
    stranger = Process(own.pid, own.started_ticks - 1)
    assert not stranger.alive()
    assert not stranger.signal(signal.SIGKILL)  # or this test would not go on


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devcluster_config, "SLURM", ("sh", "no-such-daemon"))
    with pytest.raises(DevClusterError, match=r"^no-such-daemon not found: .*make system"):
        up(1)


def test_down_leaves_folders_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(DevClusterError, match="holds no cluster"):
        down(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years"
    down(tmp_path / "never-made")


@pytest.mark.slurm
def test_jobs_run_and_down_takes_even_orphans_along() -> None:
    here, there = (Node(name, port) for name, port in zip("ab", free_ports(2), strict=True))
    with cluster([here, replace(there, prefix=("nice", "--adjustment=5"))], max_array_size=7) as slurm:

        def client(*command: str) -> str:
            return subprocess.run(
                command, env=slurm.environ(), capture_output=True, text=True, check=True, timeout=60
            ).stdout

        names = client("srun", "--nodes=2", "--ntasks=2", "printenv", "SLURMD_NODENAME").split()
        assert sorted(names) == ["a", "b"]
        usual = int(client("srun", "--nodelist=a", "nice"))
        assert int(client("srun", "--nodelist=b", "nice")) == min(19, usual + 5)
        assert "MaxArraySize            = 7" in client("scontrol", "show", "config")

        # A job that leaves a process behind which belongs to no step, no session and no terminal.
        marker = slurm.state_dir / "orphan"
        client("sbatch", "--output=/dev/null", f"--wrap=(setsid sleep 3600 & echo $! >{marker}) & sleep 3600")
        assert eventually(lambda: marker.exists() and marker.read_text().strip() != "")
        orphan = Process.of(int(marker.read_text()))
        family = list(descendants(slurm.keeper.pid))
        assert orphan in family
        assert len(family) >= 6  # munged, slurmctld, two slurmd, a step, its script
    assert not [process for process in [slurm.keeper, *family] if process.alive()]
    assert not slurm.state_dir.exists()
    slurm.down()  # once more is harmless


@pytest.mark.slurm
def test_a_cluster_ends_with_the_process_that_holds_it() -> None:
    code = "import time; from tests.slurm.devcluster import up; print(up(1).state_dir, flush=True); time.sleep(600)"
    owner = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner:
        state_dir = Path(owner.stdout.readline().strip())
        assert nodes(state_dir) == {"node-0": "idle"}
        owner.kill()
    assert eventually(lambda: not state_dir.exists())


@pytest.mark.slurm
def test_a_cluster_whose_keeper_was_killed_can_still_be_taken_down() -> None:
    slurm = up(1)
    family = list(descendants(slurm.keeper.pid))
    slurm.keeper.signal(signal.SIGKILL)
    assert slurm.keeper.wait_s(5)
    assert status(slurm.state_dir)["state"] == "broken"
    assert nodes(slurm.state_dir) == {"node-0": "unknown"}
    slurm.down()
    assert not [process for process in family if process.alive()]
    assert not slurm.state_dir.exists()


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("prefix", "message"),
    [("false", r"^b did not start"), ("no-such-prefix", r"(?s)^b did not.*No such file")],
)
def test_a_node_that_does_not_start_is_named_and_nothing_stays(prefix: str, message: str) -> None:
    good, bad = (Node(name, port) for name, port in zip("ab", free_ports(2), strict=True))
    state_dir = Path("/tmp") / f"bandwise-test-{os.getpid()}"
    before = children(os.getpid())
    with pytest.raises(DevClusterError, match=message):
        up([good, replace(bad, prefix=(prefix,))], state_dir=state_dir)
    assert not state_dir.exists()
    assert children(os.getpid()) <= before
