"""Which steps a block counts, and that its numbers add up; on scripted steps and a clock that is told the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest
import torch

from suite.timing import subject as module
from suite.timing.store import Case, Mode
from suite.timing.subject import NoSuchStepError, Stepping, Subject

STEP_S = (1.0, 2.0, 4.0, 8.0)


class Clock:
    """Stands in for the time module."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def process_time(self) -> float:
        return self.now / 2


class Scripted(Subject):
    """Steps of the kinds given, over and over, which take `STEP_S` in turn; half of it is encoding."""

    def __init__(self, case: Case, kinds: Sequence[str], clock: Clock) -> None:
        super().__init__(case)
        self.kinds = kinds
        self.clock = clock
        self.batches: list[float] = []
        self.collecting: list[bool] = []

    @contextmanager
    def stepping(self, mode: Mode) -> Iterator[Stepping]:
        encoded = 0.0

        def step(batch: Sequence[torch.Tensor]) -> None:
            nonlocal encoded
            seconds = STEP_S[len(self.batches) % len(STEP_S)]
            encoded += seconds / 2
            self.clock.now += seconds
            self.batches.append(batch[0].item())
            self.collecting.append(gc.isenabled())

        yield Stepping(
            step,
            lambda: self.kinds[(len(self.batches) - 1) % len(self.kinds)],
            lambda: {"encode": encoded} if mode == "serial" else None,
        )

    def traffic(self, mode: Mode, kinds: Mapping[str, int]) -> tuple[float, float]:
        return 10.0, 20.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    told = Clock()
    monkeypatch.setattr(module, "time", told)
    return told


def case(kind: str = "step", unit_steps: int = 1) -> Case:
    return Case("method", "a case", kind, unit_steps, "allreduce-sgd", {})


BATCHES = [[torch.tensor(float(i))] for i in range(3)]


def test_every_step_counts_where_all_are_of_the_kind(clock: Clock) -> None:
    subject = Scripted(case(), ["step"], clock)
    block = subject.block("run", 4, BATCHES)
    assert block.unit_seconds == (1.0, 2.0, 4.0, 8.0)
    assert block.kinds == {"step": 4}
    assert block.phases is None
    assert block.cpu_s == 15.0 / 2
    assert (block.wire_bytes, block.received_bytes) == (10.0, 20.0)
    assert subject.batches == [0, 1, 2, 0]


def test_steps_of_another_kind_are_passed_by(clock: Clock) -> None:
    block = Scripted(case("sync"), ["step", "step", "sync"], clock).block("serial", 2, BATCHES)
    assert block.unit_seconds == (4.0, 2.0)  # steps 3 and 6
    assert block.kinds == {"step": 4, "sync": 2}
    assert block.phases == {"encode": 1.5, "other": 1.5}


@pytest.mark.parametrize(
    ("length", "unit", "kinds", "units", "unit_seconds", "counts"),
    [
        (2, 2, ["local", "average"], 3, (3, 12, 3), {"average": 3, "local": 3}),
        # a round that was cut short does not count
        (
            4,
            4,
            ["local", "average", "local", "local", "local", "average"],
            1,
            (15,),
            {"average": 2, "local": 4},
        ),
        # of a model in two fragments a unit is two rounds, and begins and ends with whole ones
        (2, 4, ["average", *["local", "average"] * 4], 2, (15, 15), {"average": 5, "local": 4}),
        (2, 4, [*["average"] * 3, *["local", "average"] * 2], 1, (15,), {"average": 5, "local": 2}),
    ],
)
def test_a_unit_of_rounds_is_the_last_steps_of_whole_ones(
    clock: Clock,
    length: int,
    unit: int,
    kinds: list[str],
    units: int,
    unit_seconds: Sequence[float],
    counts: dict[str, int],
) -> None:
    block = Scripted(case(f"round-{length}", unit), kinds, clock).block("run", units, BATCHES)
    assert (block.unit_seconds, block.kinds) == (unit_seconds, counts)


def test_a_kind_that_never_comes_is_said(clock: Clock) -> None:
    subject = Scripted(case("sync"), ["step"], clock)
    with pytest.raises(NoSuchStepError, match=r"0 of 2 units of 'sync'.*24 step\b"):
        subject.block("run", 2, BATCHES)
    assert len(subject.batches) == 8 * 2 + 8
    assert gc.isenabled()


def test_the_collector_is_off_while_steps_are_timed_and_the_start_is_not_timed(clock: Clock) -> None:
    subject = Scripted(case(), ["step"], clock)

    def barrier() -> None:
        assert not gc.isenabled()
        clock.now += 100.0

    block = subject.block("run", 2, BATCHES, barrier)
    assert block.unit_seconds == (1.0, 2.0)
    assert subject.collecting == [False, False]
    assert gc.isenabled()
