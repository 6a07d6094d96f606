"""Calibration: which exchanges are made on which link, what is repeated, and the rows that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from suite.analysis.tables import rows_of, to_csv
from suite.costs import prices
from suite.costs.columns import CALIBRATION
from suite.costs.prices import LONGEST_S, SIZES, Grid, calibrate
from suite.links.link import Link
from suite.links.probe import COLLECTIVES as KINDS
from tests.suite.timing.fakes import BUSY, QUIET, FakeMeter, FakePlace


class Ranks:
    """Answers every exchange with a tenth of a second."""

    shrunk = 0

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.stopped = False

    def ask(self, command: Mapping[str, Any], timeout_s: float) -> list[dict[str, Any]]:
        self.asked.append(command)
        measured = {
            "what": command["what"],
            "bytes": self.shrunk or int(command["nbytes"]),
            "seconds": [0.1] * command["repeats"],
            "bits_per_s": 1.0,
        }
        return [{"measurement": measured}] * 2

    def stop(self) -> None:
        self.stopped = True


def held(
    links: list[Link], monkeypatch: pytest.MonkeyPatch, load: Any = lambda number: QUIET
) -> tuple[list[Any], list[Ranks]]:
    started: list[Ranks] = []

    def start(place: Any) -> Ranks:
        started.append(Ranks())
        return started[-1]

    meter = FakeMeter(load)
    monkeypatch.setattr(prices, "Meter", lambda: meter)
    return rows_of(calibrate(links, place=FakePlace, start=start)), started  # type: ignore[arg-type]


def test_every_collective_in_every_size_that_a_link_carries_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, (ranks,) = held([Link(4, 1e9), Link(4, 10e6)], monkeypatch)
    assert ranks.stopped
    fast = [row for row in rows if row["rate_mbit"] == 1000.0]
    slow = [row for row in rows if row["rate_mbit"] == 10.0]
    assert {row["what"] for row in fast} == set(KINDS) == {row["what"] for row in slow}
    assert len([row for row in fast if row["what"] == "all-reduce fp32"]) == len(SIZES)
    most = max(int(row["bytes"]) for row in slow if row["what"] == "all-reduce fp32")
    assert 8 * 1.5 * most / 10e6 <= LONGEST_S
    assert all(int(row["bytes"]) % (4 * 4096) == 0 for row in rows)  # whole pieces, so that names stay unique
    to_csv(CALIBRATION, rows)  # keys are unique, kinds are right


@pytest.mark.parametrize("n", [2, 3, 6, 8, 16])
def test_no_exchange_is_measured_twice(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = held([Link(n, float("inf"))], monkeypatch)
    to_csv(CALIBRATION, rows)


def test_a_message_that_was_made_smaller_is_no_second_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "shrunk", 4096 * 4)
    rows, _ = held([Link(4, 1e9)], monkeypatch)
    assert len(rows) == len(KINDS)
    to_csv(CALIBRATION, rows)


def test_rows_are_kept_after_every_link(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr(prices, "Meter", lambda: FakeMeter(lambda number: QUIET))
    calibrate(
        [Link(2, 1e9), Link(2, 1e8)],
        place=FakePlace,
        start=lambda place: Ranks(),  # type: ignore[arg-type, return-value]
        keep=lambda so_far: kept.append(len(so_far)),
    )
    assert len(kept) == 2
    assert 0 < kept[0] < kept[1]


def test_an_unshaped_link_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = held([Link(2, float("inf"))], monkeypatch)
    assert {row["rate_mbit"] for row in rows} == {None}
    assert {row["delay_ms"] for row in rows} == {0.0}


def test_links_of_as_many_workers_share_a_cluster_unless_one_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    links = Grid(worlds=(2, 4), rates_bps=(1e8, 1e9), delays_s=(0.01,), delayed_rates_bps=(1e8,)).links()
    assert [(link.workers, link.delay_s) for link in links] == [(2, 0), (2, 0), (4, 0), (4, 0), (4, 0.01)]
    _, started = held(links, monkeypatch)
    assert len(started) == 3


def test_what_is_disturbed_is_taken_again_and_left_out_if_it_stays_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = held([Link(2, 1e9)], monkeypatch, lambda number: BUSY if number == 0 else QUIET)
    quiet = held([Link(2, 1e9)], monkeypatch)
    assert len(once[0]) == len(quiet[0])
    assert len(once[1][0].asked) == len(quiet[1][0].asked) + 1
    assert held([Link(2, 1e9)], monkeypatch, lambda number: BUSY)[0] == []
