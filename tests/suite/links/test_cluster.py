"""The emulated cluster: workers reach each other at the rates asked for, whoever asks, and nothing of it outlives it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from suite.links import cluster as cluster_module
from suite.links import delay_line, doctor
from suite.links.cluster import ClusterError, attach, default_state_dir, down, status, up
from suite.links.link import Link, LinkError
from suite.links.namespaces import privileged
from suite.links.process import Process, children
from suite.links.state import Layout, Plan, State
from tests.suite.links.tour import PAYLOAD_BYTES, held_namespaces, interfaces, namespace
from tests.support import require_system, skip_or_fail

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
TWO = Link.parse(2, "100mbit")


@pytest.fixture(scope="module")
def possible() -> None:
    """Skip (with ``CI=true``: fail) where no cluster can be made, and say why."""
    require_system("ip", "tc", "nsenter")
    finding = doctor.obstacle()
    if finding is not None:
        skip_or_fail(f"{finding.name}: {finding.detail}. {finding.fix}")


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """Where a cluster may live; it must be gone afterwards, and every network interface as before."""
    before = interfaces()
    path = Path(tempfile.mkdtemp(prefix="bandwise-test-")) / "cluster"
    yield path
    left = path.exists()
    down(path)
    shutil.rmtree(path.parent)
    assert not left
    assert interfaces() == before


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether the condition comes true within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def recorded(state_dir: Path) -> State:
    state = State.read(Layout(state_dir))
    assert state is not None
    return state


def interpreter_for(user: int) -> str:
    """A Python that this user can run: ours may lie in somebody's home."""
    check = 'exec "$0" -c "import sys; sys.exit(sys.version_info < (3, 11))"'
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        # by way of a shell, since setpriv itself still has the privileges that it gives away
        done = subprocess.run(
            [*as_user(user), "sh", "-c", check, python], capture_output=True, check=False, cwd="/"
        )
        if done.returncode == 0:
            return python
    return skip_or_fail(f"user {user} can run no Python of 3.11 or newer: install python3 for everybody")


def as_user(user: int) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def walked_by_me(state_dir: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.suite.links.tour", str(state_dir)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def walked_by_nobody(state_dir: Path) -> dict[str, Any]:
    """The tour by a user without any privilege, from a copy of the files that this user can read."""
    require_system("setpriv")
    folder = state_dir.parent
    folder.chmod(0o777)
    copy = folder / "copy"
    for path in ("suite/__init__.py", "suite/links", "tests/__init__.py", "tests/suite/links/tour.py"):
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        make = shutil.copytree if (ROOT / path).is_dir() else shutil.copyfile
        make(ROOT / path, copy / path)
    for path in [copy, *copy.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    command = [interpreter_for(NOBODY), "-B", "-m", "tests.suite.links.tour", str(state_dir)]
    done = subprocess.run(
        [*as_user(NOBODY), *command], cwd=copy, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


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
    assert Link.from_dict(seen["link"]) == Link.parse(4, "1gbit", delay="10ms")

    assert seen["reached_by"] == seen["reached_again_by"] == seen["addresses"][0]
    for counted in (seen["sent"][0], seen["received"][3]):
        assert PAYLOAD_BYTES < counted < 1.08 * PAYLOAD_BYTES
    for counted in (seen["sent"][3], seen["received"][0]):
        assert 0 < counted < 0.1 * PAYLOAD_BYTES  # acknowledgements
    assert seen["sent"][1] == seen["sent"][2] == 0
    assert seen["dropped"] == [0] * 4
    line_s = 8 * PAYLOAD_BYTES / 1e8
    assert seen["first_s"] > 0.8 * line_s  # at 100 Mbit/s, less what the buckets give away
    assert seen["second_s"] > 2 * 0.020  # connection, and data with its answer: two round trips at least

    assert seen["status_after"] == "down"
    assert seen["processes"] >= 5
    assert seen["alive_after"] == []
    assert seen["namespaces_after"] == []
    assert seen["folder_after"] is False
    assert seen["interfaces_after"] == seen["interfaces_before"]


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


@pytest.mark.usefixtures("possible")
def test_what_cannot_be_changed_is_refused_and_the_link_stays(state_dir: Path) -> None:
    with up(TWO, state_dir=state_dir) as made:
        with pytest.raises(LinkError, match="has 2; bring another one up"):
            made.shape(Link(3, 1e8))
        with pytest.raises(LinkError, match="delay_line=True"):
            made.shape(Link(2, 1e8, delay_s=1e-3))
        with pytest.raises(ClusterError, match="no worker 2: there are 0 to 1"):
            made.enter(2)
        with pytest.raises(ClusterError, match="no worker -1"):
            made.enter(-1)
        assert made.link == TWO


@pytest.mark.usefixtures("possible")
def test_a_rate_above_what_the_delay_line_carries_is_refused(state_dir: Path) -> None:
    too_fast = Link(2, delay_line.MAX_RATE_BPS * 1.01, delay_s=1e-3)
    with up(Link(2, 1e8, delay_s=1e-3), state_dir=state_dir) as made:
        if made.delay == "netem":
            made.shape(too_fast)
            return
        with pytest.raises(LinkError, match="has no netem"):
            made.shape(too_fast)
        assert made.link.rate_bps == 1e8
    before = set(children(os.getpid()))
    with pytest.raises(LinkError, match="choose a lower rate or no delay"):
        up(too_fast, state_dir=state_dir)
    assert not state_dir.exists()
    assert set(children(os.getpid())) <= before


def fake_programs(folder: Path, programs: dict[str, str]) -> None:
    for name, script in programs.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


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


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-x", "a b", "x" * 65])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(LinkError, match="cluster name"):
        default_state_dir(name)


@pytest.mark.usefixtures("possible")
def test_the_shell_can_bring_it_up_use_it_and_take_it_down(tmp_path: Path) -> None:
    def shell(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "bandwise", "cluster", *arguments],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    try:
        told = shell("up", "--workers", "3", "--rate", "50mbit", "--straggler", "1=20mbit")
        assert told.startswith("cluster default is up: 3 workers, 50 Mbit/s, rank 1 at 20 Mbit/s\n")
        assert "bandwise cluster exec 0 -- ip address" in told
        assert "is not empty" in shell("up", code=3)
        assert "10.77.0.2/24" in shell("exec", "1", "--", "ip", "-br", "address")
        assert shell("exec", "2", "sh", "-c", "exit 7", code=7) == ""
        assert "nothing to run" in shell("exec", "2", code=2)
        assert "no worker 3" in shell("exec", "3", "--", "true", code=3)
        found = json.loads(shell("status", "--json"))
        assert found["state"] == "up"
        assert found["link"]["stragglers"] == {"1": 2e7}
        assert shell("status", "--name", "other", code=3) == "no cluster other\n"
    finally:
        assert shell("down") == "cluster default is down\n"
    assert json.loads(shell("--json", "down"))["was"] == "down"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "5mbit"], "choose 10mbit to 10gbit"),
        (["--rate", "fast"], "such as 100mbit"),
        (["--down-rate", "20gbit"], "down rate"),
        (["--delay", "5"], "such as 5ms"),
        (["--straggler", "2"], "RANK=RATE"),
        (["--straggler", "x=10mbit"], "RANK=RATE"),
        (["--straggler", "4=10mbit"], "ranks 0 to 3"),
        (["--straggler", "1=100mbit"], "no slower"),
        (["--workers", "0"], "0 workers"),
        (["--name", "../x"], "cluster name"),
    ],
)
def test_the_shell_refuses_what_cannot_be(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from bandwise.cli import main

    assert main(["cluster", "up", *arguments]) == 2
    assert message in capsys.readouterr().err
