"""Slurm on an emulated cluster: a node a worker, jobs over shaped wires, faults, and nothing left afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.links import doctor
from suite.links.link import Link
from suite.links.process import Process
from tests.slurm.devcluster import Cluster, DevClusterError, attach, cluster, down, status
from tests.slurm.devcluster.config import HIGH_PARTITION, ClusterConfig
from tests.slurm.jobs import detail, ends, seconds_until, state, submit
from tests.suite.links.emulated import NOBODY, said_by_nobody
from tests.suite.links.tour import bucket, held_namespaces, interfaces, namespace
from tests.support import eventually, skip_or_fail

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
RATE_BPS = 100e6
REQUEUE_LIMIT_S = 15.0
NODE_LOST_LIMIT_S = 3 * ClusterConfig.slurmd_timeout_s
"""Seen: 12 to 16 s on a quiet machine, 21 s where each core had four programs to run."""


def require_links() -> None:
    """Skip (with ``CI=true``: fail) where no emulated cluster can be made."""
    finding = doctor.obstacle()
    if finding is not None:
        skip_or_fail(f"{finding.name}: {finding.detail}. {finding.fix}")


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    """Four nodes of two CPUs at 100 Mbit/s."""
    require_links()
    with cluster(Link.parse(4, "100mbit"), cpus_per_node=2, memory_poll_s=1) as made:
        yield made


def test_a_job_on_each_node_sees_its_own_network_and_the_shaped_wire(slurm: Cluster) -> None:
    assert slurm.links is not None
    seen = slurm.ask(
        *("srun", "--nodes=4", "--ntasks=4", "--label", "sh", "-c"),
        "echo $SLURMD_NODENAME $(readlink /proc/self/ns/net) $(ip -br -4 address show eth0)",
    )
    lines = dict(line.split(": ", 1) for line in seen.splitlines())
    expected = {
        f"{rank}": f"node-{rank} {namespace(slurm.links.enter(rank))} {address}/24"
        for rank, address in enumerate(slurm.links.addresses)
    }
    assert {rank: _without(line, ("eth0@", "UP")) for rank, line in lines.items()} == expected
    assert [8 * bucket(slurm.links.enter(rank), "eth0")["rate"] for rank in range(4)] == [RATE_BPS] * 4


def _without(line: str, starts: tuple[str, ...]) -> str:
    return " ".join(word for word in line.split() if not word.startswith(starts))


def test_clients_work_from_inside_a_job_too(slurm: Cluster, tmp_path: Path) -> None:
    inner = submit(slurm, "srun --ntasks=2 printenv SLURM_PROCID", "--nodes=2", output=tmp_path / "out")
    assert ends(slurm, inner) == "COMPLETED"
    assert sorted((tmp_path / "out").read_text().split()) == ["0", "1"]


def test_four_tasks_on_four_nodes_all_reduce_at_the_rate_of_the_wires(slurm: Cluster, tmp_path: Path) -> None:
    environment = {**slurm.environ(), "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.slurm.all_reduce", str(tmp_path / "meeting"), str(8 << 20)]
    done = subprocess.run(
        ["srun", "--nodes=4", "--ntasks=4", *command],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 0.80 * RATE_BPS < float(done.stdout) < 1.05 * RATE_BPS


def test_a_requeued_job_runs_again_within_seconds(slurm: Cluster) -> None:
    job = submit(slurm, "sleep 600")
    seconds_until(lambda: state(slurm, job) == "RUNNING")
    slurm.ask("scontrol", "requeue", job)
    seconds_until(lambda: state(slurm, job) == "PENDING")
    assert seconds_until(lambda: state(slurm, job) == "RUNNING") < REQUEUE_LIMIT_S
    assert detail(slurm, job, "Restarts") == "1"
    slurm.ask("scancel", job)
    assert ends(slurm, job) == "CANCELLED"


def test_a_job_of_the_high_partition_takes_nodes_away_and_gives_them_back(
    slurm: Cluster, tmp_path: Path
) -> None:
    low = submit(slurm, "echo started; sleep 600", "--nodes=4", "--exclusive", output=tmp_path / "low")
    seconds_until(lambda: state(slurm, low) == "RUNNING")
    high = submit(slurm, "true", "--nodes=4", "--exclusive", f"--partition={HIGH_PARTITION}")
    assert ends(slurm, high) == "COMPLETED"
    seconds_until(lambda: state(slurm, low) == "RUNNING", REQUEUE_LIMIT_S + 5)
    assert detail(slurm, low, "Restarts") == "1"
    assert eventually(lambda: (tmp_path / "low").read_text().count("started") == 2)
    slurm.ask("scancel", low)
    ends(slurm, low)


def test_a_job_above_its_memory_is_killed(slurm: Cluster, tmp_path: Path) -> None:
    greedy = f"{sys.executable} -c 'import time; x = bytearray(300 << 20); time.sleep(60); print(len(x))'"
    job = submit(slurm, greedy, "--mem=100M", output=tmp_path / "out")
    frugal = submit(slurm, f"{sys.executable} -c 'import time; time.sleep(5)'", "--mem=100M")
    assert ends(slurm, job) == "FAILED"
    assert detail(slurm, job, "ExitCode") == "0:9"
    assert "exceeded memory limit" in (tmp_path / "out").read_text()
    assert ends(slurm, frugal) == "COMPLETED"


def test_a_lost_node_is_seen_its_job_goes_elsewhere_and_the_node_comes_back(slurm: Cluster) -> None:
    job = submit(slurm, "sleep 600", "--requeue")
    seconds_until(lambda: state(slurm, job) == "RUNNING")
    node = detail(slurm, job, "BatchHost")
    assert slurm.slurmd(node) in slurm.processes(node)
    assert eventually(lambda: len(slurm.processes(node)) >= 3)  # slurmd, the step, its script
    slurm.kill_node(node)
    assert slurm.processes(node) == []
    lost_s = seconds_until(lambda: slurm.states()[node].startswith("down"))
    assert lost_s < NODE_LOST_LIMIT_S
    seconds_until(lambda: state(slurm, job) == "RUNNING", REQUEUE_LIMIT_S + 5)
    assert detail(slurm, job, "BatchHost") != node
    slurm.start_slurmd(node)
    seconds_until(lambda: slurm.states()[node] == "idle")
    assert submit(slurm, "true", f"--nodelist={node}")
    slurm.ask("scancel", job)
    ends(slurm, job)


def test_a_slurmd_that_dies_and_comes_back_soon_loses_nothing(slurm: Cluster) -> None:
    job = submit(slurm, "sleep 8")
    seconds_until(lambda: state(slurm, job) == "RUNNING")
    node = detail(slurm, job, "BatchHost")
    slurm.kill_slurmd(node)
    with pytest.raises(DevClusterError, match="no node 'nowhere'"):
        slurm.kill_slurmd("nowhere")
    slurm.start_slurmd(node)
    with pytest.raises(DevClusterError, match="kill it first"):
        slurm.start_slurmd(node)
    assert ends(slurm, job) == "COMPLETED"
    assert detail(slurm, job, "Restarts") == "0"


def test_at_the_slowest_rate_slurm_itself_still_works() -> None:
    require_links()
    with cluster(Link.parse(2, "10mbit")) as slow:
        job = submit(slow, "srun --ntasks=2 true", "--nodes=2")
        assert ends(slow, job) == "COMPLETED"


OWNER = """
import sys, time
from tests.slurm.devcluster import up
from suite.links.link import Link
made = up(Link.parse(2, "1gbit"))
made.ask("sbatch", "--output=/dev/null", "--wrap=sleep 600")
print(made.state_dir, flush=True)
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
            state_dir = Path(owner.stdout.readline().strip())
            assert status(state_dir)["state"] == "up"
            made = attach(state_dir)
            assert made.links is not None
            namespaces = {namespace(made.links.enter(rank)) for rank in range(2)}
            namespaces.add(namespace(made.links.enter_switch()))
            inside = _inside(namespaces)
            assert len(inside) >= 6  # two holders, the switch, slurmctld, two slurmd
            if end == "down":
                owner.communicate("now\n", timeout=60)
                assert owner.returncode == 0
            else:
                owner.kill()
        assert eventually(lambda: not list(Path(folder).iterdir()))
        assert eventually(lambda: not [process for process in [made.keeper, *inside] if process.alive()])
        assert eventually(lambda: not namespaces & held_namespaces())
        down(state_dir)  # once more is harmless
    assert interfaces() == before


@pytest.mark.skipif(
    os.geteuid() != 0, reason="the other tests show it already where they are not run by root"
)
def test_nobody_needs_root() -> None:
    require_links()
    needed = (
        "slurm",
        "reference_impls",
        "suite/__init__.py",
        "suite/links",
        "tests/__init__.py",
    )
    with tempfile.TemporaryDirectory(prefix="bandwise-test-") as folder:
        Path(folder).chmod(0o1777)
        paths = (*needed, "tests/slurm/tour.py")
        seen = json.loads(
            said_by_nobody(Path(folder) / "copy", paths, "tests.slurm.tour", f"{folder}/cluster")
        )
    lines = [_without(line, ("eth0@", "UP")) for line in seen["from outside"]]
    assert lines == [f"node-{rank} {NOBODY} 10.77.0.{rank + 1}/24" for rank in range(2)]
    assert seen["from a job"] == seen["from outside"]
    assert (seen["killed"], seen["started"], seen["folder"]) == (0, True, False)


def test_a_cluster_whose_keeper_was_killed_loses_its_links_and_can_be_taken_down() -> None:
    require_links()
    with cluster(Link.parse(2, "1gbit")) as made:
        job = submit(made, "sleep 600")
        seconds_until(lambda: state(made, job) == "RUNNING")
        running = [process for node in made.nodes for process in made.processes(node)]
        assert made.links is not None
        holder = made.links.holder(0)
        made.keeper.signal(signal.SIGKILL)
        assert made.keeper.wait_s(5)
        assert status(made.state_dir)["state"] == "broken"
        made.down()
        assert not [process for process in [holder, *running] if process.alive()]
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
