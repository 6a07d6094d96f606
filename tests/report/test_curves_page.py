"""Curves on the page: what the tables say, and in words where there is nothing."""

from __future__ import annotations

import pytest

from report.curves import MOST_POINTS, curves_parts, draw_family, mean_curves, shared_axes
from report.pages import Place
from suite.analysis.statistics import mean_interval
from suite.analysis.tables import CELL, CURVES
from tests.report.test_page import Page, whole


def means_of(study, panel):
    return mean_curves(
        panel,
        dict(list(study.frame(CURVES).groupby(CELL)))[panel.workload, panel.sharding, panel.world_size],
    )


def test_the_page_is_whole_and_every_arm_with_a_curve_is_drawn_and_named(built):
    whole(built.path)
    for panel in built.study.panels:
        drawn = set(means_of(built.study, panel)["arm"])
        assert drawn == {row["arm"] for row in panel.summary} - (
            {"qsr-sgd"} if panel.sharding == "by-class" else set()
        )
        files = sorted((built.path.parent / "files" / "made-up").glob(f"curves-{panel.slug}-*.svg"))
        shown = " ".join(path.read_text(encoding="utf-8") for path in files)
        assert all(f"{arm.removeprefix('control-')}, n = " in shown for arm in drawn)
        assert ("apmsqueeze, n = 5 of 6" in shown) == (panel.sharding == "by-class")
    assert "Not drawn, since no seed finished with a curve: qsr-sgd." in " ".join(
        Page(built.html).sections["curves"].split()
    )


def test_a_curve_is_the_mean_of_its_finished_seeds_with_their_interval(built):
    panel = next(one for one in built.study.panels if one.sharding == "by-class")
    means = means_of(built.study, panel).set_index(["arm", "step"])
    lost = means.loc["apmsqueeze"]
    assert list(lost.index) == [25 * i for i in range(1, 9)]
    assert set(lost["n"]) == {5}
    assert lost["low"].isna().all(), "five seeds give no interval"
    ends = {
        arm: [row["value"] for row in panel.runs if row["arm"] == arm]
        for arm in {row["arm"] for row in panel.baselines}
    }
    best = max(sum(values) / 6 for values in ends.values())
    for arm, values in ends.items():
        last, interval = means.loc[arm, 200], mean_interval(values)
        assert last["mean"] == pytest.approx(sum(values) / 6 - best, abs=1e-9)
        assert (last["low"], last["high"]) == pytest.approx((interval.low - best, interval.high - best))


def test_a_long_curve_is_thinned_and_keeps_its_end(built, tmp_path, no_pictures):
    panel = built.study.panels[0]
    means = means_of(built.study, panel)
    long = means[means["step"] == 200].loc[lambda frame: frame.index.repeat(1001)]
    long["step"] = long.groupby("arm").cumcount() + 1
    long["bytes"] = long["step"] * 1e3
    own = panel.methods[:3]
    figure = shared_axes(panel, long)
    for rows in (panel.methods, own):  # drawn in place of those before
        draw_family(figure, panel, dict(list(long.groupby("arm"))), rows, "title")
    by_bytes, by_steps = figure.axes
    for axes, end in ((by_bytes, 1001e3), (by_steps, 1001)):
        for row, line in zip(own, axes.lines[1:], strict=False):
            assert len(line.get_xdata()) <= MOST_POINTS
            assert max(line.get_xdata()) == end
            assert set(line.get_ydata()) == {*long.loc[long["arm"] == row["arm"], "mean"]}
    assert curves_parts(built.study, Place(tmp_path, "page.html"))
