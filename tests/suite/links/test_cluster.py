"""The emulated cluster: workers reach each other at the rates asked for, and it ends whole; what cannot be is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.links import cluster as cluster_module
from suite.links.cluster import ClusterError, attach, default_state_dir, down, status, up
from suite.links.keeper import Layout, Plan, State
from suite.links.link import Link, LinkError
from suite.links.process import Process, children, find_program
from suite.links.topology import entry, privileged
from tests.suite.links.emulated import TWO, fake_programs, recorded, said_by_nobody
from tests.suite.links.tour import PAYLOAD_BYTES, held_namespaces, interfaces, namespace, rates, transfer
from tests.support import eventually, require_system

ROOT = Path(__file__).resolve().parents[3]


def walked_by_me(state_dir: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.suite.links.tour", str(state_dir)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def walked_by_nobody(state_dir: Path) -> dict[str, Any]:
    """The tour by a user without any privilege, from a copy of the files that this user can read."""
    require_system("setpriv")
    state_dir.parent.chmod(0o777)
    needed = (
        "reference_impls",
        "suite/__init__.py",
        "suite/links",
        "tests/__init__.py",
        "tests/suite/links/tour.py",
    )
    said = said_by_nobody(state_dir.parent / "copy", needed, "tests.suite.links.tour", str(state_dir))
    return dict(json.loads(said))


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize(
    "walk", [walked_by_me, *([walked_by_nobody] if os.geteuid() == 0 else [])], ids=lambda walk: walk.__name__
)
def test_a_cluster_from_up_to_down(walk: Callable[[Path], dict[str, Any]], state_dir: Path) -> None:
    seen = walk(state_dir)
    own_privileges = walk is walked_by_me and privileged(Path("/proc/self/status").read_text())
    assert seen["user_namespace"] is not own_privileges
    assert seen["status"]["state"] == "up"
    assert seen["status"]["label"] == "100 Mbit/s up, 200 Mbit/s down, rank 2 at 10 Mbit/s"
    assert [worker["rank"] for worker in seen["status"]["workers"]] == [0, 1, 2, 3]
    assert seen["addresses"] == [worker["address"] for worker in seen["status"]["workers"]]
    assert seen["inside"] == [["eth0", "lo"]] * 4
    assert len(set(seen["namespaces"])) == 4
    assert seen["first_rates"] == [[1e8, 2e8], [1e8, 2e8], [1e7, 1e7], [1e8, 2e8]]
    assert seen["second_rates"] == [[1e9, 1e9]] * 4
    assert Link.from_dict(seen["link"]) == Link.parse(
        4, "1gbit", delay="10ms" if seen["delay"] == "netem" else None
    )

    assert seen["reached_by"] == seen["reached_again_by"] == seen["addresses"][0]
    for counted in (seen["sent"][0], seen["received"][3]):
        assert PAYLOAD_BYTES < counted < 1.08 * PAYLOAD_BYTES
    for counted in (seen["sent"][3], seen["received"][0]):
        assert 0 < counted < 0.1 * PAYLOAD_BYTES  # acknowledgements
    assert seen["sent"][1] == seen["sent"][2] == 0
    assert seen["dropped"] == [0] * 4
    for seconds in seen["seconds_of_a_second"]:  # at 100 Mbit/s, and the straggler at 10 Mbit/s
        # no more than the share of payload in a full packet, and the two buckets' gifts; no less than TCP makes of it
        assert 1514 / 1448 * 0.98 < seconds < 1.3
    if seen["delay"] == "netem":
        assert seen["second_s"] > 2 * 0.020  # connection, and data with its answer: two round trips at least

    assert seen["status_after"] == "down"
    assert seen["processes"] >= 5
    assert seen["alive_after"] == []
    assert seen["namespaces_after"] == []
    assert seen["folder_after"] is False
    assert seen["interfaces_after"] == seen["interfaces_before"]


@pytest.mark.usefixtures("possible")
def test_two_clusters_do_not_meet(state_dir: Path) -> None:
    with up(TWO, state_dir=state_dir) as one, up(TWO) as other:
        assert one.addresses == other.addresses
        before = [other.counters(rank) for rank in range(2)]
        transfer(one, 0, 1)
        after = [other.counters(rank) - counters for rank, counters in zip(range(2), before, strict=True)]
        assert max(counters.rx_bytes + counters.tx_bytes for counters in after) < 1000
    assert not other.state_dir.exists()


@pytest.mark.usefixtures("possible")
def test_what_cannot_be_changed_is_refused_and_the_link_stays(state_dir: Path) -> None:
    with up(TWO, state_dir=state_dir) as made:
        with pytest.raises(LinkError, match="has 2; bring another one up"):
            made.shape(Link(3, 1e8))
        with pytest.raises(LinkError, match="delays=True"):
            made.shape(Link(2, 1e8, delay_s=1e-3))
        with pytest.raises(ClusterError, match="no worker 2: there are 0 to 1"):
            made.enter(2)
        with pytest.raises(ClusterError, match="no worker -1"):
            made.enter(-1)
        assert made.link == TWO


@pytest.mark.usefixtures("possible")
def test_without_netem_a_delay_is_refused_by_name(
    tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    false_tc = f"""case "$*" in
*netem*) echo "Error: Specified qdisc kind is unknown." >&2; exit 2;;
*) exec {find_program("tc")} "$@";;
esac"""
    fake_programs(tmp_path, {"tc": false_tc})
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    before = set(children(os.getpid()))
    with pytest.raises(
        LinkError, match=r"no netem .*kind is unknown.*sudo modprobe sch_netem.*leave the delay out"
    ):
        up(Link(2, 1e8, delay_s=1e-3), state_dir=state_dir)
    assert not state_dir.exists()
    assert set(children(os.getpid())) <= before


@pytest.mark.usefixtures("possible")
def test_with_netem_the_kernel_carries_every_packet(
    tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wires of a kernel that has netem. netem itself is left out, so that they can be tried on any kernel."""
    asked = tmp_path / "netem"
    false_tc = f"""case "$*" in
*netem*) echo "$*" >>{asked};;
"qdisc del dev lo root") ;;
*) exec {find_program("tc")} "$@";;
esac"""
    fake_programs(tmp_path, {"tc": false_tc})
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with up(Link.parse(2, "100mbit", delay="3ms"), state_dir=state_dir) as made:
        assert made.delay == "netem"
        assert transfer(made, 0, 1)[0] == made.addresses[0]
        made.shape(Link.parse(2, "200mbit", delay="4ms"))
        assert rates(made) == [[2e8, 2e8]] * 2
        delays = [line.split("delay ")[1].split()[0] for line in asked.read_text().splitlines()]
        assert delays == ["1ms", *["3000us"] * 2, *["4000us"] * 2]


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize(
    ("programs", "message"),
    [
        ({"tc": "echo 'Specified qdisc kind is unknown.' >&2; exit 2"}, "tbf.*qdisc kind is unknown"),
        ({"ip": "echo 'RTNETLINK answers: Operation not permitted' >&2; exit 2"}, "no cluster can be made"),
    ],
)
def test_a_system_that_refuses_is_quoted_and_nothing_stays(
    programs: dict[str, str], message: str, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_programs(tmp_path, programs)
    before = set(children(os.getpid()))
    with monkeypatch.context() as patched:
        patched.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        with pytest.raises(ClusterError, match=f"(?s){message}"):
            up(TWO, state_dir=state_dir)
    assert not state_dir.exists()
    assert set(children(os.getpid())) <= before


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster_module, "PROGRAMS", ("sh", "no-such-program"))
    with pytest.raises(ClusterError, match=r"^no-such-program not found: .*apt-get install iproute2"):
        up(TWO, state_dir=tmp_path / "cluster")
    assert not (tmp_path / "cluster").exists()


# How it ends: with its owner, by `down`, by a crash; nothing of ours stays, nothing of others goes


@pytest.mark.usefixtures("possible")
def test_a_cluster_ends_with_the_process_that_holds_it(state_dir: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from suite.links.cluster import up; "
        "from suite.links.link import Link; up(Link(2, 1e8), state_dir=Path(sys.argv[1])); "
        "print('up', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(state_dir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        state = recorded(state_dir)
        owner.kill()
    assert state.keeper.wait_s(20)
    assert not state_dir.exists()
    assert not [process for process in state.holders if process.alive()]


@pytest.mark.usefixtures("possible")
def test_a_cluster_that_is_not_tied_stays_until_down(state_dir: Path) -> None:
    made = up(TWO, state_dir=state_dir, tied=False)
    popen = made._popen
    assert popen is not None
    assert popen.stdin is None  # nothing of ours that could close
    assert attach(state_dir).link == TWO
    down(state_dir)
    assert popen.wait(10) == 0
    with pytest.raises(ClusterError, match="no cluster is up"):
        attach(state_dir)
    made.down()  # once more is harmless


@pytest.mark.usefixtures("possible")
def test_down_leaves_programs_alone_that_others_run_on_a_worker(state_dir: Path) -> None:
    made = up(TWO, state_dir=state_dir)
    with subprocess.Popen([*made.enter(0), "sleep", "600"]) as program:
        try:
            entered = entry(program.pid, recorded(state_dir).user_namespace)
            assert eventually(lambda: namespace(entered) == namespace(made.enter(0)))
            made.down()
            assert program.poll() is None
            assert eventually(lambda: interfaces(entered) == ["lo"])
        finally:
            program.kill()


@pytest.mark.usefixtures("possible")
def test_a_keeper_that_was_killed_takes_all_along_and_down_removes_the_rest(state_dir: Path) -> None:
    made = up(TWO, state_dir=state_dir)
    state = recorded(state_dir)
    namespaces = {namespace(made.enter(rank)) for rank in range(2)}
    assert len(state.holders) == 2
    state.keeper.signal(signal.SIGKILL)
    assert state.keeper.wait_s(5)
    assert eventually(lambda: not [process for process in state.holders if process.alive()])
    assert eventually(lambda: not namespaces & held_namespaces())
    assert status(state_dir)["state"] == "broken"
    with pytest.raises(ClusterError, match="no cluster is up"):
        made.enter(0)
    with pytest.raises(ClusterError, match="is not empty"):
        up(TWO, state_dir=state_dir)
    made.down()
    assert status(state_dir) == {"state": "down", "state_dir": str(state_dir)}


@pytest.mark.usefixtures("possible")
def test_a_worker_that_ends_breaks_the_cluster_and_is_named(state_dir: Path) -> None:
    with up(TWO, state_dir=state_dir) as made:
        recorded(state_dir).holders[1].signal(signal.SIGKILL)
        assert eventually(lambda: status(state_dir)["state"] == "broken")
        assert status(state_dir)["reason"] == "worker 1 ended with code -9"
        with pytest.raises(ClusterError, match="worker 1 has ended"):
            made.enter(1)
        made.enter(0)


def test_a_keeper_that_cannot_be_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-such-python"))
    with pytest.raises(FileNotFoundError):
        up(TWO, state_dir=tmp_path / "cluster")
    assert list(tmp_path.iterdir()) == []


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    for act in (down, attach):
        with pytest.raises(ClusterError, match="holds no cluster of ours"):
            act(tmp_path)
    with pytest.raises(ClusterError, match="is not empty"):
        up(TWO, state_dir=tmp_path)
    assert status(tmp_path)["state"] == "down"
    assert (tmp_path / "thesis.tex").read_text() == "years"
    down(tmp_path / "never-made")


def test_a_pid_that_has_gone_to_a_stranger_is_not_signalled(tmp_path: Path) -> None:
    own = Process.of(os.getpid())
    earlier = Process(own.pid, own.started_ticks - 1)  # had our pid, and ended
    layout = Layout(tmp_path / "cluster")
    layout.state_dir.mkdir()
    Plan(TWO, delays=False).write(layout)
    State(earlier, ready=True, holders=[earlier, earlier]).write(layout)
    assert status(layout.state_dir)["state"] == "broken"
    down(layout.state_dir)
    assert not layout.state_dir.exists()  # and this test goes on


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    own = Process.of(os.getpid())
    state = State(own, True, True, "netem", [own], {"worker 0": 1}, {"kind": "link", "message": "no"})
    state.write(layout)
    assert State.read(layout) == state
    plan = Plan(Link(2, 1e8, stragglers={1: 1e7}), delays=True, generation=7)
    plan.write(layout)
    assert Plan.read(layout) == plan
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "state.json"]


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "a b", "x" * 65])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(LinkError, match="cluster name"):
        default_state_dir(name)
