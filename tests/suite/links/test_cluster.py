"""The emulated cluster: workers reach each other at the rates asked for, whoever asks; what cannot be is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.links import cluster as cluster_module
from suite.links import delay_line
from suite.links.cluster import ClusterError, up
from suite.links.link import Link, LinkError
from suite.links.process import children, find_program
from suite.links.topology import privileged
from tests.suite.links.emulated import TWO, fake_programs, recorded, said_by_nobody
from tests.suite.links.tour import PAYLOAD_BYTES, rates, transfer
from tests.support import require_system

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
    needed = ("suite/__init__.py", "suite/links", "tests/__init__.py", "tests/suite/links/tour.py")
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
    assert Link.from_dict(seen["link"]) == Link.parse(4, "1gbit", delay="10ms")

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
        assert recorded(state_dir).delay_line is None
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
