"""The pictures of speed: what is drawn, what is not, and whether it can be read."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from report.drawing.svg import svg_file
from report.study.data import load
from report.study.marks import Point, front, stairs
from report.study.speedup import hover, pictures, speedups
from report.study.step_time import Bar, Ratio, Stack, bars, forest, phases, stacks
from tests.report import made_up_speed as fast


@pytest.fixture(scope="module")
def study(timed):
    return load(timed.root, "made-up")


@pytest.fixture(scope="module")
def shown(study):
    return pictures(study)


def of(shown, link, sharding):
    return next(p for p in shown if (p.link, p.panel.sharding) == (link, sharding))


def point(name, x, y, family="sign"):
    return Point(name, family, x, x, x, y, None, None, name)


def test_one_panel_a_link_and_sharding_link_beside_link(shown):
    assert [(p.link, p.panel.sharding) for p in shown] == [
        (fast.SLOW, "iid"), (fast.FAST, "iid"), (fast.SLOW, "by-class"), (fast.FAST, "by-class")
    ]  # fmt: skip


def test_a_sharding_that_was_not_timed_has_no_panel(study):
    session = study.sessions[0]
    links = [replace(k, arms=[r for r in k.arms if r["sharding"] == "iid"]) for k in session.links]
    found = pictures(replace(study, sessions=(replace(session, links=links),)))
    assert [(p.link, p.panel.sharding) for p in found] == [(fast.SLOW, "iid"), (fast.FAST, "iid")]


@pytest.mark.parametrize("link", fast.LINKS)
@pytest.mark.parametrize("sharding", ["iid", "by-class"])
def test_every_arm_is_drawn_where_it_was_measured_or_named(study, shown, link, sharding):
    picture = of(shown, link, sharding)
    rows = {r["arm"]: r for r in picture.panel.summary}
    for mark in picture.marks:
        name = next(n for n in rows if n.removeprefix("control-") == mark.arm)
        assert mark.x == pytest.approx(fast.speedup(name, link))
        assert (mark.x_low, mark.x_high) == pytest.approx((0.97 * mark.x, 1.03 * mark.x))
        assert (mark.y, mark.low, mark.high) == tuple(
            rows[name][c] if rows[name]["baseline"] else v
            for c, v in (("diff_mean", 0.0), ("diff_low", None), ("diff_high", None))
        )
    absent = " ".join(picture.absent)
    drawn = {m.arm for m in picture.marks}
    for name in rows:
        assert (name.removeprefix("control-") in drawn) != (name in absent), name


def test_what_was_refused_is_never_drawn_and_what_is_unconfirmed_is_hollow(shown):
    picture = of(shown, fast.FAST, "by-class")
    texts = {t.get_text() for axes in speedups([picture], 1).figure.axes for t in axes.texts}
    assert not [t for t in texts if t.startswith(("local-sgd H=16", "qsr-sgd"))]
    assert [mark.arm for mark in picture.marks if mark.doubtful] == ["apmsqueeze"]
    assert "local-sgd H=4" in texts
    assert picture.absent == [
        "local-sgd H=16 (no steps of the kind sync were timed)",
        "qsr-sgd (no pair of runs finished: 6 diverged)",
    ]
    assert {"apmsqueeze (5 of 6)", "local-sgd H=16"} <= {
        m.text for m in of(shown, fast.SLOW, "by-class").marks
    }


def test_beside_each_other_the_axes_are_the_same_and_names_cover_nothing(shown):
    figure = speedups(shown, 2)
    axes = figure.axes
    assert len({a.get_xlim() for a in axes}) == 1
    assert axes[0].get_ylim() == axes[1].get_ylim() != axes[2].get_ylim() == axes[3].get_ylim()
    alone = speedups(shown[:1], 1, shown).axes[0]
    assert (alone.get_xlim(), alone.get_ylim()) == (axes[0].get_xlim(), axes[0].get_ylim())
    renderer = figure.canvas.get_renderer()
    for picture, own in zip(shown, axes, strict=True):
        frame = own.get_window_extent(renderer)
        names = {m.text for m in picture.marks}
        boxes = {t.get_text(): t.get_window_extent(renderer) for t in own.texts if t.get_text() in names}
        assert set(boxes) == names
        for (name, a), (other, b) in itertools.combinations(boxes.items(), 2):
            width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
            assert not (width > 1 and height > 4), f"{name} covers {other}"
        assert all(frame.x0 - 2 <= box.x0 and box.x1 <= frame.x1 + 2 for box in boxes.values())


def test_the_lines_are_where_they_belong_and_named(shown):
    axes = speedups(shown[:1], 1).axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "times faster than the reference at a fixed budget of 200 steps"
    words = [t.get_text() for t in axes.texts]
    assert f"1× = {fast.REFERENCE}" in words
    assert "DDP fp32, as it is installed" in words
    upright = {tuple(line.get_xdata()) for line in axes.lines if list(line.get_ydata()) == [0, 1]}
    assert upright == {(1.0, 1.0), (0.5, 0.5)}
    assert {"allreduce-\nadamw", "allreduce-\nlion"} <= set(words)
    strongest = replace(shown[0], default=None)
    words = [t.get_text() for t in speedups([strongest], 1).axes[0].texts]
    assert f"1× = {fast.REFERENCE}, as it is installed" in words


def test_other_optimizers_end_where_their_means_say(shown, study):
    panel = shown[0].panel
    level = {r["arm"]: r["mean"] for r in panel.baselines}
    assert dict(shown[0].others) == {
        name: pytest.approx(level[name] - level["allreduce-sgd"])
        for name in ("allreduce-adamw", "allreduce-lion")
    }


def test_up_is_better_whatever_the_metric(shown):
    panel = replace(shown[0].panel, facts={**shown[0].panel.facts, "direction": "lower"})
    bottom, top = speedups([replace(shown[0], panel=panel)], 1).axes[0].get_ylim()
    assert bottom > top
    assert replace(shown[0], panel=panel).best != shown[0].best


def test_the_front_is_what_nothing_beats_both_ways():
    a, b, c, d = point("a", 1, 3), point("b", 2, 2), point("c", 3, 2), point("d", 4, -1)
    worse, bad = point("worse", 3.5, -2), point("bad", 9, 9, "control")
    marks = [bad, worse, d, b, c, a]
    assert front(marks) == [a, c, d]
    assert front(marks, higher_is_better=False) == [worse, d]
    assert front([b, point("twin", 2, 2)]) == [b]
    assert front([bad]) == []
    assert stairs([a, c], 0.5, -9) == ([0.5, 1, 1, 3, 3], [3, 3, 2, 2, -9])
    with pytest.raises(ValueError, match="without points"):
        stairs([], 0, 0)


def test_bold_names_are_the_front(shown):
    axes = speedups(shown[:1], 1).axes[0]
    bold = {t.get_text() for t in axes.texts if t.get_fontweight() == "bold"}
    assert bold == {p.text for p in shown[0].best}
    assert bold


def test_hover_says_both_numbers_with_their_intervals(shown):
    told = next(t for t in hover(shown[0]).values() if t.startswith("lion-cub-1bit never:"))
    assert told.startswith(f"lion-cub-1bit never: 4.60× [4.46, 4.74] the speed of {fast.REFERENCE}, ")
    assert told.endswith(" points, on the front at the fixed budget in 100 % of draws")


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
def test_the_same_bytes_each_time(shown, study):
    link = study.sessions[0].links[0]
    for make in (lambda: speedups(shown, 2), lambda: phases(stacks(link)), lambda: forest(bars(link), "it")):
        first = svg_file(make())
        assert svg_file(make()) == first
        ElementTree.fromstring(first)
        assert "<image" not in first


def test_marks_stand_at_their_speedup_also_where_they_crowd(shown):
    for picture in shown:
        crowd = [replace(mark, x=1.0, x_low=0.99, x_high=1.01, y=0.0) for mark in picture.marks]
        axes = speedups([replace(picture, marks=crowd)], 1).axes[0]
        drawn = [line for line in axes.lines if (line.get_gid() or "").startswith("mark")]
        assert len(drawn) == len(crowd)
        assert all(line.get_xdata()[0] == pytest.approx(1.0) for line in drawn)
