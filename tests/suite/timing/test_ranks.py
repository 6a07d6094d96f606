"""The rank processes: replies in order, the first to blame where one is lost, nobody left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from suite.links.link import Link
from suite.timing.ranks import RankLostError, Ranks
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


@pytest.mark.parametrize(
    ("how", "said"), [("signal", "signal SIGKILL"), ("exit", "exit code 7 (this was the last line)")]
)
def test_the_rank_that_died_is_named_not_those_that_lost_it(ranks: Ranks, how: str, said: str) -> None:
    with pytest.raises(RankLostError) as lost:
        ranks.ask({"do": "die", "rank": 1, "how": how}, 30)
    assert lost.value.rank == 1
    assert said in str(lost.value)
    assert "this was the last line" in str(lost.value)


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
