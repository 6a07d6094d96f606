"""Who used the processors: from made-up counters, and of a process that is made busy here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from suite.timing.load import Load, Meter, cpu_seconds, descendants
from suite.timing.spec import Limits

LIMITS = Limits(foreign_share=0.15, steal_share=0.05, retries=2)


class FakeMachine:
    """A /proc of two processors: seconds pass by hand, ticks are set by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 100.0
        self.ours = {10: 5.0, 11: 2.0}
        names = ("user", "nice", "system", "idle", "irq", "softirq", "steal")
        self.counts = dict(zip(names, (1000, 0, 500, 9000, 7, 30, 40), strict=True))
        self.pass_(0)

    def pass_(self, seconds: float, **more: int) -> None:
        """Let time pass, with so many ticks more of each sort."""
        self.now += seconds
        for name, count in more.items():
            self.counts[name] += count
        c = self.counts
        line = f"cpu  {c['user']} {c['nice']} {c['system']} {c['idle']} 0 {c['irq']} {c['softirq']} {c['steal']} 0 0\n"
        (self.folder / "stat").write_text(line + "cpu0 1 2 3\n")
        (self.folder / "loadavg").write_text("1.25 0.50 0.10 1/100 999\n")

    def while_passing(self, seconds: float, ours: Mapping[int, float] = {}, **more: int) -> Load:
        """The load of a time in which so many ticks more come, and of our processes so many seconds."""
        meter = Meter(
            proc=self.folder, cores=2, cpu=self.ours.__getitem__, clock=lambda: self.now, pids=[10, 11]
        )
        before = meter.snapshot()
        for pid, own in ours.items():
            self.ours[pid] += own
        self.pass_(seconds, **more)
        return meter.since(before)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    monkeypatch.setattr(os, "sysconf", lambda name: 100)
    return FakeMachine(tmp_path)


def test_what_is_neither_ours_nor_an_interrupt_is_foreign(fake: FakeMachine) -> None:
    ticks = {"user": 100, "nice": 10, "system": 50, "idle": 20, "irq": 5, "softirq": 15}
    load = fake.while_passing(1.0, {10: 0.7, 11: 0.5}, **ticks)
    assert load.foreign_share == pytest.approx((1.6 - 1.2) / 2)
    assert load.steal_share == 0
    assert load.resolution == pytest.approx(0.01)
    assert load.load_average == 1.25
    assert load.disturbed(LIMITS) == "others used 20% of the processors"


def test_stolen_time(fake: FakeMachine) -> None:
    load = fake.while_passing(1.0, steal=14, idle=186)
    assert load.steal_share == pytest.approx(0.07)
    assert load.disturbed(LIMITS) == "the host took 7% of the processors away"


def test_a_short_block_is_not_blamed_for_what_ticks_cannot_tell(fake: FakeMachine) -> None:
    """In 40 ms two processors have 8 ticks: one tick of somebody else's on each is what any block may meet."""
    load = fake.while_passing(0.04, user=3)
    assert load.foreign_share == pytest.approx(3 / 8)
    assert load.resolution == pytest.approx(2 / 8)
    assert load.disturbed(LIMITS) == ""
    assert fake.while_passing(0.04, user=5).disturbed(LIMITS)


def test_descendants_are_found_by_their_parents(tmp_path: Path) -> None:
    for pid, parent, name in ((1, 0, "init"), (5, 1, "a b) c"), (6, 5, "x"), (7, 6, "y"), (8, 1, "z")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} 0 0")
    (tmp_path / "9").mkdir()  # it has ended
    assert descendants(5, tmp_path) == [5, 6, 7]


def test_a_childs_work_is_ours() -> None:
    """A child that computes for a while: its seconds are found from outside, and taken off what is foreign."""
    code = (
        "import time\nprint(flush=True)\nend = time.process_time() + 0.4\n"
        "while time.process_time() < end: pass\nprint(flush=True)\ninput()"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    with child:
        child.stdout.readline()
        meter = Meter()
        meter.find()
        assert {os.getpid(), child.pid} <= set(meter.pids)
        before, theirs = meter.snapshot(), cpu_seconds(child.pid)
        child.stdout.readline()
        used = cpu_seconds(child.pid) - theirs
        ours = meter.snapshot().ours_s - before.ours_s
        child.stdin.write(b"\n")
        child.stdin.flush()
    assert 0.35 < used < 0.6
    assert ours >= used - 0.01
    with pytest.raises(OSError, match=r"Invalid argument|No such process"):
        cpu_seconds(child.pid)
