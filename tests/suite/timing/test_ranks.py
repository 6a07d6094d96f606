"""Ranks here, and those that call from elsewhere: who is listened to, who is named where one is lost, nobody stays behind."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from suite.links.link import Link
from suite.timing.load import ClusterMeter, Snapshot
from suite.timing.ranks import TOKEN, RankLostError, Ranks, Switchboard, call, hear, tell
from suite.training.processes import interface_of
from tests.suite.timing.fakes import Loopback

FAKE = "tests.suite.timing.fake_rank"


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with Ranks(Loopback(Link(3, 1e9)), FAKE) as found:
        pids = found.pids
        yield found
    assert not any(running(pid) for pid in pids), "a rank outlived the session"


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_rank_that_died_is_named_not_those_that_lost_it(ranks: Ranks) -> None:
    """One that was killed: `test_rank`."""
    with pytest.raises(RankLostError, match=r"exit code 7 \(this was the last line\)") as lost:
        ranks.ask({"do": "die", "rank": 1}, 30)
    assert lost.value.rank == 1


def test_a_silent_rank_is_given_up(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suite.timing.ranks.STOP_S", 0.5)  # afterwards, when all are asked to end
    started = time.monotonic()
    with pytest.raises(RankLostError, match="rank 1 has not answered 'sleep' within 1 s"):
        ranks.ask({"do": "sleep", "rank": 1, "seconds": 60}, 1)
    assert time.monotonic() - started < 10


def test_a_command_that_cannot_be_started(tmp_path: Path) -> None:
    class Nowhere(Loopback):
        def enter(self, rank: int) -> tuple[str, ...]:
            return (str(tmp_path / "no-such-program"),) if rank else ()

    with pytest.raises(RankLostError, match="rank 1 could not be started"):
        Ranks(Nowhere(Link(2, 1e9)), FAKE)


# Ranks that call


@pytest.fixture
def board() -> Switchboard:
    return Switchboard("127.0.0.1")


@pytest.fixture
def called(board: Switchboard, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Connection]]:
    """The rank's end of two calls, the second rank's first."""
    ends = []
    for rank in (1, 0):
        for name, value in {TOKEN: board.token, "RANK": str(rank), "SLURMD_NODENAME": f"node-{rank}"}.items():
            monkeypatch.setenv(name, value)
        ends.append(call(board.where))
    yield ends[::-1]
    for end in ends:
        with contextlib.suppress(OSError):  # `serve` closes it at the same time
            end.close()


def serve(
    ends: list[Connection], reply: Callable[[int, Any], Mapping[str, Any] | None]
) -> list[threading.Thread]:
    """Answer as the ranks, until they are told to stop; one that replies None hangs up."""

    def go(rank: int) -> None:
        while (told := hear(ends[rank])) and told != {"do": "stop"} and (answer := reply(rank, told)):
            tell(ends[rank], answer)
        ends[rank].close()

    threads = [threading.Thread(target=go, args=(rank,), daemon=True) for rank in range(len(ends))]
    for thread in threads:
        thread.start()
    return threads


def test_replies_come_by_rank_and_stopping_ends_them(board: Switchboard, called: list[Connection]) -> None:
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
    board: Switchboard, called: list[Connection]
) -> None:
    fault = {"ok": False, "type": "RuntimeError", "error": "Connection closed by peer"}
    serve(called, lambda rank, command: None if rank else fault)
    ranks = board.ranks(2, lambda rank: f"task {rank}: Killed")
    with ranks:
        with pytest.raises(RankLostError) as lost:
            ranks.ask({"do": "block"}, 10)
        assert str(lost.value) == "rank 1 on node-1 has ended without a word (task 1: Killed)"


def test_a_fault_is_told_in_the_ranks_words(board: Switchboard, called: list[Connection]) -> None:
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
    stranger.close()
    own.close()


# The load of several machines


def counters(machine: str, busy: int, ours_s: float, clock_s: float) -> dict[str, Any]:
    return {"counters": asdict(Snapshot(busy, 0, ours_s, clock_s, 1.0, 2, machine))}


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


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == ""
