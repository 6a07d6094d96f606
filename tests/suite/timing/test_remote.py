"""Ranks that call from elsewhere: who is listened to, who is named where one is lost, whose load counts, what the record has."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from suite.links.link import Link, RealLink
from suite.timing.load import ClusterMeter
from suite.timing.ranks import TOKEN, RankLostError, RealCluster, RemoteRanks, Switchboard, call
from suite.timing.session import TRIED_BYTES, Session
from suite.training.processes import interface_of
from tests.suite.timing.fakes import QUIET, FakeMeter, FakeRanks, session_spec

LINK = RealLink(2, math.inf, nodes=2, ranks_per_node=1, interface="ib0")
Called = tuple[IO[str], IO[str]]


@pytest.fixture
def board() -> Switchboard:
    return Switchboard("127.0.0.1")


@pytest.fixture
def called(board: Switchboard, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Called]]:
    """The rank's end of two calls, the second rank's first."""
    ends = []
    for rank in (1, 0):
        for name, value in {TOKEN: board.token, "RANK": str(rank), "SLURMD_NODENAME": f"node-{rank}"}.items():
            monkeypatch.setenv(name, value)
        ends.append(call(board.where))
    yield ends[::-1]
    for end in (stream for pair in ends for stream in pair if not stream.closed):
        end.close()


def serve(
    ends: list[Called], reply: Callable[[int, Any], Mapping[str, Any] | None]
) -> list[threading.Thread]:
    """Answer as the ranks, until they are told to stop; one that replies None hangs up."""

    def go(rank: int) -> None:
        commands, replies = ends[rank]
        for line in iter(commands.readline, ""):
            told = json.loads(line)
            answer = None if told == {"do": "stop"} else reply(rank, told)
            if answer is None:
                break
            replies.write(json.dumps(answer) + "\n")
            replies.flush()
        for stream in ends[rank]:
            stream.close()

    threads = [threading.Thread(target=go, args=(rank,), daemon=True) for rank in range(len(ends))]
    for thread in threads:
        thread.start()
    return threads


def test_replies_come_by_rank_and_stopping_ends_them(board: Switchboard, called: list[Called]) -> None:
    serving = serve(
        called, lambda rank, command: {"ok": True, "rank": rank, "long": "x" * 300_000, **command}
    )
    with board.ranks(2) as ranks:
        assert [caller.node for caller in ranks.callers] == ["node-0", "node-1"]
        for value in (1, 2):
            replies = ranks.ask({"do": "echo", "value": value}, 10)
            assert [(reply["rank"], reply["value"]) for reply in replies] == [(0, value), (1, value)]
    for thread in serving:
        thread.join(10)
    assert not any(thread.is_alive() for thread in serving), "ranks are told to stop"


def test_the_rank_that_hangs_up_is_named_not_those_that_lost_it(
    board: Switchboard, called: list[Called]
) -> None:
    fault = {"ok": False, "type": "RuntimeError", "error": "Connection closed by peer"}
    serve(called, lambda rank, command: None if rank else fault)
    ranks = board.ranks(2, lambda rank: f"task {rank}: Killed")
    with ranks:
        with pytest.raises(RankLostError) as lost:
            ranks.ask({"do": "block"}, 10)
        assert str(lost.value) == "rank 1 on node-1 has ended without a word (task 1: Killed)"


def test_a_fault_is_told_in_the_ranks_words(board: Switchboard, called: list[Called]) -> None:
    serve(called, lambda rank, command: {"ok": not rank, "type": "RuntimeError", "error": "made up"})
    with board.ranks(2) as ranks, pytest.raises(RankLostError, match="faulted: RuntimeError: made up"):
        ranks.ask({"do": "block"}, 10)


def test_a_rank_that_does_not_call_is_named_and_strangers_are_not_listened_to(
    board: Switchboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv(TOKEN, "of another session")
    stranger = call(board.where)
    monkeypatch.setenv(TOKEN, board.token)
    monkeypatch.setenv("RANK", "0")
    own = call(board.where)
    address, port = board.where.split(":")
    with (
        socket.create_connection((address, int(port))) as scanner,
        pytest.raises(RankLostError, match=r"rank 1 has not called the session within 0\.5 s"),
    ):
        scanner.sendall(b"GET / HTTP/1.1\n")
        board.ranks(2, timeout_s=0.5)
    for stream in (*stranger, *own):
        stream.close()


# The load of several machines


def counters(machine: str, busy: int, ours_s: float, clock_s: float, cores: int = 2) -> dict[str, Any]:
    return {
        "machine": machine, "busy": busy, "stolen": 0, "ours_s": ours_s, "clock_s": clock_s, "cores": cores, "load": 1.0,
    }  # fmt: skip


def test_a_block_is_as_disturbed_as_on_the_worst_machine() -> None:
    """Of two ranks on one machine neither is foreign to the other; on the second machine somebody else computes."""
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    second = round(1 / tick_s)
    before = [counters("a", 0, 0.0, 5.0), counters("a", 0, 3.0, 5.0), counters("b", 70, 1.0, 9.0)]
    after = [
        counters("a", 2 * second, 1.0, 6.0),
        counters("a", 2 * second, 4.0, 6.0),
        counters("b", 70 + 2 * second, 2.0, 10.0),
    ]
    told = iter([before, after])
    meter = ClusterMeter(lambda command: next(told))
    load = meter.since(meter.snapshot())
    assert load.foreign_share == pytest.approx(0.5), "one of two processors of b for the whole second"
    assert load.resolution == pytest.approx(tick_s)


# The session over such ranks


class RealRanks(FakeRanks):
    """Stand-ins on a network of 64 Mbit/s, whose small messages take no time worth the name."""

    RATE_BPS = 64e6

    def _answer(self, command: Mapping[str, Any], slow: float, rank: int) -> dict[str, Any]:
        if command["do"] == "collective":
            seconds = 8 * command["nbytes"] / self.RATE_BPS
            return {"measurement": {"seconds": [seconds], "bits_per_s": self.RATE_BPS}}
        if command["do"] == "probe":
            ring = {"what": "all-reduce fp32", "bytes": 9, "seconds": [1.0], "bits_per_s": 60e6}
            trip = {"what": "round-trip 0-1", "bytes": 4, "seconds": [4e-4, 2e-4, 9e-4], "bits_per_s": 1e5}
            return {"measurements": [trip, {**ring, "bytes": 8, "bits_per_s": 70e6}, ring]}
        return super()._answer(command, slow, rank)


class Nodes(RealCluster):
    """A cluster of real nodes whose ranks are stand-ins."""

    def __init__(self) -> None:
        super().__init__(LINK, RealRanks())  # type: ignore[arg-type]

    @property
    def machine(self) -> dict[str, Any]:
        return {"cores": 8, "nodes": 2, "machines": 2, "device": "cpu", "backend": "gloo"}


def held(folder: Path, place: Callable[[Link], Any]) -> dict[str, Any]:
    spec = session_spec(folder).over(LINK)
    meter = FakeMeter(lambda number: QUIET)
    return Session(spec, folder, lambda text: None, place, lambda cluster: cluster.ranks, meter).run()


def test_a_session_between_nodes_has_one_link_and_what_was_measured_of_it(tmp_path: Path) -> None:
    nodes = Nodes()
    record = held(tmp_path, lambda link: nodes)
    assert (record["status"], record["reason"]) == ("done", "")
    (link,) = record["links"]
    assert link["label"] == "real, 2 x 1 over ib0"
    assert link["link"]["rate_bps"] is None
    assert link["link"]["real"] == {
        "nodes": 2, "ranks_per_node": 1, "interface": "ib0", "backend": "gloo", "device": "cpu",
        "rate_bps": 60e6, "delay_s": 2e-4,
    }  # fmt: skip
    assert record["machine"]["emulated"] is False
    assert (record["machine"]["nodes"], record["machine"]["cores"]) == (2, 8)
    assert {run["arm"] for run in link["direct"]} == {"local"}, "whole runs are on this link too"
    asked = nodes.ranks.asked  # type: ignore[attr-defined]
    tried = [command["nbytes"] for command in asked if command["do"] == "collective"]
    assert tried == [TRIED_BYTES[0], 8 * TRIED_BYTES[0]], "larger until an exchange tells something"
    assert next(command for command in asked if command["do"] == "probe")["rate_bps"] == RealRanks.RATE_BPS


def test_the_machines_are_counted_by_their_kernels(board: Switchboard, called: list[Called]) -> None:
    """Two nodes in one machine share its cores, and nobody may count them twice."""
    ranks = board.ranks(2)
    machine = RealCluster(LINK, ranks).machine
    cores = len(os.sched_getaffinity(0))
    assert isinstance(ranks, RemoteRanks)
    assert (machine["nodes"], machine["machines"], machine["cores"]) == (2, 1, cores)
    assert machine["oversubscription"] == 2 / cores
    for stream in (stream for pair in called for stream in pair):
        stream.close()
    ranks.stop()


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == ""
