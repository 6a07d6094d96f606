"""How an emulated cluster ends: with its owner, by `down`, by a crash; nothing of ours stays, nothing of others goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from suite.links.cluster import ClusterError, attach, down, status, up
from suite.links.keeper import Layout, Plan, State
from suite.links.link import Link
from suite.links.process import Process
from suite.links.topology import entry
from tests.suite.links.emulated import TWO, recorded
from tests.suite.links.tour import held_namespaces, interfaces, namespace
from tests.support import eventually

ROOT = Path(__file__).resolve().parents[3]


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
    assert not [process for process in state.processes() if process.alive()]


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
    made = up(Link.parse(2, "100mbit", delay="1ms"), state_dir=state_dir)
    state = recorded(state_dir)
    namespaces = {namespace(made.enter(rank)) for rank in range(2)}
    assert len(state.processes()) >= 2
    state.keeper.signal(signal.SIGKILL)
    assert state.keeper.wait_s(5)
    assert eventually(lambda: not [process for process in state.processes() if process.alive()])
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
    Plan(TWO, delay_line=False).write(layout)
    State(earlier, ready=True, holders=[earlier, earlier]).write(layout)
    assert status(layout.state_dir)["state"] == "broken"
    down(layout.state_dir)
    assert not layout.state_dir.exists()  # and this test goes on


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    own = Process.of(os.getpid())
    state = State(own, True, True, "line", [own], own, {"delay line": 1}, {"kind": "link", "message": "no"})
    state.write(layout)
    assert State.read(layout) == state
    plan = Plan(Link(2, 1e8, stragglers={1: 1e7}), delay_line=True, generation=7)
    plan.write(layout)
    assert Plan.read(layout) == plan
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.json", "state.json"]
