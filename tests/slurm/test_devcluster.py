"""The development cluster: Slurm really runs in it, and nothing of it outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.devcluster import DevClusterError, cluster, down, up
from tests.slurm.devcluster import config as devcluster_config
from tests.suite.links.tour import Process, children
from tests.support import eventually


def descendants(pid: int) -> Iterator[Process]:
    """Everything that descends from a process now."""
    for child in children(pid):
        yield Process.of(child)
        yield from descendants(child)


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
    with cluster(2, max_array_size=7) as slurm:

        def client(*command: str) -> str:
            return subprocess.run(
                command, env=slurm.environ(), capture_output=True, text=True, check=True, timeout=60
            ).stdout

        names = client("srun", "--nodes=2", "--ntasks=2", "printenv", "SLURMD_NODENAME").split()
        assert sorted(names) == ["node-0", "node-1"]
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
