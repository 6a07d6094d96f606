"""The pictures: the same each time, right on light and on dark paper, families told apart by mark; curves as the tables say; how
methods end, in sentences, a table and a picture: with n and interval, and silent where the study is.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from reference_impls.core.catalogue import Family
from report import numbers
from report.accuracy import methods_view, option_sentence, seeds
from report.curves import MOST_POINTS, curves_parts, draw_family, mean_curves, shared_axes
from report.figures import COLOURS, FAMILIES, MARKS, SHADES, svg
from report.pages import Place
from report.sessions import phases
from report.study import headline
from suite.analysis.statistics import mean_interval
from suite.analysis.tables import CELL, CURVES
from tests.report.test_page import Page, whole
from tests.suite.analysis import made_up_session as made


def test_every_family_has_a_mark_of_its_own() -> None:
    assert set(FAMILIES) == set(MARKS) == set(get_args(Family)) - {"plugin"}
    assert len(set(MARKS.values())) == len(FAMILIES)


def test_a_picture_is_the_same_whatever_the_readers_settings_and_has_its_colours_in_the_dark(built) -> None:
    panel = built.study.panels[0]
    first = svg(seeds(panel))
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "lines.linewidth": 9, "savefig.dpi": 300}):
        assert svg(seeds(panel)) == first
    ElementTree.fromstring(first)
    assert "<image" not in first
    assert not re.search(r"\d{4}-\d\d-\d\dT", first)
    used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", first.partition("</style>")[2]))
    assert used <= {light for light, _ in SHADES.values()}, "a colour that stays as it is in the dark"
    light, dark = SHADES["muted"]
    assert f'[style*="fill: {light}"]{{fill:{dark}!important}}' in first


def test_a_bar_is_its_phases_and_the_stroke_the_step(timed) -> None:
    session = next(one for one in timed.study.sessions if one.name == "timed")
    link = session.links[0]
    figure = phases(link)
    assert figure is not None
    axes = figure.axes[0]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == [row["case"] for row in sorted(link.timed, key=lambda row: (row["step_s"], row["case"]))]
    lengths = {
        name: [bars.patches[line].get_width() for bars in axes.containers[:5]]
        for line, name in enumerate(names)
    }
    case = next(row for row in link.cases if row["case"] == "lion-cub-1bit: step")
    columns = ("forward_backward_s", "encode_s", "exposed_s", "decode_s")
    assert lengths["lion-cub-1bit: step"][:4] == pytest.approx(
        [1e3 * max(0.0, case[name] or 0.0) for name in columns]
    )
    own = next(row for row in link.cases if row["case"] == made.REFERENCE)
    assert sum(lengths[made.REFERENCE]) == pytest.approx(1e3 * own["step_s"]), (
        "not told apart: computing and exposed"
    )
    assert all(length >= 0 for bars in lengths.values() for length in bars)
    assert axes.get_xlabel() == "milliseconds a step"
    steps = ("step_s", "step_low", "step_high")
    slow = phases(
        replace(link, cases=[row | dict.fromkeys(steps, row["step_s"] and 9.0) for row in link.cases])
    )
    assert slow is not None
    assert slow.axes[0].get_xlabel() == "seconds a step"
    assert svg(figure) == svg(phases(link))  # type: ignore[arg-type]


# ---- how methods end


def of(built, sharding):
    return next(p for p in built.study.panels if p.sharding == sharding)


def test_sentences(built):
    first, second, third, last = headline(built.study)
    assert first == (
        "Shards i.i.d.: 8 of 11 methods are within ±0.4 points of the uncompressed run of their own optimizer; 3 are "
        "undecided. lion-cub-1bit never sends least of them: 31.9× fewer bytes at 0.00 [−0.30, +0.30] points (95 % "
        "paired t, n = 6)."
    )
    assert second.startswith("Shards by class: 2 of 11 methods are within ±0.4 points")
    assert third.startswith("Shards by class: options decide: lion-cub-1bit never ends at −35.74 [")
    assert "lion-cub-1bit K=10 at +0.09 [−0.07, +0.26] points (95 % paired t, n = 6)" in third
    assert last == "8 of 216 runs did not finish: 7 diverged, 1 error. They are listed below and in no mean."
    assert built.headline == headline(built.study)


def test_worse_is_the_higher_value_where_lower_is_better(built):
    panel = of(built, "by-class")
    flipped = replace(panel, facts={**panel.facts, "direction": "lower"})
    sentence = option_sentence(flipped, "Here")
    assert sentence.startswith("Here: options decide: lion-cub-1bit K=10 ends at +0.09")


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (numbers.signed, -0.004, "0.00"),
        (numbers.signed, -35.741, "−35.74"),
        (numbers.signed, 0.28, "+0.28"),
        (numbers.signed, None, "–"),
        (numbers.plain, 97.006, "97.01"),
        (numbers.ratio, 31.87, "31.9×"),
        (numbers.ratio, 1.0, "1×"),
        (numbers.ratio, 12345.6, "12,346×"),
        (numbers.ratio, float("inf"), "∞"),
        (numbers.byte_count, 1806396, "1.81 MB"),
        (numbers.byte_count, 0, "0 B"),
        (numbers.rate, 3.1622776e-05, "3.16e-05"),
        (numbers.probability, 0.00390625, "0.0039"),
    ],
)
def test_numbers(function, value, text):
    assert function(value) == text


def test_better_is_called_better(built):
    method = "global-qsgd standard"
    cells = {"equal": "no", "diff_mean": 0.9, "diff_low": 0.7, "diff_high": 1.1}
    for panel in built.study.panels:
        changed = replace(panel, summary=[{**r, **cells} if r["arm"] == method else r for r in panel.summary])
        (line,) = [cells for cells in methods_view(changed, False).lines if cells[0].text == method]
        assert line[1].text == "better by 0.90 points"


@pytest.mark.parametrize("sharding", ["iid", "by-class"])
def test_every_seed_is_a_dot_and_the_band_stands_only_where_the_study_can_tell(built, sharding):
    panel = of(built, sharding)
    axes = seeds(panel).axes[0]
    dots = sum(len(drawn.get_offsets()) for drawn in axes.collections if hasattr(drawn, "get_sizes"))
    finished = {(row["arm"], row["seed"]) for row in panel.runs if row["status"] == "done"}
    assert dots == sum(
        (row["arm"], seed) in finished and (row["baseline"], seed) in finished
        for row in [*panel.methods, *panel.controls]
        for seed in range(6)
    )
    assert COLOURS["band"] in svg(seeds(panel))
    blind = replace(panel, verdict={**panel.verdict, "sensitive": False})
    assert COLOURS["band"] not in svg(seeds(blind))


# ---- curves


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
    assert "Not drawn, since no seed finished with a curve: qsr-sgd." in Page(built.html).said("curves")


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
