"""The commands that make a link: who gets which rate, what stands in a wire, and nothing that needs privileges."""

from __future__ import annotations

import math

import pytest

from suite.links import topology
from suite.links.link import MAX_RATE_BPS, MIN_RATE_BPS, Link
from suite.links.topology import (
    Command,
    Delay,
    addresses,
    build,
    burst_bytes,
    entry,
    privileged,
    shape,
)

LINK = Link(3, 1e8, down_bps=1e9, delay_s=2.5e-3, stragglers={1: 2e7})
HOLDERS = (101, 102, 103)
ETHERNET_BYTES = 1514


def lines(commands: list[Command], rank: int | None) -> list[str]:
    return [" ".join(command.argv) for command in commands if command.rank == rank]


def rates(commands: list[Command], rank: int | None) -> dict[str, float]:
    """device -> rate of its token bucket."""
    found = {}
    for line in lines(commands, rank):
        words = line.split()
        if "tbf" in words:
            found[words[words.index("dev") + 1]] = float(words[words.index("rate") + 1].removesuffix("bit"))
    return found


@pytest.mark.parametrize(("delay", "port"), [("none", "h"), ("netem", "b")])
def test_every_wire_has_its_rate_both_ways(delay: Delay, port: str) -> None:
    commands = shape(LINK, delay, 1)
    assert [rates(commands, rank) for rank in range(3)] == [{"eth0": 1e8}, {"eth0": 2e7}, {"eth0": 1e8}]
    assert rates(commands, None) == {f"{port}0": 1e9, f"{port}1": 2e7, f"{port}2": 1e9}


def test_a_new_setting_makes_new_queues() -> None:
    handles = {line.split()[line.split().index("handle") + 1] for line in lines(shape(LINK, "none", 26), 0)}
    assert handles == {"1a:"}
    assert all(
        "qdisc replace" in " ".join(command.argv) and "handle 1b:" in " ".join(command.argv)
        for command in shape(LINK, "netem", 27)
    )


def test_an_unshaped_wire_has_no_token_bucket_and_a_straggler_on_it_has_one() -> None:
    commands = shape(Link(3, math.inf, stragglers={1: 2e7}), "none", 1)
    assert [rates(commands, rank) for rank in range(3)] == [{}, {"eth0": 2e7}, {}]
    assert rates(commands, None) == {"h1": 2e7}
    assert lines(commands, 0) == [
        "tc qdisc replace dev eth0 root noqueue"
    ]  # whatever stood there before is gone


def test_netem_delays_what_comes_from_a_worker_and_nothing_else() -> None:
    netem = [line for line in lines(shape(LINK, "netem", 1), None) if "netem" in line]
    assert [line.split()[4] for line in netem] == ["c0", "c1", "c2"]
    assert all("netem delay 2500us" in line for line in netem)
    hub = lines(build(LINK, "netem", HOLDERS), None)
    # a bridge of its own leads from the worker's end to the delayed one, and the switch lies behind that
    assert "ip link set h1 master d1 up" in hub
    assert "ip link set c1 master d1 up" in hub
    assert "ip link set b1 master br0 up" in hub
    assert not [line for line in hub if "h1 master br0" in line]


def test_without_a_delay_the_worker_hangs_on_the_switch() -> None:
    hub = lines(build(LINK, "none", HOLDERS), None)
    assert "ip link add name h2 type veth peer name eth0 netns 103" in hub
    assert "ip link set h2 master br0 up" in hub
    assert not [line for line in hub if " c2" in line or " b2" in line]


def test_every_worker_has_its_address() -> None:
    assert addresses(3) == ("10.77.0.1", "10.77.0.2", "10.77.0.3")
    commands = build(LINK, "none", HOLDERS)
    assert "ip address add 10.77.0.2/24 dev eth0" in lines(commands, 1)
    assert "ip link set eth0 up" in lines(commands, 2)


@pytest.mark.parametrize("rate_bps", [MIN_RATE_BPS, 1e8, 2.49e8, 2.5e8, 1e9, MAX_RATE_BPS])
def test_a_bucket_is_a_millisecond_deep_unless_it_must_hold_more(rate_bps: float) -> None:
    burst = burst_bytes(rate_bps)
    assert burst >= 4 * ETHERNET_BYTES
    assert burst >= rate_bps / 8 * 1e-3 - 1
    # no wire gives away more than a whole segment, or a millisecond, whichever is more
    assert burst <= max(rate_bps / 8 * 1e-3 + 1, 80 << 10)
    if rate_bps < 2.5e8:
        assert burst <= max(rate_bps / 8 * 1e-3 + 1, 8 << 10)
    else:
        assert burst > 1 << 16


def test_more_rate_never_has_a_shallower_bucket() -> None:
    depths = [burst_bytes(rate_bps) for rate_bps in (1e7, 3e7, 1e8, 2e8, 2.5e8, 1e9, 3e9, 1e10)]
    assert depths == sorted(depths)


ANSWER = """[{},{"ifname":"eth0","stats64":{
 "rx":{"bytes":1000,"packets":10,"errors":0,"dropped":1,"over_errors":0,"multicast":0},
 "tx":{"bytes":70000,"packets":2,"errors":0,"dropped":3,"carrier_errors":0,"collisions":0}}}]"""


def test_counters_are_read_from_what_ip_answers() -> None:
    found = topology.parse_counters(ANSWER)
    assert found == topology.Counters(1000, 70000, 10, 2, 4)
    assert found - topology.Counters(1, 2, 3, 1, 4) == topology.Counters(999, 69998, 7, 1, 0)


STATUS = "Name:\tpython\nCapPrm:\t000001ffffffffff\nCapEff:\t{}\nSeccomp:\t0\n"


@pytest.mark.parametrize(
    ("effective", "enough"),
    [
        ("000001ffffffffff", True),  # root
        ("000001fffeffffff", True),  # root without CAP_SYS_RESOURCE
        ("00000000a80425fb", False),  # root in a container: neither CAP_NET_ADMIN nor CAP_SYS_ADMIN
        ("00000000a82425fb", False),  # and CAP_SYS_ADMIN
        ("00000000a82435fb", True),  # and CAP_NET_ADMIN
        ("0000000000000000", False),
    ],
)
def test_capabilities_decide_about_a_user_namespace(effective: str, enough: bool) -> None:
    assert privileged(STATUS.format(effective)) is enough


def test_a_user_namespace_is_entered_only_where_there_is_one() -> None:
    assert entry(7, user_namespace=False)[1:] == ("--net=/proc/7/ns/net",)
    assert entry(7, user_namespace=True)[1:] == (
        "--user=/proc/7/ns/user",
        "--preserve-credentials",
        "--net=/proc/7/ns/net",
    )
