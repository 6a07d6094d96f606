"""Readings in turns and what is made of them, with runs whose seconds are known."""

from __future__ import annotations

import time

import pytest

from suite.micro import pairs
from suite.micro.pairs import Pairs, in_turns, reading, repetitions, verdict


class Clock:
    """Stands still except for what runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def run(self, name: str, seconds: float):
        def go() -> None:
            self.calls.append(name)
            self.now += seconds

        return go


def test_own_readings_stand_between_two_of_the_control(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    control, own = clock.run("c", 0.004), clock.run("o", 0.002)
    found = in_turns(control, own, budget_s=100.0, most=7)
    assert found.n == 7
    assert found.ratios() == pytest.approx([2.0] * 7)
    assert "".join(clock.calls[-15:]) == "co" * 7 + "c"


def test_a_rising_control_is_met_in_its_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    seconds = iter([0.01] * 3 + [0.010, 0.014, 0.026])

    def control() -> None:
        clock.now += next(seconds)

    found = in_turns(control, clock.run("o", 0.002), budget_s=0.0, least=2)
    assert found.control_s == pytest.approx((0.012, 0.020))


def test_the_budget_ends_it_once_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    slow = in_turns(clock.run("c", 1.0), clock.run("o", 1.0), budget_s=2.0, least=6)
    assert slow.n == 6
    quick = in_turns(clock.run("c", 0.1), clock.run("o", 0.1), budget_s=3.0, least=6)
    assert quick.n == 15


def test_short_runs_are_repeated_within_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    run = clock.run("o", 1e-5)
    assert repetitions(run) == 50
    assert reading(run, 50) == pytest.approx(1e-5)
    assert (
        repetitions(run, prepare=clock.run("p", 1.0)) == 1
    )  # what has to be prepared each time is not repeated


def test_what_is_prepared_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    found = in_turns(
        clock.run("c", 0.01), clock.run("o", 0.01), budget_s=0.0, prepare_own=clock.run("p", 5.0)
    )
    assert found.own_s == pytest.approx((0.01,) * found.n)


@pytest.mark.parametrize(
    ("ratio", "spread", "n", "met"),
    [
        (1.0, 0.0, 20, "yes"),
        (0.98, 0.0, 20, "yes"),
        (0.96, 0.0, 20, "no"),
        (1.0, 0.2, 20, "undecided"),
        (2.0, 0.0, 19, "undecided"),
        (2.0, 0.0, 5, "undecided"),
    ],
)
def test_verdicts(ratio: float, spread: float, n: int, met: str) -> None:
    ratios = [ratio * (1 + spread * (i / (n - 1) - 0.5)) for i in range(n)]
    found = Pairs(tuple(ratios), (1.0,) * n)
    cells = found.ratio_cells("rate")
    assert cells["rate"] == pytest.approx(ratio)
    assert verdict(cells, "rate", n, 1.0) == met
    assert verdict(cells, "rate", n, None) is None


def test_quartiles_are_of_the_ratios() -> None:
    found = Pairs((1.0, 2.0, 3.0, 4.0, 5.0), (1.0,) * 5)
    assert found.ratio_cells("x") == {"x": 3.0, "x_q1": 2.0, "x_q3": 4.0, "x_low": None, "x_high": None}
    assert pairs.ENOUGH == 20
