"""The pictures of speed: what is drawn, what is not, and whether it can be read."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from report.drawing.svg import svg_file
from report.study.data import load
from report.study.step_time import Bar, Ratio, Stack, bars, forest, phases, stacks
from tests.report import made_up_speed as fast


@pytest.fixture(scope="module")
def study(timed):
    return load(timed.root, "made-up")


def test_a_bar_is_its_phases(study):
    link = study.sessions[0].links[0]
    found = {s.name: s for s in stacks(link)}
    assert set(found) == {r["case"] for r in link.cases} - {"DDP fp32, 1 MB buckets"}
    own, method = found[fast.REFERENCE], found["qsr-sgd: step"]
    assert (own.split, method.split) == (False, True)
    assert own.seconds["compute"] + own.seconds["exposed"] == pytest.approx(own.step)
    assert method.seconds["update"] == pytest.approx(0.0006)
    axes = phases([own, method]).axes[0]
    ends = {round(p.get_x() + p.get_width(), 6) for p in axes.patches}
    assert round(1e3 * sum(own.seconds.values()), 6) in ends
    assert [t.get_text() for t in axes.get_yticklabels()] == ["qsr-sgd: step", fast.REFERENCE]
    assert axes.get_xlabel() == "milliseconds a step"
    slow = phases([replace(own, step=9.0, high=None)]).axes[0]
    assert slow.get_xlabel() == "seconds a step"


def test_exposed_communication_below_zero_is_no_bar():
    stack = Stack("quiet", "control", {"compute": 0.01, "exposed": -0.002}, 0.0095, None, None, True)
    assert [p.get_width() for p in phases([stack]).axes[0].patches] == [pytest.approx(10.0)]
    assert stack.reach == pytest.approx(0.01)


def test_speed_alone_shows_every_kind_of_step_and_torchs_own(study):
    session = next(s for s in study.sessions if s.sweep is None)
    found = {b.name: b for b in bars(session.links[0])}
    assert set(found) == {
        "lion-cub-1bit", "apmsqueeze: compressed", "apmsqueeze: warm-up", "global-qsgd", "allreduce-sgd",
        fast.REFERENCE, fast.DEFAULT, fast.POWERSGD,
    }  # fmt: skip
    assert found["lion-cub-1bit"].over_reference == Ratio(
        4.6, pytest.approx(4.6 * 0.97), pytest.approx(4.6 * 1.03)
    )
    assert found["lion-cub-1bit"].over_default.value == pytest.approx(9.2)
    axes = forest(list(found.values()), fast.REFERENCE).axes[0]
    assert axes.get_yticklabels()[0].get_text() == "lion-cub-1bit"
    assert {"4.60×", "9.20×"} <= {t.get_text() for t in axes.texts}
    assert axes.get_xlabel() == f"times faster a step; 1× = {fast.REFERENCE}"


def test_a_speedup_without_interval_has_no_line():
    bar = Bar("few", "sign", Ratio(2.0, None, None), None)
    axes = forest([bar], "it").axes[0]
    assert sum(len(line.get_xdata()) == 2 and list(line.get_ydata()) == [0, 0] for line in axes.lines) == 0
    assert "–" in {t.get_text() for t in axes.texts}


@pytest.mark.full
def test_the_same_bytes_each_time(study):
    link = study.sessions[0].links[0]
    for make in (lambda: phases(stacks(link)), lambda: forest(bars(link), "it")):
        first = svg_file(make())
        assert svg_file(make()) == first
        ElementTree.fromstring(first)
        assert "<image" not in first
