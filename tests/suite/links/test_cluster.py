"""The emulated cluster: its commands, the rates at which workers reach each other, its end; what cannot be is refused."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from suite.links.cluster import ClusterError, Command, build, burst_bytes, find_program, privileged, shape, up
from suite.links.link import MAX_RATE_BPS, MIN_RATE_BPS, Link, LinkError
from tests.processes import Process
from tests.suite.links.tour import PAYLOAD_BYTES, held_namespaces, namespace, rates, transfer
from tests.support import ROOT, eventually, require_system, skip_or_fail

AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
TWO = Link.parse(2, "100mbit")

# The commands that make a link: who gets which rate, and what stands in a wire


LINK = Link(3, 1e8, delay_s=2.5e-3)
ETHERNET_BYTES = 1514


def lines(commands: list[Command], rank: int | None) -> list[str]:
    return [line for where, line in commands if where == rank]


def buckets(commands: list[Command], rank: int | None) -> dict[str, float]:
    """device -> rate of its token bucket."""
    found = {}
    for words in map(str.split, lines(commands, rank)):
        if "tbf" in words:
            found[words[words.index("dev") + 1]] = float(words[words.index("rate") + 1].removesuffix("bit"))
    return found


@pytest.mark.parametrize(("delays", "port"), [(False, "h"), (True, "b")])
def test_every_wire_has_its_rate_both_ways(delays: bool, port: str) -> None:
    commands = shape(LINK, delays, 1)
    assert [buckets(commands, rank) for rank in range(3)] == [{"eth0": 1e8}] * 3
    assert buckets(commands, None) == {f"{port}{rank}": 1e8 for rank in range(3)}


def test_an_unshaped_wire_has_no_token_bucket() -> None:
    commands = shape(Link(3, math.inf), False, 1)
    assert [buckets(commands, rank) for rank in (0, 1, 2, None)] == [{}] * 4
    assert lines(commands, 0) == ["tc qdisc replace dev eth0 root noqueue"], (
        "whatever stood there before is gone"
    )


def test_netem_delays_what_comes_from_a_worker_and_nothing_else() -> None:
    netem = [line for line in lines(shape(LINK, True, 1), None) if "netem" in line]
    assert [line.split()[4] for line in netem] == ["c0", "c1", "c2"]
    assert all("netem delay 2500us" in line for line in netem)
    hub = lines(build(3, True, str), None)
    # a bridge of its own leads from the worker's end to the delayed one, and the switch lies behind that
    wanted = ["ip link set h1 master d1 up", "ip link set c1 master d1 up", "ip link set b1 master br0 up"]
    assert [line for line in hub if "1 master" in line] == wanted


@pytest.mark.parametrize("rate_bps", [MIN_RATE_BPS, 1e8, 2.49e8, 2.5e8, 1e9, MAX_RATE_BPS])
def test_a_bucket_is_a_millisecond_deep_unless_it_must_hold_more(rate_bps: float) -> None:
    burst = burst_bytes(rate_bps)
    assert burst >= max(4 * ETHERNET_BYTES, rate_bps / 8 * 1e-3 - 1, 2**16 + 1 if rate_bps >= 2.5e8 else 0)
    # no wire gives away more than a whole segment, or a millisecond, whichever is more
    assert burst <= max(rate_bps / 8 * 1e-3 + 1, (80 << 10) if rate_bps >= 2.5e8 else (8 << 10))


STATUS = "Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{}\nSeccomp:\t0\n"


@pytest.mark.parametrize(
    ("effective", "enough"),
    [
        ("000001fffeffffff", True),  # root without CAP_SYS_RESOURCE
        ("00000000a80425fb", False),  # root in a container: neither CAP_NET_ADMIN nor CAP_SYS_ADMIN
        ("00000000a82425fb", False),  # and CAP_SYS_ADMIN
        ("00000000a82435fb", True),  # and CAP_NET_ADMIN
        ("0000000000000000", False),
    ],
)
def test_capabilities_decide_about_a_user_namespace(effective: str, enough: bool) -> None:
    assert privileged(STATUS.format(effective)) is enough


# A cluster from up to down


def walked(*python: str, folder: Path) -> dict[str, Any]:
    command = [*python, "-m", "tests.suite.links.tour"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def walked_by_me(copy: Path) -> dict[str, Any]:
    return walked(sys.executable, folder=ROOT)


def walked_by_nobody(copy: Path) -> dict[str, Any]:
    """The tour by a user without any privilege, from a copy of the files that this user can read."""
    require_system("setpriv")
    paths = (
        "reference_impls",
        "suite/__init__.py",
        "suite/links",
        "tests/__init__.py",
        "tests/suite/links/tour.py",
    )
    for name in paths:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        make = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        make(ROOT / name, copy / name)
    for path in [copy.parent, copy, *copy.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return walked(*AS_NOBODY, interpreter(), "-B", folder=copy)


def interpreter() -> str:
    """A Python that nobody can run: ours may lie in somebody's home."""
    check = 'exec "$0" -c "import sys; sys.exit(sys.version_info < (3, 11))"'
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        # by way of a shell, since setpriv itself still has the privileges that it gives away
        command = [*AS_NOBODY, "sh", "-c", check, python]
        if subprocess.run(command, capture_output=True, check=False, cwd="/").returncode == 0:
            return python
    return skip_or_fail("user nobody can run no Python of 3.11 or newer: install python3 for everybody")


@pytest.mark.usefixtures("possible")
@pytest.mark.parametrize(
    "walk", [walked_by_me, *([walked_by_nobody] if os.geteuid() == 0 else [])], ids=lambda walk: walk.__name__
)
def test_a_cluster_from_up_to_down(walk: Callable[[Path], dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory(prefix="bandwise-test-") as folder:
        seen = walk(Path(folder) / "copy")
    own_privileges = walk is walked_by_me and privileged(Path("/proc/self/status").read_text())
    assert seen["user_namespace"] is not own_privileges
    assert seen["inside"] == [["eth0", "lo"]] * 4
    assert len(set(seen["namespaces"])) == 4
    assert seen["first_rates"] == [[1e8, 1e8]] * 4
    assert seen["second_rates"] == [[1e9, 1e9]] * 4
    assert Link.from_dict(seen["link"]) == Link.parse(4, "1gbit", delay="10ms" if seen["delays"] else None)
    assert seen["reached_by"] == seen["reached_again_by"] == seen["addresses"][0]
    moved = seen["moved"]
    for data in (moved[0]["sent"], moved[3]["received"]):
        assert PAYLOAD_BYTES < data < 1.08 * PAYLOAD_BYTES
    for answers in (moved[3]["sent"], moved[0]["received"]):
        assert 0 < answers < 0.1 * PAYLOAD_BYTES  # acknowledgements
    assert moved[1]["sent"] == moved[2]["sent"] == 0
    assert [worker["dropped"] for worker in moved] == [0] * 4
    for seconds in seen["seconds_of_a_second"]:  # at 100 Mbit/s
        # no more than the share of payload in a full packet, and the two buckets' gifts; no less than TCP makes of it
        assert 1514 / 1448 * 0.98 < seconds < 1.3
    if seen["delays"]:
        assert seen["second_s"] > 2 * 0.020  # connection, and data with its answer: two round trips at least
    assert seen["keeper_after"] is False
    assert seen["namespaces_after"] == []
    assert seen["interfaces_after"] == seen["interfaces_before"]


# Systems that refuse


def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, script: str) -> None:
    """Put a program before the system's."""
    (tmp_path / program).write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


NO_NETEM = f"""case "$*" in
*netem*) echo "Error: Specified qdisc kind is unknown." >&2; exit 2;;
*) exec {find_program("tc")} "$@";;
esac"""


@pytest.mark.usefixtures("possible", "nothing_left")
@pytest.mark.parametrize(
    ("program", "script", "link", "kind", "message"),
    [
        (
            "tc", NO_NETEM, Link(2, 1e8, delay_s=1e-3), LinkError,
            "no netem .*kind is unknown.*sudo modprobe sch_netem.*leave the delay out",
        ),
        (
            "tc", "echo 'Specified qdisc kind is unknown.' >&2; exit 2", TWO, ClusterError,
            "tbf.*qdisc kind is unknown",
        ),
        (
            "ip", "echo 'RTNETLINK answers: Operation not permitted' >&2; exit 2", TWO, ClusterError,
            "no cluster can be made.*not permitted.*--doctor",
        ),
    ],
)  # fmt: skip
def test_a_system_that_refuses_is_quoted_and_nothing_stays(
    program: str, script: str, link: Link, kind: type[Exception], message: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with monkeypatch.context() as patched:
        fake(tmp_path, patched, program, script)
        with pytest.raises(kind, match=f"(?s){message}"):
            up(link)


@pytest.mark.usefixtures("possible", "nothing_left")
def test_with_netem_the_kernel_carries_every_packet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wires of a kernel that has netem. netem itself is left out, so that they can be tried on any kernel."""
    asked = tmp_path / "netem"
    false_tc = f"""case "$*" in
*netem*) echo "$*" >>{asked};;
"qdisc del dev lo root") ;;
*) exec {find_program("tc")} "$@";;
esac"""
    fake(tmp_path, monkeypatch, "tc", false_tc)
    with up(Link.parse(2, "100mbit", delay="3ms")) as made:
        assert made.delays
        assert transfer(made, 0, 1)[0] == made.addresses[0]
        made.shape(Link.parse(2, "200mbit", delay="4ms"))
        assert rates(made) == [[2e8, 2e8]] * 2
        lines = asked.read_text().splitlines()
        assert len({line.split("handle ")[1].split()[0] for line in lines[1:]}) == 2, "queues are made anew"
        delays = [line.split("delay ")[1].split()[0] for line in lines]
        assert delays == ["1ms", *["3000us"] * 2, *["4000us"] * 2]


# How it ends: with its owner, by `down`, by a crash; nothing of ours stays, nothing of others goes


@pytest.mark.usefixtures("possible", "nothing_left")
def test_a_cluster_ends_with_the_process_that_holds_it() -> None:
    code = (
        "import time; from suite.links.cluster import up; from suite.links.link import Link; "
        "print(*up(Link(2, 1e8)).networks, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        networks = owner.stdout.readline().split()
        keeper = Process.of(int(networks[0].split("/")[2]))
        names = set(map(os.readlink, networks))
        assert len(names) == 2
        owner.kill()
    assert keeper.wait_s(20)
    assert eventually(lambda: not names & held_namespaces())


@pytest.mark.usefixtures("possible", "nothing_left")
def test_a_keeper_that_was_killed_takes_all_along() -> None:
    made = up(TWO)
    names = {namespace(made.enter(rank)) for rank in range(2)}
    assert names <= held_namespaces()
    made._keeper.kill()
    made._keeper.wait(5)
    assert eventually(lambda: not names & held_namespaces())
    with pytest.raises(ClusterError, match=r"keeper has ended.*bring the cluster up again"):
        made.enter(0)
    made.down()
    made.down()  # once more is harmless
