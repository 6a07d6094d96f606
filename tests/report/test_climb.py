"""The page of a study with a budget ladder: equal accuracy on the x axis, censored marks at the edge, tables and sentences."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest

from report.drawing.numbers import times, weight
from report.drawing.scales import new_figure
from report.drawing.svg import svg_file
from report.study.budget_sweep import bounds, budgets_figure, budgets_view, spread_below
from report.study.build import build_page
from report.study.data import load
from report.study.marks import NEVER, Point, front, inside, points, shares_by_bytes, shares_by_speed
from report.study.runs import failures_view
from report.study.speedup import hover, pictures
from suite.analysis.columns import BUDGET_RUNS, RUNS
from suite.analysis.statistics import pareto_front
from tests.report import made_up_climb
from tests.report import made_up_speed as fast
from tests.report.test_browser import open_in_browser
from tests.suite.analysis import made_up_ladder as ladder

BY_NAME = {m.arm.name: m for m in ladder.MADE}


@pytest.fixture(scope="module")
def study(climbed):
    return load(climbed.root, "climbed")


def panel_of(study, sharding):
    return next(panel for panel in study.panels if panel.sharding == sharding)


def shown_of(study, sharding, link=fast.SLOW):
    return next(p for p in pictures(study) if (p.link, p.panel.sharding) == (link, sharding))


def mark_of(marks, arm):
    return next(mark for mark in marks if mark.arm == arm)


@pytest.mark.parametrize("arm", ["global-qsgd standard", "local-sgd H=4", "lion-cub-1bit never"])
def test_x_is_what_is_saved_at_equal_accuracy(study, arm):
    true = 1 / ladder.crossing(BY_NAME[arm], "iid")
    in_bytes = mark_of(points(panel_of(study, "iid"))[0], arm)
    assert in_bytes.x == pytest.approx(true * BY_NAME[arm].ratio, rel=0.05)
    in_seconds = mark_of(shown_of(study, "iid").marks, arm)
    assert in_seconds.x == pytest.approx(true * fast.speedup(arm, fast.SLOW), rel=0.05)
    for mark in (in_bytes, in_seconds):
        assert mark.x_low < mark.x < mark.x_high
        assert mark.low < mark.y < mark.high
        assert not mark.censored


def test_what_has_no_ratio_is_named_with_its_reason(study):
    marks, absent = points(panel_of(study, "iid"))
    assert absent == ["control-one-worker (it sends nothing)"]
    assert "one-worker" not in {mark.arm for mark in marks}


def test_censored_marks_stand_at_their_edge_with_an_arrow(climbed, study):
    shown = shown_of(study, "by-class")
    never = {mark.arm for mark in shown.marks if mark.censored == NEVER}
    assert never == {"local-sgd H=4", "lion-cub-1bit never", "no-communication", "one-worker"}
    _, (axes,) = new_figure(5, 4)
    axes.set_xscale("log")
    axes.set_xlim(0.1, 10)
    for mark in inside(shown.marks, axes):
        assert 0.1 <= mark.x_low <= mark.x <= 10 or mark.censored
        assert (mark.x < 0.15) == (mark.arm in never)
        assert 0.1 <= mark.x_low <= mark.x_high <= 10
    early = mark_of(shown_of(study, "iid").marks, "qsr-sgd")
    assert early.censored == "reached before the first rung"
    arrows = re.findall(r'id="([\w-]*arrow\d+)"', climbed.html)
    drawn = sum(bool(m.censored) for p in pictures(study) for m in p.marks)
    assert (
        len(arrows)
        == len(set(arrows))
        == drawn + sum(bool(m.censored) for p in study.panels for m in points(p)[0])
    )
    assert "never" in climbed.html


def test_what_never_has_the_accuracy_is_not_on_the_front():
    def point(name, x, y, censored=""):
        return Point(name, "sign", x, x, x, y, None, None, name, censored=censored)

    marks = [point("a", 2.0, 0.0), point("b", 0.0, 1.0, NEVER), point("c", float("inf"), -1.0, "before")]
    assert [mark.arm for mark in front(marks)] == ["a", "c"]


def test_titles_and_axes_say_what_x_is(climbed, timed):
    text = re.sub(r"\s+", " ", climbed.html)
    assert "<h2>Speed at equal accuracy, and accuracy at the same budget</h2>" in text
    assert "<h2>Bytes saved at equal accuracy, and accuracy at the same budget</h2>" in text
    assert "times faster to equal accuracy than 200 steps of the reference" in text
    assert "times fewer bytes to equal accuracy than the uncompressed run" in text
    assert "fixed budget of" not in text
    without = re.sub(r"\s+", " ", timed.html)
    assert "<h2>Speed at a fixed budget against accuracy</h2>" in without
    assert "equal accuracy" not in without.partition('<script type="application/json"')[0]


def test_the_table_has_ratios_and_shares(climbed, study):
    body = re.search(r'id="table-digits-mlp-iid-n4".*?</table>', climbed.html, re.S).group(0)
    head = dict(re.findall(r'<th scope="col" data-key="([\w-]+)"[^>]*>.*?<button[^>]*>(.*?)</button>', body))
    assert head["equal-bytes"] == "fewer bytes, equal accuracy"
    assert head["equal-100-mbit-s"] == "faster, equal accuracy, 100 Mbit/s"
    assert {"front", "front-100-mbit-s", "front-1-gbit-s", "equal-steps"} <= head.keys()
    line = re.search(r"<tr[^>]*>\s*<th[^>]*>qsr-sgd.*?</tr>", body, re.S).group(0)
    assert re.search(r"from the start\s*<small>&gt; [\d.]+×</small>", line)


def test_bounds_say_what_is_known():
    inf = float("inf")
    assert bounds({"low": 2.0, "high": 3.0}) == "[2.00, 3.00]"
    assert bounds({"low": 0.0, "high": 3.0}) == "< 3.00×"
    assert bounds({"low": 2.0, "high": inf}) == "> 2.00×"
    assert bounds({"low": 0.0, "high": inf}) == ""
    assert [times(value) for value in (None, inf, 1.8, 13.26, 977.0)] == ["–", "∞", "1.80×", "13.3×", "977×"]


def test_shares_of_the_front_are_sure_where_the_data_are(study):
    panel = panel_of(study, "iid")
    found = shares_by_bytes(panel)
    costs = {m.arm.name: 1 / m.ratio for m in ladder.MADE if m.arm.name in found} | {"": 1.0}
    values = {m.arm.name: -m.losses[0] for m in ladder.MADE} | {"": 0.0, "lion-cub-1bit never": -0.6}
    names = sorted(found)
    sure = {names[i] for i in pareto_front([costs[n] for n in names], [values[n] for n in names])}
    assert {name for name, share in found.items() if share > 0.99} == sure
    assert {name for name, share in found.items() if share < 0.01} == set(names) - sure
    by_speed = shares_by_speed(
        panel, {"qsr-sgd": 1.0, "local-sgd H=4": 2.0, "allreduce-sgd": 3.0, "nobody": 4.0}
    )
    assert by_speed == {"qsr-sgd": 1.0, "local-sgd H=4": 1.0, "allreduce-sgd": 1.0}
    titles = hover(shown_of(study, "iid")).values()
    assert any(
        "qsr-sgd: equal accuracy reached before the first rung" in t and "in 100 % of draws" in t
        for t in titles
    )


def test_sentences_count_who_is_ahead_behind_and_lost(climbed):
    text = " ".join(climbed.headline)
    assert "4 of 4 methods are shown to need fewer bytes, qsr-sgd most (more than 12.0× fewer)" in text
    assert "2 of 4 methods are shown to be faster" in text
    assert "2 never have it on the ladder" in text
    assert "n = 6 seeds, 95 % intervals" in text
    assert "at a fixed budget" not in text


def test_the_ladder_stands_on_the_page(climbed, study):
    for panel in study.panels:
        view = budgets_view(panel)
        assert {line.cells["method"].raw for line in view.lines} == set(BY_NAME)
        assert [c.title for c in view.columns[1:5]] == [
            "0.5× (100 steps)", "0.71× (142 steps)", "1× (200 steps)", "1.41× (282 steps)"
        ]  # fmt: skip
        text = svg_file(budgets_figure(panel))
        assert all(name.removeprefix("control-") in unescape(text) for name in BY_NAME)
        assert f'id="{panel.slug}-ladder"' in climbed.html
    assert "<code>bandwise sweep climbed</code>" in climbed.html


@pytest.mark.parametrize(("rho", "text"), [(2.34, "2.3"), (23.4, "23"), (99.9, "100"), (260.3, "260")])
def test_rho_is_written_without_powers_of_ten(rho, text):
    assert weight(rho) == text


def test_names_beside_the_ladder_keep_apart():
    assert spread_below([1.0, 2.0, 30.0], 10.0, 100.0) == [1.0, 11.0, 30.0]
    assert spread_below([95.0, 96.0, 97.0], 10.0, 100.0) == [80.0, 90.0, 100.0]


def test_without_a_session_the_picture_of_bytes_is_at_equal_accuracy(tmp_path):
    made_up_climb.save(tmp_path, timed=False)
    first = build_page(tmp_path, "climbed").path.read_bytes()
    assert build_page(tmp_path, "climbed").path.read_bytes() == first
    text = first.decode()
    assert "times fewer bytes to equal accuracy" in text
    assert "Speed at" not in text


@pytest.mark.chromium
def test_in_a_browser(climbed, tmp_path):
    document, console = open_in_browser(
        climbed.path, tmp_path, "#view&digits-mlp-iid-n4.sort=equal-bytes&digits-mlp-iid-n4-ladder.find=qsr"
    )
    assert console == []
    head = re.search(r'id="table-digits-mlp-iid-n4".*?</thead>', document, re.S).group(0)
    assert re.search(r'<th[^>]*data-key="equal-bytes"[^>]*aria-sort', head)
    rungs = re.search(r'id="table-digits-mlp-iid-n4-ladder".*?</table>', document, re.S).group(0)
    assert len(re.findall(r'<tr data-family="[a-z]+">', rungs)) == 1
    assert 'aria-label="Shards i.i.d.: difference to the target over the steps' in document
    assert re.search(r'id="[\w-]*arrow\d+"', document)


def test_a_failed_rung_leads_to_no_page_since_it_has_none(study):
    runs, rungs = study.frame(RUNS).copy(), study.frame(BUDGET_RUNS).copy()
    run, rung = runs.index[0], rungs.index[~rungs["run_id"].isin(runs["run_id"])][0]
    runs.loc[run, "status"], rungs.loc[rung, "status"] = "diverged", "diverged"
    tables = {**study.tables, RUNS.suffix: (RUNS, runs), BUDGET_RUNS.suffix: (BUDGET_RUNS, rungs)}
    lines = failures_view(replace(study, tables=tables), "climbed/runs/").lines
    known = runs.loc[run, "run_id"]
    assert {line.cells["run"].raw: line.cells["run"].page for line in lines} == {
        known: f"climbed/runs/{known}.html",
        rungs.loc[rung, "run_id"]: "",
    }
